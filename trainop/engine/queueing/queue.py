"""A job with a queue: it is planned as its Workload permits, and its Workload follows what was planned.

The decision never depends on `spec.runPolicy.suspend`: the job is planned as if the field said what the queue says.
The field is written to say the same, as with Kueue's own integrations, so that programs which read it agree, and so
that the job does not start when the operator runs without its integration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from trainop.engine.actions import Action, Ensure, Event, Patch, Plan, Remove, is_creation
from trainop.engine.fields import as_object
from trainop.engine.framework import Words
from trainop.engine.kueue import ADMITTED, EVICTED, FINISHED, QUEUE, RESERVED, WORKLOADS, SeenQueue, Workload
from trainop.engine.queueing.placement import Placement, PlacementError, suspended
from trainop.engine.queueing.pod_sets import PodSet
from trainop.engine.queueing.standing import (
    PENDING,
    Mode,
    Problem,
    Standing,
    find_standing,
    is_made_by_us,
    make_request,
    misplace,
)
from trainop.engine.queueing.status import finish, report
from trainop.engine.seen import Snapshot
from trainop.engine.status import FAILED, RUNNING, SUCCEEDED, Status
from trainop.runtime import PODS, Json, Unstructured
from trainop.runtime.lowlevel import cut, read_time

INTEGRATION = "KueueIntegration"
REWORD_AFTER = 60.0
"""Seconds between two messages of the same reason: Kueue rewrites them with each attempt to admit the job."""

Decide = Callable[[Snapshot], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """What the queueing of jobs depends on of their kind. All functions are pure and never raise, but for `place`."""

    words: Words
    pod_sets: Callable[[Snapshot], Sequence[PodSet]]
    """Empty for a job that has none to ask for, such as an invalid one."""
    place: Callable[[Json, Mapping[str, Placement]], Json]
    """The `spec` of a job -> as its admission says. May raise `PlacementError`."""
    leaves: Callable[[Snapshot], bool]
    """Whether another controller plans the job."""
    done: Callable[[Snapshot], Mapping[str, int]]
    """Pod set -> the pods that have ended and are never replaced."""
    suspends: bool = True
    """Jobs of the kind have `spec.runPolicy.suspend`."""

    def plan(self, seen: Snapshot, decide: Decide) -> Plan:
        """The plan of one reconcile; `decide` makes that of a job without a queue."""
        queue = seen.queue
        if queue is None or seen.job.metadata.terminating or self.leaves(seen):
            return decide(seen)
        job, status = seen.job.metadata, Status(seen.job.raw.get("status"), seen.now)
        own = [each for each in queue.workloads if is_made_by_us(each, self.words, job)]
        if not job.labels.get(QUEUE):
            return _leave(decide(seen), seen, own)
        if status.finished:
            return _end(decide(self._view(seen, suspend=False)), seen, own)
        if foreign := [each for each in queue.workloads if each not in own and not each.is_true(FINISHED)]:
            return _stand_down(decide(seen), seen, foreign[0], own)
        return self._follow(seen, queue, own, decide)

    def _follow(self, seen: Snapshot, queue: SeenQueue, own: Sequence[Workload], decide: Decide) -> Plan:
        request = make_request(seen, queue, self.words, self.pod_sets(seen))
        standing = find_standing(request, queue, own, seen)
        try:
            shown = self._view(seen, suspend=standing.mode is Mode.HOLD, placements=standing.placements)
        except PlacementError as error:
            assert standing.current is not None  # noqa: S101  # only it has placements
            standing = misplace(standing.current, error)
            shown = self._view(seen, suspend=True)
        made = decide(shown)
        status = Status(made.status if made.status is not None else seen.job.raw.get("status"), seen.now)
        if status.finished:
            return _end(made, seen, own)
        kept = (each for each in made.actions if not _is_barred(each, standing.mode))
        events, later = _show(status, standing, seen)
        actions = (*kept, *standing.actions, *self._report(seen, standing, status))
        due = [each for each in (made.requeue_after, standing.requeue_after, later) if each is not None]
        return replace(
            made,
            status=status.changed() or made.status,
            actions=actions,
            transitions=(*made.transitions, *events),
            requeue_after=min(due, default=None),
            suspend=self._mirror(seen, standing, made),
        )

    def _view(self, seen: Snapshot, *, suspend: bool, placements: Mapping[str, Placement] | None = None) -> Snapshot:
        """The snapshot with the job as it is planned."""
        spec = seen.job.raw.get("spec")
        if not isinstance(spec, dict):
            return seen  # an error, which the plan names
        placed = self.place(spec, placements) if placements else spec
        return replace(seen, job=_with_spec(seen.job, suspended(placed, suspend=suspend)))

    def _report(self, seen: Snapshot, standing: Standing, status: Status) -> Sequence[Action]:
        if standing.mode is not Mode.RUN or standing.current is None:
            return ()
        patch = report(standing.current, seen.now, ready=status.is_true(RUNNING), done=self.done(seen))
        return () if patch is None else (patch,)

    def _mirror(self, seen: Snapshot, standing: Standing, made: Plan) -> bool | None:
        """The value that `spec.runPolicy.suspend` gets; None: it stays."""
        if not self.suspends or standing.mode is Mode.FREEZE or made.suspend is not None:
            return made.suspend
        wanted = standing.mode is Mode.HOLD
        policy = as_object(as_object(seen.job.raw.get("spec")).get("runPolicy"))
        return None if wanted is (policy.get("suspend") is True) else wanted


def _with_spec(job: Unstructured, spec: Json) -> Unstructured:
    return Unstructured({**job.raw, "spec": spec}, job.metadata, job.fault, reduced=job.reduced)


def _is_barred(action: Action, mode: Mode) -> bool:
    """Whether the action makes pods that are not admitted. A launcher's Job that is made suspended makes none."""
    if mode is Mode.RUN or not isinstance(action, Ensure | Patch):
        return False
    return is_creation(action, PODS) or (mode is Mode.FREEZE and action.makes_pods)


# Jobs that do not wait ------------------------------------------------------------------------------------------------


def _leave(made: Plan, seen: Snapshot, own: Sequence[Workload]) -> Plan:
    """The job has no queue, or no longer."""
    return replace(_without_condition(made, seen), actions=(*made.actions, *_removals(own)))


def _removals(own: Sequence[Workload]) -> list[Remove]:
    return [Remove(WORKLOADS, each.metadata.name, each.metadata.uid) for each in own if not each.metadata.terminating]


def _end(made: Plan, seen: Snapshot, own: Sequence[Workload]) -> Plan:
    """The job has finished, with this plan or before it."""
    status = Status(made.status if made.status is not None else seen.job.raw.get("status"), seen.now)
    succeeded = status.is_true(SUCCEEDED)
    message = str((status.find(SUCCEEDED if succeeded else FAILED) or {}).get("message", ""))
    open_ = (each for each in own if not each.is_true(FINISHED) and not each.metadata.terminating)
    told = [finish(each, seen.now, succeeded=succeeded, message=message) for each in open_]
    return replace(_without_condition(made, seen), actions=(*made.actions, *told))


def _without_condition(made: Plan, seen: Snapshot) -> Plan:
    status = Status(made.status if made.status is not None else seen.job.raw.get("status"), seen.now)
    status.remove(ADMITTED)
    return replace(made, status=status.changed() or made.status)


def _stand_down(made: Plan, seen: Snapshot, foreign: Workload, own: Sequence[Workload]) -> Plan:
    """Kueue's own integration has the job: two would count and steer it twice."""
    status = Status(made.status if made.status is not None else seen.job.raw.get("status"), seen.now)
    kind = seen.job.raw.get("kind")
    text = (
        f"Workload {foreign.metadata.name} of another integration, such as Kueue's own, decides about the job, so that"
        f" --kueue does not apply to it: name {kind} either in --kueue or in Kueue's integrations.frameworks"
    )
    events, _ = _set(status, seen.now, "False", Problem(INTEGRATION, text), "Warning")
    return replace(
        made,
        status=status.changed() or made.status,
        actions=(*made.actions, *_removals(own)),
        transitions=(*made.transitions, *events),
    )


# What is shown --------------------------------------------------------------------------------------------------------


def _show(status: Status, standing: Standing, seen: Snapshot) -> tuple[Sequence[Event], float | None]:
    """Shows where the job stands. Returns the events about it, and the seconds until it can be said better."""
    if standing.problem is not None:
        return _set(status, seen.now, "False", standing.problem, "Warning")
    current = standing.current
    if standing.mode is Mode.RUN and current is not None:
        queue = as_object(current.status.admission).get("clusterQueue")
        return _set(status, seen.now, "True", Problem(ADMITTED, f"Admitted by ClusterQueue {queue}"))
    return _set(status, seen.now, "False", _explain(current, seen.job.metadata.labels[QUEUE]))


def _explain(current: Workload | None, queue: str) -> Problem:
    """Why a Workload, if there is one, does not let its job run."""
    waits = Problem(PENDING, f"{_WAITS} {queue}")
    if current is None:
        return waits
    if current.metadata.terminating:
        return Problem(PENDING, "The Workload of the job is being deleted")
    for type_, bad in ((EVICTED, "True"), (RESERVED, "False"), (ADMITTED, "False")):
        found = current.find(type_)
        if found.get("status") == bad:
            return Problem(str(found.get("reason")), str(found.get("message", "")))
    if current.runs:
        return Problem(PENDING, "The job has been changed and is queued again")
    return waits


_WAITS = "The job waits in the queue"


def _set(
    status: Status, now: datetime, value: str, problem: Problem, event: str = "Normal"
) -> tuple[Sequence[Event], float | None]:
    """Sets the condition, with the reason and the message of a problem. Returns the event about a transition, and the
    seconds until the message may be replaced."""
    reason, message = problem
    old = status.find(ADMITTED) or {}
    known = (old.get("status"), old.get("reason")) == (value, reason)
    told = read_time(old.get("lastUpdateTime"))
    if known and told is not None and not str(old.get("message")).startswith(_WAITS):
        left = REWORD_AFTER - (now - told).total_seconds()
        if left > 0:
            return (), None if old.get("message") == cut(message) else left
    status.set_first(ADMITTED, value, reason, message)
    return () if known else (Event(event, reason, message),), None
