"""The root cause of what an assessment found: the failures of replicas that are down now, those from which the kubelet
has restarted a container in place, and the last failure that the status remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import nsmallest

from trainop.engine.addresses import child_name
from trainop.engine.assess import Assessment
from trainop.engine.ends import DELETED, RESET, Place, failure_of, order_of, past_failure_of
from trainop.engine.framework import Framework
from trainop.engine.in_place import Burst
from trainop.engine.job import Job, Role
from trainop.engine.limits import Limit
from trainop.engine.root_cause import Failure, find_cause
from trainop.engine.seen import Pod
from trainop.engine.slots import read_place
from trainop.engine.words import UNKNOWN_ENDS, count_running

MAX_EXAMINED = 64
"""Pods that failed first of which everything is read; of the others only the time. A job may have thousands."""


def find_root_cause(
    framework: Framework, job: Job, found: Assessment, remembered: Failure | None, now: datetime
) -> Failure | None:
    """The root cause of the restarts and failures of this reconcile, and of restarts in place; None if nothing has
    failed. `remembered` is the stored `lastFailure`, `now` the wall clock."""
    history = found.history
    pods = [(each.role, each.pod) for each in found.findings.restarts if not history.is_counted(each.pod.metadata.uid)]
    pods += [(fatal.role, pod) for fatal in found.findings.fatal_failures for pod in fatal.pods]
    restarts = history.failures + history.disruptions

    def place_of(role: Role, index: int | None) -> Place:
        rank = None if index is None else framework.rank(job, role, index)
        return Place(role.type, index if role.indexed else None, rank, role.container, restarts)

    def place_of_pod(role: Role, pod: Pod) -> Place:
        return place_of(role, read_place(pod.metadata.labels)[1])

    if found.burst is not None:
        return _find_cause_of_burst(found.burst, place_of_pod, remembered, now)
    first = nsmallest(MAX_EXAMINED, pods, key=lambda each: order_of(each[1], each[0].container, now))
    standing = [failure_of(pod, place_of_pod(role, pod), now) for role, pod in first]
    standing += [
        _lost(job, fatal.role, place_of(fatal.role, index))
        for fatal in found.findings.fatal_failures
        for index in fatal.lost[:MAX_EXAMINED]
    ]
    in_place = [
        failure
        for role, pod in _restarted_in_place(found)
        if (failure := past_failure_of(pod, place_of_pod(role, pod), now)) is not None
    ]
    if not standing and (job.extensions.in_place or not in_place):
        return None
    # A disruption follows from nothing, and the last burst of restarts in place is over.
    # A disruption follows from nothing, and the last burst of restarts in place is over.
    past = [] if found.findings.together or job.extensions.in_place else _join(in_place, remembered)
    cause = find_cause(standing, past)
    unread = len(pods) + sum(len(fatal.lost) for fatal in found.findings.fatal_failures) - len(standing)
    return cause and replace(cause, others=cause.others + unread)


def _find_cause_of_burst(
    burst: Burst, place_of: Callable[[Role, Pod], Place], remembered: Failure | None, now: datetime
) -> Failure | None:
    """The first failure of a burst, as far as the kubelets have shown it: they soon replace the exit codes.
    `remembered` belongs to the burst if it is of the same attempt."""
    first = nsmallest(MAX_EXAMINED, burst.restarted, key=lambda each: order_of(each[1], each[0].container, now))
    known: list[Failure] = []
    attempt = 1
    for role, pod in first:
        place = place_of(role, pod)
        attempt = place.restarts + burst.begins
        if (failure := past_failure_of(pod, place, now)) is not None:
            known.append(replace(failure, attempt=attempt))
    if not known and burst.begins:
        ends = [failure_of(pod, place_of(role, pod), now) for role, pod in first]
        known = [replace(each, attempt=attempt, reason=each.reason or RESET) for each in ends]
    if not known:
        return None
    if remembered is None or burst.begins or remembered.attempt != attempt:
        return find_cause(known)
    cause = find_cause(known, [replace(remembered, others=0)])
    return cause and replace(cause, others=max(cause.others, remembered.others))


def _lost(job: Job, role: Role, place: Place) -> Failure:
    """A pod that another client has deleted and that is gone."""
    name = child_name(job.name, role, place.index or 0)
    return Failure(place.role, place.index, place.rank, name, reason=DELETED, attempt=place.restarts + 1)


def _restarted_in_place(found: Assessment) -> Iterator[tuple[Role, Pod]]:
    for slots in found.role_slots:
        if slots.role.restart_policy == "Never":
            continue
        for pod in slots.pods.values():
            if pod.status.phase == "Running" and any(each.restart_count for each in pod.status.container_statuses):
                yield slots.role, pod


def _join(in_place: Sequence[Failure], remembered: Failure | None) -> list[Failure]:
    """The past failures, of which the remembered one may be one."""
    if remembered is None:
        return list(in_place)
    same = [each for each in in_place if (each.pod, each.at) == (remembered.pod, remembered.at)]
    rest = [each for each in in_place if each not in same]
    return [*rest, replace(same[0], others=remembered.others) if same else remembered]


def explain_end(
    job: Job, found: Assessment, cause: Failure | None, remembered: Failure | None, now: datetime
) -> Failure | None:
    """The cause of what the plan does: at a limit there always is one. At a deadline, a job whose replicas all run has
    not failed because of a restart in the past, `cause` or `remembered`."""
    limit = found.limit
    if limit is None:
        return cause
    if limit is not Limit.DEADLINE:
        return cause or remembered or Failure(reason=limit.value, message=UNKNOWN_ENDS, at=now)
    is_down = found.findings.found or found.burst or any(_is_down(pod) for _, pod in _restarted_in_place(found))
    if cause is not None and is_down:
        return cause
    if remembered is not None and not found.progress.running:
        return remembered
    active = sum(tally.active for tally in found.tallies.values())
    return Failure(reason=limit.value, message=count_running(active, job.replicas), at=now)


def _is_down(pod: Pod) -> bool:
    """Whether a container of the pod waits for its restart."""
    for each in pod.status.container_statuses:
        end = each.state.terminated
        if each.state.waiting is not None or (end is not None and end.failed):
            return True
    return False
