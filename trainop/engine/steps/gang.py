"""The PodGroup of a job with replica types: a companion for which the pods of the job wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainop.engine.actions import LOOK_AGAIN, Event, Need, Patch
from trainop.engine.fields import Fields, sentence
from trainop.engine.framework import Companion, CompanionKind
from trainop.engine.gang import (
    Gang,
    Task,
    changed_fields,
    find_unsatisfiable,
    group_fields,
    read_policy,
    unknown_classes,
)
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.job import Job
from trainop.engine.kube_gang import WORKLOADS, elastic_minimum, group_spec, read_wishes, workload
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import SCHEDULED, Options, PodGroup, PodGroupCondition
from trainop.engine.status import GANG_READY
from trainop.engine.steps.builder import PlanBuilder, ReplicasBuilder
from trainop.engine.steps.companions import reconcile_companions
from trainop.engine.waiting import GANG_NOT_READY
from trainop.runtime import Json

GATE_REQUEUE = 10.0
"""Seconds until a job is examined again whose pods wait. Usually an event of its PodGroup comes first."""

UNAVAILABLE = "PodGroupUnavailable"
REFUSED = "PodGroupRefused"
NAME_TAKEN = "PodGroupNameTaken"
UNREADABLE = "PodGroupUnreadable"
UNSATISFIABLE = "MinAvailableUnsatisfiable"
CLAIMS_DROPPED = "ResourceClaimsDropped"
PLACED = PodGroupCondition(SCHEDULED, "True", "Scheduled")
"""As kube-scheduler says it."""


def group_kinds(options: Options) -> tuple[CompanionKind, ...]:
    """The PodGroup, and a Workload if it has one, as kinds of companions; empty without gang scheduling."""
    if options.gang is None:
        return ()
    groups = CompanionKind(options.gang.groups, Need.PODS, removal=_describe_removal)
    return (groups, WORKLOADS) if options.gang.in_tree else (groups,)


def _describe_removal(name: str) -> tuple[Event, ...]:
    ended = Event("Normal", "JobTerminated", "Job has been terminated. Deleting PodGroup")
    return ended, Event("Normal", "SuccessfulDeletePodGroup", f"Deleted PodGroup: {name}")


def disband(builder: PlanBuilder, kinds: Iterable[CompanionKind] = ()) -> None:
    """Deletes the PodGroup of a job that has finished or is suspended, and its companions of these kinds that pods do
    not refer to."""
    builder.status.remove(GANG_READY)
    reconcile_companions(builder, (*group_kinds(builder.seen.options), *kinds), ())


class Problem(NamedTuple):
    """Why the job cannot have its PodGroup: reason and message of a condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about the PodGroup."""

    held: bool = False
    """It is not written, and no pods are created."""
    problem: Problem | None = None
    requeue_after: float | None = None
    correction: Patch | None = None
    """What an existing PodGroup lacks."""


class GangStep:
    """The PodGroup of a job that is neither finished nor suspended, and whose roles are readable."""

    def __init__(
        self, builder: PlanBuilder, job: Job, scheduler: GangScheduler, *, queue_follows: bool = False
    ) -> None:
        """`job`: as its PodGroup sees it. `queue_follows`: see `Gang`."""
        self._builder = builder
        self._fields = Fields()
        """The errors of the scheduling policy."""
        self._gang = _describe(builder, job, scheduler, self._fields, queue_follows=queue_follows)
        self._group: PodGroup | None = next(iter(builder.seen.companions.get(scheduler.groups, ())), None)
        """The PodGroup with the job's name, of any owner."""
        self._verdict = self._examine(self._gang, self._group)

    @property
    def kinds(self) -> Sequence[CompanionKind]:
        """The kinds of what `form` returns."""
        return group_kinds(self._builder.seen.options)

    @property
    def formed(self) -> bool:
        """Whether pods may be created and their PodGroup exists. A PodGroup that this plan creates may be refused."""
        return not self._verdict.held and self._group is not None and _admits(self._gang, self._group)

    @property
    def impeded(self) -> bool:
        """Whether the PodGroup cannot be written, for a reason that is shown."""
        return self._verdict.problem is not None

    def form(self, *, complete: bool) -> Sequence[Companion]:
        """Shows what the job waits for, and returns the PodGroup for `reconcile_companions`. `complete`: no pod is
        missing."""
        gang, verdict, builder = self._gang, self._verdict, self._builder
        self._warn(gang)
        self._show(gang, complete=complete)
        if verdict.problem is not None or not complete:
            builder.requeue_after(verdict.requeue_after)
        annotations = builder.metadata.annotations.items()
        made = Companion(
            self.kinds[0],
            builder.metadata.name,
            inputs="",
            content=lambda: {"spec": self._spec(gang)},
            # The restart history is the operator's own state.
            annotations={name: text for name, text in annotations if name != RESTARTS},
            ready=(lambda found: _admits(gang, found)) if gang.scheduler.waiting_phases else None,
            correct=lambda _: verdict.correction,
            held=verdict.held,
        )
        if not gang.scheduler.in_tree:
            return (made,)
        return made, workload(gang, builder.metadata, builder.words.resource)._replace(held=verdict.held)

    def _spec(self, gang: Gang) -> Json:
        if gang.scheduler.in_tree:
            return group_spec(gang, self._builder.metadata.name)
        fields = group_fields(gang, self._builder.seen.gang)
        return {name: value for name, value in fields.items() if value is not None}

    # The decision -----------------------------------------------------------------------------------------------------

    def _examine(self, gang: Gang, group: PodGroup | None) -> Verdict:
        seen = self._builder.seen.gang
        if hindered := self._find_hindrance(group):
            return hindered
        gate = None if _admits(gang, group) else GATE_REQUEUE
        correction = None if group is None else self._correct(gang, group)
        if not seen.refused or (group is not None and correction is None):
            return Verdict(requeue_after=gate, correction=correction)
        problem = Problem(REFUSED, f"The API server refuses the PodGroup: {seen.refused}")
        if seen.retry_in <= 0:
            return Verdict(problem=problem, requeue_after=gate, correction=correction)
        if group is None:
            return Verdict(held=True, problem=problem, requeue_after=seen.retry_in)
        # a refused correction holds up no pods
        return Verdict(problem=problem, requeue_after=min(seen.retry_in, gate or seen.retry_in))

    def _find_hindrance(self, group: PodGroup | None) -> Verdict | None:
        """Why the PodGroup cannot be written; None if nothing is in the way."""
        builder, seen = self._builder, self._builder.seen.gang
        problem, requeue_after = None, LOOK_AGAIN
        if seen.unavailable:
            problem = Problem(UNAVAILABLE, f"Pods wait for their PodGroup: {seen.unavailable}")
            requeue_after = GATE_REQUEUE
        elif group is not None and builder.is_going(group.metadata):
            requeue_after = GATE_REQUEUE
        elif group is not None and not builder.owns(group):
            text = builder.fill("PodGroup {name} already exists and does not belong to {kind} {name}")
            problem = Problem(NAME_TAKEN, text)
        elif seen.fault:
            problem = Problem(UNREADABLE, f"PodGroup {builder.metadata.name} cannot be read: {seen.fault}")
        else:
            return None
        return Verdict(held=True, problem=problem, requeue_after=requeue_after)

    def _correct(self, gang: Gang, group: PodGroup) -> Patch | None:
        changes = changed_fields(group_fields(gang, self._builder.seen.gang, group.spec), group.spec)
        if not changes:
            return None
        resource, found = gang.scheduler.groups, group.metadata
        body = {"spec": gang.scheduler.shape(changes)}
        return Patch(resource, found.name, found.uid, body, version=found.resource_version, need=Need.PODS)

    # What is shown ----------------------------------------------------------------------------------------------------

    def _show(self, gang: Gang, *, complete: bool) -> None:
        builder, shown, seen = self._builder, self._verdict.problem, self._builder.seen
        waiting = not complete or any(pod.status.phase == "Pending" for pod in seen.pods)
        if shown is None and waiting and (text := find_unsatisfiable(gang)):
            shown = Problem(UNSATISFIABLE, text)
        if shown is not None:
            builder.status.set_first(GANG_READY, "False", shown.reason, shown.message)
            builder.wait(GANG_NOT_READY, shown.message)
            self._warn_of(shown)
            return
        if gang.scheduler.in_tree and self._group is not None and not self._verdict.held:
            self._show_scheduled(gang, self._group)
            return
        builder.status.remove(GANG_READY)
        if not complete and (self._verdict.held or not _admits(gang, self._group)):
            phase = self._group.status.phase if self._group is not None else None
            why = f"its phase is {phase}" if phase else "its scheduler has not set a phase"
            builder.wait(GANG_NOT_READY, f"Pods wait for PodGroup {builder.metadata.name}", why)

    def _show_scheduled(self, gang: Gang, group: PodGroup) -> None:
        """Shows what kube-scheduler says of the group."""
        builder, said = self._builder, group.status.scheduled
        if gang.wishes.claims and not group.spec.resource_claims:
            text = "The API server has dropped resourceClaims from the PodGroup, so that each pod gets its own"
            builder.warn("gang-claims", CLAIMS_DROPPED, f"{text}: turn on the feature gate DRAWorkloadResourceClaims")
        if said is None:
            builder.status.remove(GANG_READY)
            if gang.incomplete:
                why = "kube-scheduler has not looked at it; its feature gate GenericWorkload may be off"
                builder.wait(GANG_NOT_READY, f"Pods wait for PodGroup {builder.metadata.name}", why)
            return
        if said.status != "True" and self._was_placed(gang, group):
            said = PLACED
        builder.status.set_first(GANG_READY, said.status, said.reason, said.message)
        if said.status != "True":
            builder.wait(GANG_NOT_READY, f"Pods wait for PodGroup {builder.metadata.name}", said.message)

    def _was_placed(self, gang: Gang, group: PodGroup) -> bool:
        """Whether the group has had its place before: kube-scheduler 1.37 means to keep such a verdict, but replaces it
        if it judges further pods by a copy of the group from before. This operator may see the second one only."""
        return self._builder.status.is_true(GANG_READY) or 0 < group.spec.least <= gang.bound

    def _warn_of(self, problem: Problem) -> None:
        builder = self._builder
        if problem.reason == NAME_TAKEN:
            builder.warn_name_taken("PodGroup", builder.metadata.name)
        elif problem.reason == UNREADABLE:
            builder.warn_unreadable("PodGroup", builder.metadata.name, builder.seen.gang.fault)
        elif problem.reason == UNSATISFIABLE:
            builder.warn("unsatisfiable", problem.reason, problem.message)

    def _warn(self, gang: Gang) -> None:
        """Warns about what the job asks for in vain."""
        builder, fields = self._builder, self._fields
        if fields.errors:
            builder.warn("scheduling-policy", "InvalidSchedulingPolicy", sentence(fields.errors, fields.more))
        if missing := unknown_classes(gang, builder.seen.gang):
            text = f"PriorityClasses that do not exist count as priority 0 in minResources: {', '.join(missing)}"
            builder.warn("priority-classes", "UnknownPriorityClass", text)


def _admits(gang: Gang, group: PodGroup | None) -> bool:
    """Whether pods may be created, as far as the scheduler of their PodGroup decides."""
    phase = (group.status.phase or "") if group is not None else ""
    return phase not in gang.scheduler.waiting_phases


def warn_of_other_schedulers(builder: ReplicasBuilder, scheduler: GangScheduler) -> None:
    """Warns if a template names another scheduler. Call when pods are created."""
    if any(scheduler.names_another(role.template) for role in builder.job.roles):
        text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
        if scheduler.in_tree:
            text = "schedulingGroup is specified when gang-scheduling is enabled and it will not be overwritten"
        builder.warn("scheduler-name", f"{builder.framework.template_warnings}SchedulerName", text)


def _describe(builder: PlanBuilder, job: Job, scheduler: GangScheduler, fields: Fields, *, queue_follows: bool) -> Gang:
    policy = job.spec.get("runPolicy")
    gang = Gang(
        scheduler,
        tasks=[Task(role.replicas, role.template.get("spec") or {}) for role in job.roles],
        policy=read_policy(fields, policy.get("schedulingPolicy") if isinstance(policy, dict) else None),
        queue_follows=queue_follows,
    )
    return _complete(builder, job, fields, gang) if scheduler.in_tree else gang


def _complete(builder: PlanBuilder, job: Job, fields: Fields, gang: Gang) -> Gang:
    """The gang with what only kube-scheduler is told."""
    pods = [pod for pod in builder.seen.pods if builder.owns(pod)]
    bound = sum(bool(pod.spec.node_name) for pod in pods)
    specs = [task.spec for task in gang.tasks]
    return replace(
        gang,
        elastic_minimum=elastic_minimum(job),
        succeeded=sum(pod.status.phase == "Succeeded" for pod in pods),
        incomplete=len(pods) < gang.total or bound < len(pods),
        bound=bound,
        wishes=read_wishes(fields, builder.metadata.annotations, specs),
    )
