"""Restarts: pods give way, and the next pass that finds their names free makes new ones.

A restart may take more with it than the pod that failed: by the annotation restart-scope all pods of its role, or of
the job. Then all of them go, none is made before all have gone, and it counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trainop.engine.builder import PlanBuilder
from trainop.engine.cleanup import delete_pod
from trainop.engine.failures import Findings, Restart
from trainop.engine.job import Job
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod
from trainop.engine.slots import RoleSlots
from trainop.engine.status import RESTARTING
from trainop.runtime.clock import read_time

WHOLE_JOB = "*"


def restartable(job: Job, restarts: Sequence[Restart]) -> list[Restart]:
    """Those that can be followed by new pods: a failed pod stays as long as its successor cannot be made."""
    held = {restart_group(job, role.type) for role in job.roles if not (role.makeable and job.readable)}
    return [restart for restart in restarts if restart_group(job, restart.role.type) not in held]


class NewRestarts(NamedTuple):
    """Restarts that this pass has found and no earlier one has counted, by the budget that they fall under."""

    failures: int
    disruptions: int


def restart_group(job: Job, role: str) -> str:
    """Names what restarts together: a role, or all of the job."""
    return WHOLE_JOB if job.extensions.restart_scope == "job" else role


def count_new_restarts(job: Job, findings: Findings, history: RestartHistory) -> NewRestarts:
    """Each pod is a restart, or each circle of pods, which is a disruption if any pod of it was disrupted: its peers
    fail because of that one."""
    fresh = [restart for restart in findings.restarts if not history.settled(restart.pod.metadata.uid)]
    if job.extensions.restart_scope == "pod":
        disruptions = sum(restart.disrupted for restart in fresh)
        return NewRestarts(len(fresh) - disruptions, disruptions)
    circles = {restart_group(job, restart.role.type) for restart in fresh}
    disrupted = {restart_group(job, restart.role.type) for restart in fresh if restart.disrupted}
    return NewRestarts(len(circles - disrupted), len(disrupted))


def restart(
    builder: PlanBuilder,
    all_slots: Sequence[RoleSlots],
    findings: Findings,
    history: RestartHistory,
    fresh: NewRestarts,
) -> None:
    """Delete the pods that restart, count them once, and say so."""
    history.count(fresh.failures, fresh.disruptions)
    new: dict[str, int] = {}
    for found in findings.restarts:
        role = found.role.type
        new.setdefault(role, 0)
        if not history.settled(found.pod.metadata.uid):
            new[role] += 1
            history.settle(found.pod.metadata.uid)
            born = read_time(found.pod.metadata.creation_timestamp)
            history.begin_round(restart_group(builder.job, role), born, builder.seen.now)
    for pod in (*(found.pod for found in findings.restarts), *_peers(builder.job, all_slots, new, history)):
        history.settle(pod.metadata.uid)
        if not pod.metadata.terminating:
            builder.actions.append(delete_pod(pod))
    _tell(builder, new)


def _peers(job: Job, all_slots: Iterable[RoleSlots], new: dict[str, int], history: RestartHistory) -> Iterator[Pod]:
    """Pods that have to go because others of their circle restart."""
    if job.extensions.restart_scope == "pod":
        return
    doomed = {restart_group(job, role) for role, count in new.items() if count}
    for slots in all_slots:
        if restart_group(job, slots.role.type) in doomed:
            yield from (pod for pod in slots.holders.values() if not history.settled(pod.metadata.uid))


def _tell(builder: PlanBuilder, new: dict[str, int]) -> None:
    """One event for each role, or for the whole job if that restarts; `new` has the fresh restarts of each role."""
    scope = builder.job.extensions.restart_scope
    if scope == "job" and new:
        first = next((role for role, count in new.items() if count), next(iter(new)))
        new = {first: sum(new.values())}
    for role, count in new.items():
        text = f"job {builder.job.name} is restarting because {role} replica(s) failed."
        if builder.status.set(RESTARTING, builder.reason(RESTARTING), text) or count:
            builder.event(builder.reason(RESTARTING), text, "Warning")
        if count:
            builder.count("restarted", count if scope == "pod" else 1)


def going(job: Job, all_slots: Iterable[RoleSlots], findings: Findings) -> set[str]:
    """The circles that get no pods yet, because some of them are still to go."""
    if job.extensions.restart_scope == "pod":
        return set()
    roles = [found.role.type for found in findings.restarts] + [slots.role.type for slots in all_slots if slots.dying]
    return {restart_group(job, role) for role in roles}
