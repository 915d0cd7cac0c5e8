"""Restarts: the pods are counted and deleted; a later reconcile that finds their names free creates new ones.

With on-disruption `checkpoint-all` a disruption restarts the whole job (`disruptions`), before the pod has ended.

The annotation restart-scope extends a restart to all pods of the role or of the job (the restart group). Then all of
them are deleted, new ones are created only after all are gone, and the restart is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainop.engine.actions import delete_pod
from trainop.engine.assess import Assessment
from trainop.engine.children import RoleSlots
from trainop.engine.disruptions import is_restarting_together
from trainop.engine.failures import Restart, restart_group
from trainop.engine.job import Job
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod
from trainop.engine.status import RESTARTING
from trainop.engine.steps.builder import PlanBuilder, ReplicasBuilder
from trainop.runtime.lowlevel import read_time


def restart(builder: ReplicasBuilder, found: Assessment, *, why: str = "") -> None:
    """Counts new restarts, deletes their pods and sets the condition Restarting. `why`: the reason of a restart of pods
    that have not failed, such as `Stalled`."""
    history, findings = found.history, found.findings
    history.count(found.new_restarts.failures, found.new_restarts.disruptions)
    new: dict[str, int] = {}
    for each in findings.restarts:
        role = each.role.type
        new.setdefault(role, 0)
        if not history.is_counted(each.pod.metadata.uid):
            new[role] += 1
            history.mark_counted(each.pod.metadata.uid)
            created = read_time(each.pod.metadata.creation_timestamp)
            history.begin_round(restart_group(builder.job, role), created, builder.seen.now)
    if findings.restarts:
        history.end_burst()
    peers = _everyone(found) if findings.together else _peers(builder.job, found.role_slots, new, history)
    for pod in _unique((*(each.pod for each in findings.restarts), *peers)):
        history.mark_counted(pod.metadata.uid)
        if not pod.metadata.terminating:
            builder.actions.append(delete_pod(pod))
    if findings.together:
        _report_disruption(builder, findings.restarts)
    else:
        _report(builder, new, findings.restarts, why)


def _everyone(found: Assessment) -> Iterator[Pod]:
    """All pods in slots. Those that are terminating already must not count as disrupted later."""
    for slots in found.role_slots:
        yield from slots.all_pods()


def _unique(pods: Iterable[Pod]) -> Iterable[Pod]:
    return {pod.metadata.uid: pod for pod in pods}.values()


def _peers(job: Job, all_slots: Iterable[RoleSlots], new: dict[str, int], history: RestartHistory) -> Iterator[Pod]:
    """The other pods of restart groups with a new restart, which have to be deleted as well."""
    if job.extensions.restart_scope == "pod":
        return
    doomed = {restart_group(job, role) for role, count in new.items() if count}
    for slots in all_slots:
        if restart_group(job, slots.role.type) in doomed:
            yield from (pod for pod in slots.pods.values() if not history.is_counted(pod.metadata.uid))


def _report_disruption(builder: ReplicasBuilder, disrupted: Sequence[Restart]) -> None:
    """Adds condition, event and counter once for the whole job."""
    roles = " and ".join(dict.fromkeys(each.role.type for each in disrupted))
    kind, name, count = builder.framework.kind, builder.job.name, len(disrupted)
    text = f"{kind} {name} is restarting because {count} {roles} replica(s) were disrupted. All replicas save and end."
    text = builder.with_cause(text)
    builder.status.set(RESTARTING, builder.reason(RESTARTING), text)
    builder.event(builder.reason(RESTARTING), text, "Warning")
    builder.count("restarted")


def _report(builder: ReplicasBuilder, new: dict[str, int], restarts: Sequence[Restart], why: str) -> None:
    """Adds condition, event and counter: once per role, or once for the job with scope `job`. `new` is role -> number
    of new restarts."""
    scope = builder.job.extensions.restart_scope
    if scope == "job" and new:
        first = next((role for role, count in new.items() if count), next(iter(new)))
        new = {first: sum(new.values())}
    for role, count in new.items():
        text = builder.with_cause(describe_restart(builder, why) if why else _describe(builder, role, restarts))
        if builder.status.set(RESTARTING, builder.reason(RESTARTING), text) or count:
            builder.event(builder.reason(RESTARTING), text, "Warning")
        if count:
            builder.count("restarted", count if scope == "pod" else 1)


def describe_restart(builder: PlanBuilder, why: str) -> str:
    """The message for a restart of the whole job of which no replica has failed."""
    return builder.fill("{kind} {name} is restarting as a whole (" + why + ").")


def _describe(builder: ReplicasBuilder, role: str, restarts: Sequence[Restart]) -> str:
    """The message for the restarts of a role. Upstream's differs for pods that another client deletes."""
    phases = [each.pod.status.phase for each in restarts if each.role.type == role]
    if "Failed" in phases:
        return f"job {builder.job.name} is restarting because {role} replica(s) failed."
    return builder.fill(builder.framework.texts(builder.job).restarting, count=len(phases), role=role)


def count_failed_pods(builder: ReplicasBuilder, found: Assessment) -> None:
    """Counts each failed pod once: restarted pods are in the history afterwards, and a fatal failure ends the job."""
    restarts = (pod for _, pod, _ in found.findings.restarts if pod.status.phase == "Failed")
    count = sum(not found.history.is_counted(pod.metadata.uid) for pod in restarts)
    count += sum(fatal_failure.count for fatal_failure in found.findings.fatal_failures)
    if count:
        builder.count("failed_pods", count)


def count_disruptions(builder: ReplicasBuilder, found: Assessment) -> None:
    """Counts disruptions once each, as `count_failed_pods`; a restart of a group counts once."""
    fatal = sum(fatal_failure.disruptions for fatal_failure in found.findings.fatal_failures)
    if count := found.new_restarts.disruptions + fatal:
        builder.count("disrupted", count)


def is_restart_pending(builder: ReplicasBuilder, found: Assessment) -> bool:
    """Whether a restarted replica has not been replaced yet, or not all have restarted in place."""
    if found.burst is not None and not found.burst.settled:
        return True
    return builder.status.is_true(RESTARTING) and any(not slots.full for slots in found.role_slots)


def restarting_groups(job: Job, found: Assessment) -> set[str]:
    """The restart groups that get no new pods yet, because some of their pods are not gone."""
    if job.extensions.checkpoint.together and is_restarting_together(found.role_slots, found.history):
        return {restart_group(job, role.type) for role in job.roles}
    if job.extensions.restart_scope == "pod":
        return set()
    roles = [each.role.type for each in found.findings.restarts]
    roles += [slots.role.type for slots in found.role_slots if slots.terminating]
    return {restart_group(job, role) for role in roles}
