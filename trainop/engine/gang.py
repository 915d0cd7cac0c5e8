"""Gang scheduling: what the PodGroup of a job contains.

Pure, and independent of the kind: a kind describes its job as a `Gang`. The PodGroup is created once, with the
annotations of the job, and later only those fields are patched that the operator manages and that differ in meaning;
PodGroups of the former Go operators are therefore continued without a write. When it is written, and which pods wait
for it, is decided in `trainop.engine.steps.gang`.

Sources: training-operator `pkg/controller.v1/common/job.go`, `scheduling.go`, `util.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainop.engine.fields import Fields
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.pod_resources import Resources, add_multiple, pod_requests, same_resources
from trainop.engine.seen import PodGroupSpec, SeenGang
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_quantity

POLICY = "spec.runPolicy.schedulingPolicy"
DEFAULT_QUEUE = "default"


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
class Wishes:
    """What kube-scheduler can do for a gang besides, by annotations of the job (`trainop.engine.kube_gang`)."""

    topology: str = ""
    """The key of a node label."""
    disruption: str = ""
    """`single` or `all`; empty: by the number of pods that start together."""
    claims: tuple[Json, ...] = ()
    """Entries of `spec.resourceClaims` of the templates."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A job as gang scheduling sees it."""

    scheduler: GangScheduler
    tasks: Sequence[Task]
    """In the order in which tasks of equal priority are counted."""
    policy: SchedulingPolicy = SchedulingPolicy()
    queue_follows: bool = False
    """Whether the queue of an existing PodGroup follows that of the policy. It does with mpi-operator; with
    training-operator a PodGroup keeps the queue that it has."""
    elastic_minimum: int | None = None
    """The pods that an elastic job can run with; None: all, or the scheduler is not told."""
    succeeded: int = 0
    """Pods that have succeeded, and that a scheduler which only counts pods that are to run does not see."""
    incomplete: bool = False
    """Whether a pod is missing, or has no node."""
    bound: int = 0
    """Pods that have a node."""
    wishes: Wishes = Wishes()

    @property
    def total(self) -> int:
        return sum(task.replicas for task in self.tasks)

    @property
    def min_member(self) -> int:
        """The number of pods that are scheduled together, as upstream also if the job has fewer."""
        wanted = self.policy.min_available
        if wanted is None:
            wanted = self.total if self.elastic_minimum is None else self.elastic_minimum
        return max(wanted, self.scheduler.least_members)

    def members(self, found: int | None) -> int:
        """The number that the PodGroup has to have, if it has `found` now. kube-scheduler counts no pods that have
        ended: it would never start the replacement of one if others had succeeded. A lower number stays until a pod is
        missing again, so that it is not written for each pod that ends."""
        wanted = self.min_member
        least = (
            min(wanted, max(1, self.total - self.succeeded)) if self.scheduler.in_tree and self.succeeded else wanted
        )
        return found if found is not None and least <= found <= wanted and not self.incomplete else least


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


def policy_class(spec: Json) -> str:
    """The priority class of the scheduling policy in the raw spec of a job; empty if it has none."""
    found: object = spec
    for name in ("runPolicy", "schedulingPolicy", "priorityClass"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


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
    policy, resources = gang.policy, gang.policy.min_resources
    if resources is None:
        resources = {name: str(amount) for name, amount in min_resources(gang, seen).items()}
    given, present = policy.queue, (found.queue if found else None) or ""
    wanted: Json = {
        "minMember": gang.members(found.least if found is not None else None),
        "queue": (given or present if gang.queue_follows else present or given) or DEFAULT_QUEUE,
        "priorityClassName": policy.priority_class or None,
        "scheduleTimeoutSeconds": policy.schedule_timeout,
        "minResources": dict(resources) or None,
    }
    return {name: wanted[name] for name in gang.scheduler.fields}


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


def find_unsatisfiable(gang: Gang) -> str:
    """Why the scheduler never starts the pods, whatever room there is; empty if it may."""
    least, total = gang.policy.min_available, gang.total
    if least is None or not 0 < total < least:
        return ""
    pods = "pod is" if total == 1 else "pods are"
    text = f"{POLICY}.minAvailable is {least}, and only {total} {pods} scheduled together"
    return f"{text}: pods that are not running yet never start. Set it to {total} or less, or remove it"


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
