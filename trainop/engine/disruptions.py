"""Disruptions that restart the whole job: with on-disruption `checkpoint-all`, another client that begins to end one
pod ends all of them, so that the replicas can save together.

The restart begins while the disrupted pod still runs, and counts as one disruption, however many pods are disrupted
until all are gone. A replica that exits with code 0 because it was asked to end has not succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainop.engine.children import RoleSlots
from trainop.engine.failures import EVICTED, Findings, Restart, had_succeeded, is_disruption_target
from trainop.engine.job import Job
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod

_ENDING = frozenset({"Running", "Failed", "Unknown"})
"""Phases of a pod that is not terminating yet: with the condition DisruptionTarget, its end is certain."""


def is_disrupted(pod: Pod) -> bool:
    """Whether another client, its node or a controller ends the pod, or has ended it, after it had started. The caller
    knows that the operator does not."""
    if pod.status.phase == "Pending" or pod.never_ran or had_succeeded(pod):
        return False
    announced = pod.status.reason == EVICTED or is_disruption_target(pod)
    return pod.metadata.terminating or (pod.status.phase in _ENDING and announced)


def find_disruptions(job: Job, all_slots: Sequence[RoleSlots], history: RestartHistory) -> Findings | None:
    """The disrupted pods, if they restart the whole job. None: failures and disruptions are examined as in any job,
    also if the spec has errors by which replicas could not be replaced."""
    if not (job.extensions.checkpoint.together and job.readable and all(role.has_valid_template for role in job.roles)):
        return None
    found = [
        Restart(slots.role, pod, disrupted=True)
        for slots in all_slots
        for pod in slots.all_pods()
        if not history.is_counted(pod.metadata.uid) and is_disrupted(pod)
    ]
    return Findings(found, together=True) if found else None


def is_restarting_together(all_slots: Iterable[RoleSlots], history: RestartHistory) -> bool:
    """Whether pods are left from before a restart of the whole job, which keep it from creating new ones. Only for jobs
    with `checkpoint-all`."""
    return any(history.is_counted(pod.metadata.uid) for slots in all_slots for pod in slots.all_pods())


def find_void(all_slots: Iterable[RoleSlots], history: RestartHistory) -> frozenset[str]:
    """The UIDs of pods whose success does not count, if the job saves checkpoints, because they were asked to end: a
    program that saves on SIGTERM often exits with code 0."""
    ended = (pod for slots in all_slots for pod in slots.all_pods() if pod.status.phase == "Succeeded")
    return frozenset(pod.metadata.uid for pod in ended if _was_asked(pod, history))


def _was_asked(pod: Pod, history: RestartHistory) -> bool:
    return history.is_counted(pod.metadata.uid) or (pod.metadata.terminating and not had_succeeded(pod))
