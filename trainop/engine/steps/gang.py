"""The PodGroup of a job with replica types: created, kept up to date and deleted as `trainop.engine.gang` decides."""

from __future__ import annotations

from trainop.engine.actions import CreateGroup, DeleteGroup
from trainop.engine.fields import Fields, sentence
from trainop.engine.framework import selector
from trainop.engine.gang import (
    NAME_TAKEN,
    UNREADABLE,
    Gang,
    Problem,
    Task,
    Verdict,
    examine,
    is_owned,
    read_policy,
    unknown_classes,
)
from trainop.engine.restart_history import RESTARTS
from trainop.engine.status import GANG_READY
from trainop.engine.steps.builder import PlanBuilder
from trainop.runtime.objects.metadata import owner_reference


class GangStep:
    """The PodGroup of a job that is neither finished nor suspended. Without gang scheduling, and for a job whose roles
    are unreadable and which therefore gets no pods, it does nothing."""

    def __init__(self, builder: PlanBuilder) -> None:
        self._builder = builder
        self._fields = Fields()
        """The errors of the scheduling policy."""
        self._gang = _describe(builder, self._fields)
        self._verdict = Verdict() if self._gang is None else examine(self._gang, builder.seen.gang)

    @property
    def open(self) -> bool:
        """Whether pods may be created."""
        return self._verdict.open

    @property
    def formed(self) -> bool:
        """Whether pods may be created and their PodGroup exists. A PodGroup that this plan creates may be refused."""
        return self._verdict.open and not isinstance(self._verdict.action, CreateGroup)

    def form(self, *, complete: bool) -> None:
        """Creates or updates the PodGroup, and shows what the job waits for. `complete`: no pod is missing. Only for a
        job whose roles are readable."""
        gang, verdict, builder = self._gang, self._verdict, self._builder
        if gang is None:
            builder.status.remove(GANG_READY)  # gang scheduling may have been on before
            return
        self._warn(gang)
        _show(builder, gang, verdict.problem)
        if verdict.action is not None:
            builder.actions.append(verdict.action)
        if verdict.problem is not None or not complete:
            builder.requeue_after(verdict.requeue_after)

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


def disband_gang(builder: PlanBuilder) -> None:
    """Deletes the PodGroup of a job that has finished or is suspended."""
    scheduler, group = builder.seen.options.gang, builder.seen.gang.group
    builder.status.remove(GANG_READY)
    if scheduler is None or group is None:
        return
    if is_owned(group, builder.job.metadata.uid) and not group.metadata.terminating:
        builder.actions.append(DeleteGroup(scheduler.groups, group.metadata.name, group.metadata.uid))


def warn_of_other_schedulers(builder: PlanBuilder) -> None:
    """Warns if a template names another scheduler. Call when pods are created."""
    scheduler = builder.seen.options.gang
    if scheduler is not None and any(scheduler.names_another(role.template) for role in builder.job.roles):
        text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
        builder.warn("scheduler-name", "SetPodTemplateSchedulerName", text)


def _describe(builder: PlanBuilder, fields: Fields) -> Gang | None:
    job, scheduler = builder.job, builder.seen.options.gang
    if scheduler is None or not job.readable:
        return None
    framework, metadata = builder.framework, job.metadata
    owner = owner_reference(framework.resource.api_version, framework.kind, job.name, metadata.uid)
    policy = job.spec.get("runPolicy")
    return Gang(
        scheduler,
        metadata={
            "name": job.name,
            "namespace": job.namespace,
            "labels": selector(framework, job.name),
            # The restart history is the operator's own state.
            "annotations": {name: text for name, text in metadata.annotations.items() if name != RESTARTS},
            "ownerReferences": [owner],
        },
        tasks=[Task(role.replicas, role.template.get("spec") or {}) for role in job.roles],
        policy=read_policy(fields, policy.get("schedulingPolicy") if isinstance(policy, dict) else None, job.replicas),
    )
