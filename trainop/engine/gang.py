"""Gang scheduling: the PodGroup of a job, and whether its pods may be created.

Pure, and independent of the kind: a kind describes its job as a `Gang`, and `examine` decides. The PodGroup is created
once, with the annotations of the job, and later only those fields are patched that the operator manages and that
differ in meaning; PodGroups of the former Go operators are therefore continued without a write.

Sources: training-operator `pkg/controller.v1/common/job.go`, `scheduling.go`, `util.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainop.engine.actions import LOOK_AGAIN, Ensure, Need, Patch
from trainop.engine.fields import Fields
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.pod_resources import Resources, add_multiple, pod_requests, same_resources
from trainop.engine.seen import PodGroup, PodGroupSpec, SeenGang
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_quantity

POLICY = "spec.runPolicy.schedulingPolicy"
DEFAULT_QUEUE = "default"
WAITING_PHASES = ("", "Pending")
"""Phases in which Volcano has not yet found room for the PodGroup (upstream `DelayPodCreationDueToPodGroup`)."""

GATE_REQUEUE = 10.0
"""Seconds until a job is examined again whose pods wait. Usually an event of its PodGroup comes first."""

UNAVAILABLE = "PodGroupUnavailable"
REFUSED = "PodGroupRefused"
NAME_TAKEN = "PodGroupNameTaken"
UNREADABLE = "PodGroupUnreadable"
UNSATISFIABLE = "MinAvailableUnsatisfiable"


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """`spec.runPolicy.schedulingPolicy`. Invalid values count as not given."""

    min_available: int | None = None
    queue: str = ""
    min_resources: Mapping[str, Any] | None = None
    """None: computed. Values are as given."""
    priority_class: str = ""
    schedule_timeout: int | None = None


class Task(NamedTuple):
    """The pods of one template."""

    replicas: int
    spec: Json
    """The template's `spec`, not validated."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A job as gang scheduling sees it."""

    scheduler: GangScheduler
    metadata: Json
    """`metadata` of the PodGroup when it is created: name, namespace, labels, annotations, and the job as its only
    owner."""
    tasks: Sequence[Task]
    """In the order in which tasks of equal priority are counted."""
    policy: SchedulingPolicy = SchedulingPolicy()
    queue_follows: bool = False
    """Whether the queue of an existing PodGroup follows that of the policy. It does with mpi-operator; with
    training-operator a PodGroup keeps the queue that it has."""

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def owner(self) -> Json:
        owner: Json = self.metadata["ownerReferences"][0]
        return owner

    @property
    def total(self) -> int:
        return sum(task.replicas for task in self.tasks)

    @property
    def min_member(self) -> int:
        """The number of pods that are scheduled together, as upstream also if the job has fewer; scheduler-plugins
        require at least one."""
        wanted = self.policy.min_available
        return max(self.total if wanted is None else wanted, 0 if self.scheduler.is_volcano else 1)


class Problem(NamedTuple):
    """Why the job cannot have its PodGroup: reason and message of a condition."""

    reason: str
    message: str


class Verdict(NamedTuple):
    """What to do about the PodGroup, and whether pods may be created. The default is that of a job without gang
    scheduling."""

    open: bool = True
    """Pods may be created in this pass; if `action` creates the PodGroup, only after that has succeeded."""
    action: Ensure | Patch | None = None
    problem: Problem | None = None
    requeue_after: float | None = None


def read_policy(fields: Fields, raw: object) -> SchedulingPolicy:
    """Parses the policy of a job; errors are added to `fields`."""
    policy = fields.mapping(POLICY, raw)
    timeout = policy.get("scheduleTimeoutSeconds")
    return SchedulingPolicy(
        min_available=fields.integer(f"{POLICY}.minAvailable", policy.get("minAvailable"), minimum=0),
        queue=fields.text(f"{POLICY}.queue", policy.get("queue")),
        min_resources=_read_min_resources(fields, policy.get("minResources")),
        priority_class=fields.text(f"{POLICY}.priorityClass", policy.get("priorityClass")),
        schedule_timeout=fields.integer(f"{POLICY}.scheduleTimeoutSeconds", timeout, minimum=0),
    )


def _read_min_resources(fields: Fields, raw: object) -> Mapping[str, Any] | None:
    at = f"{POLICY}.minResources"
    if not isinstance(raw, dict):
        fields.mapping(at, raw)
        return None
    found = {}
    for name, value in raw.items():
        try:
            read_quantity(value if isinstance(value, str | int | float) else "")
            found[name] = value
        except ValueError:
            fields.invalid(f"{at}[{name}]", value, "must be a quantity")
    return found


# Fields of the PodGroup -----------------------------------------------------------------------------------------------


def group_fields(gang: Gang, seen: SeenGang, found: PodGroupSpec | None = None) -> Json:
    """The managed fields of the PodGroup's `spec`; None: absent."""
    policy = gang.policy
    fields: Json = {"minMember": gang.min_member}
    if gang.scheduler.is_volcano:
        given, present = policy.queue, (found.queue if found else None) or ""
        fields["queue"] = (given or present if gang.queue_follows else present or given) or DEFAULT_QUEUE
        fields["priorityClassName"] = policy.priority_class or None
    else:
        fields["scheduleTimeoutSeconds"] = policy.schedule_timeout
    resources = policy.min_resources
    if resources is None:
        resources = {name: str(amount) for name, amount in min_resources(gang, seen).items()}
    fields["minResources"] = dict(resources) or None
    return fields


def min_resources(gang: Gang, seen: SeenGang) -> Resources:
    """The requests of the first `min_member` pods, by descending priority of their PriorityClass."""
    total: Resources = {}
    left = gang.min_member
    for task in sorted(gang.tasks, key=lambda task: -seen.priority(priority_class(task))):
        add_multiple(total, pod_requests(task.spec), min(task.replicas, left))
        left -= min(task.replicas, left)
    return total


def priority_class(task: Task) -> str:
    name = task.spec.get("priorityClassName")
    return name if isinstance(name, str) else ""


def find_unsatisfiable(gang: Gang) -> Problem | None:
    """Why the scheduler never starts the pods, whatever room there is; None if it may."""
    least, total = gang.policy.min_available, gang.total
    if least is None or not 0 < total < least:
        return None
    pods = "pod is" if total == 1 else "pods are"
    text = f"{POLICY}.minAvailable is {least}, and only {total} {pods} scheduled together"
    advice = f"pods that are not running yet never start. Set it to {total} or less, or remove it"
    return Problem(UNSATISFIABLE, f"{text}: {advice}")


def unknown_classes(gang: Gang, seen: SeenGang) -> list[str]:
    """The PriorityClasses that do not exist, if `min_resources` depends on priorities."""
    if seen.priorities is None or gang.policy.min_resources is not None or gang.min_member >= gang.total:
        return []
    named = {priority_class(task) for task in gang.tasks} - {""}
    return sorted(name for name in named if name not in seen.priorities)


def changed_fields(wanted: Json, found: PodGroupSpec) -> Json:
    """The merge patch that gives the managed fields their wanted values; empty if none differs in meaning."""
    given = found.as_json()
    patch = {name: value for name, value in wanted.items() if not _equal(value, given.get(name))}
    resources = patch.get("minResources")
    if resources:
        obsolete = given.get("minResources") or {}
        patch["minResources"] = {name: None for name in obsolete if name not in resources} | resources
    return patch


def _equal(wanted: object, found: object) -> bool:
    """Whether two values mean the same. The API server may have written quantities in another form."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return same_resources(wanted, found)
    return wanted == found


# The decision ---------------------------------------------------------------------------------------------------------


def examine(gang: Gang, seen: SeenGang) -> Verdict:
    """Decides what to do about the PodGroup of a job that is neither finished nor suspended."""
    closed = Verdict(open=False, requeue_after=GATE_REQUEUE)
    group = seen.group
    if seen.unavailable:
        return closed._replace(problem=Problem(UNAVAILABLE, f"Pods wait for their PodGroup: {seen.unavailable}"))
    if group is not None and not group.metadata.controlled_by(gang.owner["uid"]):
        return closed if _is_being_removed(gang, group) else _taken(gang)
    if group is not None and group.metadata.terminating:
        return closed
    if seen.fault:
        message = f"PodGroup {gang.name} cannot be read: {seen.fault}"
        return closed._replace(problem=Problem(UNREADABLE, message), requeue_after=LOOK_AGAIN)
    return _create(gang, seen) if group is None else _continue(gang, seen, group)


def _is_being_removed(gang: Gang, group: PodGroup) -> bool:
    """Whether the name becomes free: the PodGroup is terminating, or belongs to a previous job of this name."""
    owner, ours = group.metadata.controller, gang.owner
    previous = owner is not None and (owner.kind, owner.name) == (ours["kind"], ours["name"])
    return group.metadata.terminating or previous


def _taken(gang: Gang) -> Verdict:
    owner = gang.owner
    message = f"PodGroup {gang.name} already exists and does not belong to {owner['kind']} {owner['name']}"
    return Verdict(open=False, problem=Problem(NAME_TAKEN, message), requeue_after=LOOK_AGAIN)


def _create(gang: Gang, seen: SeenGang) -> Verdict:
    problem = Problem(REFUSED, f"The API server refuses the PodGroup: {seen.refused}") if seen.refused else None
    if problem and seen.retry_in > 0:
        return Verdict(open=False, problem=problem, requeue_after=seen.retry_in)
    resource = gang.scheduler.groups
    spec = {name: value for name, value in group_fields(gang, seen).items() if value is not None}
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": gang.metadata,
        "spec": spec,
    }
    return Verdict(
        open=not gang.scheduler.is_volcano,
        action=Ensure(resource, gang.name, manifest=manifest, need=Need.PODS),
        problem=problem,
        requeue_after=GATE_REQUEUE if gang.scheduler.is_volcano else None,
    )


def _continue(gang: Gang, seen: SeenGang, group: PodGroup) -> Verdict:
    """The verdict on an existing PodGroup of the job. A refused update holds up no pods."""
    waits = gang.scheduler.is_volcano and (group.status.phase or "") in WAITING_PHASES
    verdict = Verdict(open=not waits, requeue_after=GATE_REQUEUE if waits else None)
    changes = changed_fields(group_fields(gang, seen, group.spec), group.spec)
    if not changes:
        return verdict
    if seen.refused:
        verdict = verdict._replace(problem=Problem(REFUSED, f"The API server refuses the PodGroup: {seen.refused}"))
        if seen.retry_in > 0:
            soonest = min(seen.retry_in, verdict.requeue_after or seen.retry_in)
            return verdict._replace(requeue_after=soonest)
    metadata = group.metadata
    update = Patch(
        gang.scheduler.groups,
        metadata.name,
        metadata.uid,
        {"spec": changes},
        version=metadata.resource_version,
        need=Need.PODS,
    )
    return verdict._replace(action=update)
