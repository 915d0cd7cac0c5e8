"""Where a job stands in its queue: whether it may run, and what is to be done about its Workload.

no Workload -> created, once no pod of the job runs any more
pending     -> held; the Workload follows the job
admitted    -> runs, placed as the admission says
evicted     -> held; its quota is returned once no pod runs any more
outdated    -> held, and deleted then; of an elastic job it is replaced by a new slice while it runs on
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from trainop.engine.actions import LOOK_AGAIN, Action, Ensure, Need, Patch, Remove
from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import Words, selector
from trainop.engine.kueue import ELASTIC, EVICTED, FINISHED, WORKLOADS, SeenQueue, Workload
from trainop.engine.queueing.placement import Placement, PlacementError, UnknownFlavorError, read_placements
from trainop.engine.queueing.pod_sets import PodSet, Request, demand, read_priority
from trainop.engine.queueing.status import release
from trainop.engine.seen import Snapshot
from trainop.engine.steps.companions import FINGERPRINT
from trainop.runtime import Json, Metadata, Unstructured

UNAVAILABLE = "WorkloadUnavailable"
REFUSED = "WorkloadRefused"
UNKNOWN_CLASS = "UnknownPriorityClass"
UNKNOWN_FLAVOR = "UnknownResourceFlavor"
MISPLACED = "PlacementImpossible"
PENDING = "Pending"

_encode = msgspec.json.Encoder().encode


class Mode(enum.Enum):
    RUN = "run"
    HOLD = "hold"
    """Its pods are deleted, as those of a suspended job."""
    FREEZE = "freeze"
    """Its pods stay, and no new ones are created."""


class Problem(NamedTuple):
    """Reason and message of a condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Standing:
    mode: Mode
    current: Workload | None = None
    """The Workload that counts."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    problem: Problem | None = None
    requeue_after: float | None = None


def is_made_by_us(workload: Workload, words: Words, job: Metadata) -> bool:
    """Whether the operator has made the Workload, and nobody has put other pod sets into it: Kueue's own integration
    writes those of its own into the Workload of a suspended job."""
    labels = selector(words, job.name).items()
    ours = (labels <= each.template.metadata.labels.items() for each in workload.spec.pod_sets)
    return FINGERPRINT in workload.metadata.annotations and all(ours)


def is_active(seen: Snapshot) -> bool:
    """Whether pods of the job, or of its launcher's Job, use resources or are about to."""
    uid = seen.job.metadata.uid
    children = [each for found in seen.companions.values() for each in found if each.metadata.controlled_by(uid)]
    if any(_makes_pods(child) for child in children):
        return True
    owners = {uid, *(child.metadata.uid for child in children)}
    living = (pod for pod in seen.pods if pod.status.phase not in ("Succeeded", "Failed"))
    return any(owner is not None and owner.uid in owners for owner in (pod.metadata.controller for pod in living))


def _makes_pods(child: Unstructured) -> bool:
    """Whether a launcher's Job may get a pod that no cache shows yet: it has been resumed, or the Job controller does
    not say yet that it has suspended it."""
    spec, status = as_object(child.raw.get("spec")), as_object(child.raw.get("status"))
    true = {each.get("type") for each in as_list(status.get("conditions")) if each.get("status") == "True"}
    if "template" not in spec or not true.isdisjoint({"Complete", "Failed"}):
        return False
    return spec.get("suspend") is not True or (status.get("startTime") is not None and "Suspended" not in true)


def make_request(seen: Snapshot, queue: SeenQueue, words: Words, pod_sets: Sequence[PodSet]) -> Request:
    """What the job of the snapshot asks of its queue."""
    job = seen.job.metadata
    spec = seen.job.raw.get("spec") or {}
    elastic = job.annotations.get(ELASTIC) == "true"
    return Request(job, words, pod_sets, read_priority(job, spec, pod_sets, queue), demand(pod_sets), elastic)


def find_standing(request: Request, queue: SeenQueue, own: Iterable[Workload], seen: Snapshot) -> Standing:
    """`own`: the Workloads that the operator has made for the job."""
    active = is_active(seen)
    stay = Mode.FREEZE if active else Mode.HOLD
    if queue.unavailable:
        return Standing(stay, problem=Problem(UNAVAILABLE, queue.unavailable), requeue_after=LOOK_AGAIN)
    found = sorted(own, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name))
    ended = [each for each in found if each.is_true(FINISHED)]
    living = [each for each in found if not each.is_true(FINISHED)]
    if living:
        current = next((each for each in living if each.runs), living[0])
        rest = [each for each in living if each is not current]
        made = _Current(request, queue, current, rest, active=active, now=seen).standing()
    elif request.pod_sets:
        made = _begin(request, queue, active=active)
    else:
        made = Standing(stay)  # the errors of the job say why
    return replace(made, actions=(*(_remove(each) for each in ended), *made.actions))


def _begin(request: Request, queue: SeenQueue, *, active: bool) -> Standing:
    if request.priority.missing:
        text = f"{request.priority.missing} does not exist, or cannot be read"
        return Standing(Mode.HOLD, problem=Problem(UNKNOWN_CLASS, text), requeue_after=LOOK_AGAIN)
    if active:
        return Standing(Mode.HOLD)
    return _with_refusal(Standing(Mode.HOLD, actions=(_create(request),)), queue)


def _with_refusal(standing: Standing, queue: SeenQueue) -> Standing:
    """As the API server has refused the last write, with the reason. It is repeated when it is due."""
    if not queue.refused:
        return standing
    problem = Problem(REFUSED, f"The API server refuses the Workload: {queue.refused}")
    return replace(standing, problem=problem, requeue_after=queue.retry_in or None)


def _create(request: Request, old: Workload | None = None) -> Ensure:
    def encode() -> bytes:
        return _encode(request.manifest(old))

    return Ensure(WORKLOADS, request.name(old), encode, need=Need.NONE)


def _remove(workload: Workload) -> Remove:
    return Remove(WORKLOADS, workload.metadata.name, workload.metadata.uid)


def _write(workload: Workload, body: Json) -> Patch:
    metadata = workload.metadata
    return Patch(WORKLOADS, metadata.name, metadata.uid, body, version=metadata.resource_version, need=Need.NONE)


@dataclass(frozen=True, slots=True)
class _Current:
    """A job with a Workload; `others` are further ones, such as the slice that is to replace it."""

    request: Request
    queue: SeenQueue
    workload: Workload
    others: Sequence[Workload]
    active: bool
    now: Snapshot

    def standing(self) -> Standing:
        workload, fits = self.workload, self._fits
        if workload.metadata.terminating:
            return self._hold(*map(_remove, self.others))
        if workload.is_true(EVICTED) or not workload.reserves:
            return self._wait()
        if fits and self._has_size:
            actions = tuple(map(_remove, self.others))
            return self._run(actions) if workload.runs else self._hold(*actions)
        if fits and self.request.elastic and workload.runs:
            return self._run(tuple(self._resize()))
        drop = () if self.active else map(_remove, (workload, *self.others))
        return self._hold(*drop)

    @property
    def _fits(self) -> bool:
        """Whether the Workload is that of the job, but for its size. A job with errors keeps the one that it has."""
        return not self.request.pod_sets or self.request.matches(self.workload)

    @property
    def _has_size(self) -> bool:
        return not self.request.pod_sets or self.workload.counts == self.request.counts

    def _hold(self, *actions: Action) -> Standing:
        return Standing(Mode.HOLD, self.workload, actions=actions)

    def _wait(self) -> Standing:
        """Pending, or evicted."""
        actions: list[Action] = [_remove(each) for each in self.others]
        if self.workload.reserves:
            actions += [] if self.active else [release(self.workload, self.now.now)]
        elif changes := self._changes():
            actions.append(_write(self.workload, changes))
            return _with_refusal(self._hold(*actions), self.queue)
        return self._hold(*actions)

    def _changes(self) -> Json:
        """What a Workload without quota lacks to be that of the job; it keeps its place in the queue."""
        request, spec = self.request, self.workload.spec
        if request.priority.missing or not request.pod_sets:
            return {}
        same = self._fits and self._has_size
        wanted, reference = request.priority.reference, spec.priority_class_ref
        if same and (spec.queue_name, reference or None) == (request.queue, dict(wanted) if wanted else None):
            return {}
        return {"metadata": {"annotations": {FINGERPRINT: request.demand}}, "spec": request.spec()}

    def _resize(self) -> Iterable[Action]:
        """The slice that is to replace the Workload once it is admitted."""
        if not self.others:
            yield _create(self.request, self.workload)
            return
        *spare, newest = self.others
        yield from map(_remove, spare)
        if newest.counts != self.request.counts and not newest.reserves:
            yield _write(newest, {"spec": {"podSets": self.request.spec()["podSets"]}})

    def _run(self, actions: tuple[Action, ...]) -> Standing:
        try:
            placements = read_placements(self.workload, self.queue.flavors)
        except UnknownFlavorError as error:
            stay = Mode.FREEZE if self.active else Mode.HOLD
            problem = Problem(UNKNOWN_FLAVOR, str(error))
            return Standing(stay, self.workload, problem=problem, requeue_after=LOOK_AGAIN)
        except PlacementError as error:
            return misplace(self.workload, error)
        return Standing(Mode.RUN, self.workload, placements, actions)


def misplace(workload: Workload, error: PlacementError) -> Standing:
    """The pods cannot get what the admission asks for: the quota goes back, until somebody has changed one of both."""
    problem = Problem(MISPLACED, f"{error}; the Workload {workload.metadata.name} is set to inactive")
    actions = (_write(workload, {"spec": {"active": False}}),) if workload.spec.active else ()
    return Standing(Mode.HOLD, workload, actions=actions, problem=problem)
