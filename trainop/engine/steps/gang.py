"""The PodGroup of a job with replica types: created, kept up to date and deleted as `trainop.engine.gang` decides."""

from __future__ import annotations

from trainop.engine.actions import Event, Remove, is_creation
from trainop.engine.fields import Fields, sentence
from trainop.engine.framework import selector
from trainop.engine.gang import (
    NAME_TAKEN,
    UNREADABLE,
    UNSATISFIABLE,
    Gang,
    Problem,
    Task,
    Verdict,
    examine,
    find_unsatisfiable,
    read_policy,
    unknown_classes,
)
from trainop.engine.job import Job
from trainop.engine.restart_history import RESTARTS
from trainop.engine.status import GANG_READY
from trainop.engine.steps.builder import PlanBuilder, ReplicasBuilder
from trainop.engine.waiting import GANG_NOT_READY


class GangStep:
    """The PodGroup of a job that is neither finished nor suspended. Without gang scheduling, and for a job whose roles
    are unreadable and which therefore gets no pods, it does nothing."""

    def __init__(self, builder: PlanBuilder, job: Job, *, queue_follows: bool = False) -> None:
        """`job`: as its PodGroup sees it. `queue_follows`: see `Gang`."""
        self._builder = builder
        self._fields = Fields()
        """The errors of the scheduling policy."""
        self._gang = _describe(builder, job, self._fields, queue_follows=queue_follows)
        self._verdict = Verdict() if self._gang is None else examine(self._gang, builder.seen.gang)

    @property
    def open(self) -> bool:
        """Whether pods may be created."""
        return self._verdict.open

    @property
    def formed(self) -> bool:
        """Whether pods may be created and their PodGroup exists. A PodGroup that this plan creates may be refused."""
        action = self._verdict.action
        return self._verdict.open and not (action is not None and is_creation(action))

    @property
    def impeded(self) -> bool:
        """Whether the PodGroup cannot be written, for a reason that is shown."""
        return self._verdict.problem is not None

    def form(self, *, complete: bool) -> None:
        """Creates or updates the PodGroup, and shows what the job waits for. `complete`: no pod is missing. Only for a
        job whose roles are readable."""
        gang, verdict, builder = self._gang, self._verdict, self._builder
        if gang is None:
            builder.status.remove(GANG_READY)  # gang scheduling may have been on before
            return
        self._warn(gang)
        waiting = not complete or any(pod.status.phase == "Pending" for pod in builder.seen.pods)
        shown = verdict.problem or (find_unsatisfiable(gang) if waiting else None)
        _show(builder, gang, shown)
        if verdict.action is not None:
            builder.actions.append(verdict.action)
        if shown is not None:
            builder.wait(GANG_NOT_READY, shown.message)
        elif not verdict.open and not complete:
            builder.wait(GANG_NOT_READY, f"Pods wait for PodGroup {gang.name}", self._describe_phase())
        if verdict.problem is not None or not complete:
            builder.requeue_after(verdict.requeue_after)

    def _describe_phase(self) -> str:
        group = self._builder.seen.gang.group
        phase = group.status.phase if group is not None else None
        return f"its phase is {phase}" if phase else "its scheduler has not set a phase"

    def _warn(self, gang: Gang) -> None:
        """Warns about what the job asks for in vain."""
        builder, fields = self._builder, self._fields
        if fields.errors:
            builder.warn("scheduling-policy", "InvalidSchedulingPolicy", sentence(fields.errors, fields.more))
        if missing := unknown_classes(gang, builder.seen.gang):
            text = f"PriorityClasses that do not exist count as priority 0 in minResources: {', '.join(missing)}"
            builder.warn("priority-classes", "UnknownPriorityClass", text)


def _show(builder: PlanBuilder, gang: Gang, problem: Problem | None) -> None:
    if problem is None:
        builder.status.remove(GANG_READY)
        return
    builder.status.set_first(GANG_READY, "False", problem.reason, problem.message)
    if problem.reason == NAME_TAKEN:
        builder.warn_name_taken("PodGroup", gang.name)
    elif problem.reason == UNREADABLE:
        builder.warn_unreadable("PodGroup", gang.name, builder.seen.gang.fault)
    elif problem.reason == UNSATISFIABLE:
        builder.warn("unsatisfiable", problem.reason, problem.message)


def disband_gang(builder: PlanBuilder) -> None:
    """Deletes the PodGroup of a job that has finished or is suspended."""
    scheduler, group = builder.seen.options.gang, builder.seen.gang.group
    builder.status.remove(GANG_READY)
    if scheduler is None or group is None:
        return
    if builder.owns(group) and not group.metadata.terminating:
        name = group.metadata.name
        ended = Event("Normal", "JobTerminated", "Job has been terminated. Deleting PodGroup")
        deleted = Event("Normal", "SuccessfulDeletePodGroup", f"Deleted PodGroup: {name}")
        builder.actions.append(Remove(scheduler.groups, name, group.metadata.uid, then=(ended, deleted)))


def warn_of_other_schedulers(builder: ReplicasBuilder) -> None:
    """Warns if a template names another scheduler. Call when pods are created."""
    scheduler = builder.seen.options.gang
    if scheduler is not None and any(scheduler.names_another(role.template) for role in builder.job.roles):
        text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
        builder.warn("scheduler-name", f"{builder.framework.template_warnings}SchedulerName", text)


def _describe(builder: PlanBuilder, job: Job, fields: Fields, *, queue_follows: bool) -> Gang | None:
    scheduler = builder.seen.options.gang
    if scheduler is None or not job.readable:
        return None
    policy = job.spec.get("runPolicy")
    return Gang(
        scheduler,
        metadata={
            "name": job.name,
            "namespace": job.namespace,
            "labels": selector(builder.words, job.name),
            # The restart history is the operator's own state.
            "annotations": {name: text for name, text in job.metadata.annotations.items() if name != RESTARTS},
            "ownerReferences": [builder.owner],
        },
        tasks=[Task(role.replicas, role.template.get("spec") or {}) for role in job.roles],
        policy=read_policy(fields, policy.get("schedulingPolicy") if isinstance(policy, dict) else None),
        queue_follows=queue_follows,
    )
