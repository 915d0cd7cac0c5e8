"""Assessment: what a snapshot means for a job that is neither finished nor suspended.

First half of a plan. It determines which pod holds which replica slot, how many pods are in which state, which failed
pods are to be restarted or end the job, and which limit is reached. `plan` turns an Assessment into actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trainop.engine.children import Arrangement, Children, RoleSlots, arrange
from trainop.engine.disruptions import find_disruptions, find_void
from trainop.engine.failures import (
    Findings,
    Limit,
    NewRestarts,
    Restart,
    count_new_restarts,
    examine,
    exceeded,
    restartable,
    seconds_to_deadline,
)
from trainop.engine.framework import Framework, Progress, Tally
from trainop.engine.in_place import Burst, find_burst
from trainop.engine.job import Job
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.status import RESTARTING, RESTARTS_IN_PLACE, Status


@dataclass(frozen=True, slots=True)
class Assessment:
    """The state of a job that is neither finished nor suspended."""

    job: Job
    """With the restart scope that is in force."""
    arrangement: Arrangement
    """The pods by replica slot."""
    tallies: Mapping[str, Tally]
    """Role type -> how many of its pods are in which state."""
    progress: Progress
    """Whether the job is running or has succeeded, by the rules of its kind."""
    findings: Findings
    """Pods to restart, and pods that end the job."""
    new_restarts: NewRestarts
    """The restarts of `findings` that are not yet in the restart history."""
    history: RestartHistory
    limit: Limit | None
    """The limit of `runPolicy` that the job has reached."""
    deadline_in: float | None
    """Seconds until `activeDeadlineSeconds` have passed; None without a deadline."""
    burst: Burst | None = None
    """The restart in place that is under way."""

    @property
    def role_slots(self) -> Sequence[RoleSlots]:
        """The slots of all roles, in the order of the framework."""
        return self.arrangement.all_slots


def assess_job(
    framework: Framework,
    job: Job,
    children: Children,
    seen: Snapshot,
    status: Status,
    *,
    resumed: bool = False,
    restart_all: bool = False,
) -> Assessment:
    """Assesses the job of a snapshot. Never raises, whatever the job contains. With `resumed` the restart history
    starts empty, because resuming a job resets it. With `restart_all`, all pods are to be restarted, as one failure."""
    pods = children.pods.owned
    arrangement = arrange(job, pods)
    slots = arrangement.all_slots
    history = RestartHistory(job.metadata.uid, {} if resumed else job.metadata.annotations)
    history.whole = restart_all or history.restarts_whole(children.pods.uids())
    job = _widen_scope(job) if history.whole else job
    findings, void = _examine(framework, job, arrangement, pods, history)
    tallies = {each.role.type: each.tally(void) for each in slots}
    findings.restarts = restartable(job, [*findings.restarts, *(_others(slots, findings) if restart_all else ())])
    watched = job.extensions.in_place and not findings.found and is_watched(seen, status)
    told = status.is_true(RESTARTING)
    burst = find_burst(slots, history, seen.now, told=told) if watched else None
    new_restarts = _count_bursts(count_new_restarts(job, findings, history), burst, history)
    deadline_in = seconds_to_deadline(job, status, seen.now)
    late = Limit.DEADLINE if deadline_in is not None and deadline_in <= 0 else None
    limit = exceeded(job, slots, findings, history, new_restarts) or late
    return Assessment(
        job=job,
        arrangement=arrangement,
        tallies=tallies,
        progress=_read_progress(framework, job, arrangement, tallies),
        findings=findings,
        new_restarts=new_restarts,
        history=history,
        limit=limit,
        deadline_in=deadline_in,
        burst=burst,
    )


def _examine(
    framework: Framework, job: Job, arrangement: Arrangement, pods: Sequence[Pod], history: RestartHistory
) -> tuple[Findings, frozenset[str]]:
    """What failures and disruptions mean, and the UIDs of pods whose success does not count."""
    slots, void, together = arrangement.all_slots, frozenset[str](), None
    if job.extensions.checkpoint.asked:
        void, together = find_void(slots, history), find_disruptions(job, slots, history)
    return together or examine(framework, job, slots, pods, history), void


def is_watched(seen: Snapshot, status: Status) -> bool:
    """Whether restarts in place count. Without the condition, they are from before the annotation, unless the job has
    had no status yet."""
    stored = seen.job.raw.get("status")
    is_new = not isinstance(stored, dict) or not stored.get("conditions")
    return is_new or status.find(RESTARTS_IN_PLACE) is not None


def _count_bursts(new: NewRestarts, burst: Burst | None, history: RestartHistory) -> NewRestarts:
    """A burst counts once. Pods that fail for good in the middle of one belong to it."""
    if burst is not None and burst.begins:
        return NewRestarts(1, 0)
    return new if history.burst is None else new._replace(failures=0)


def _widen_scope(job: Job) -> Job:
    return replace(job, extensions=replace(job.extensions, restart_scope="job"))


def _others(all_slots: Sequence[RoleSlots], findings: Findings) -> Iterator[Restart]:
    """The restarts of the pods that need none by themselves."""
    known = {each.pod.metadata.uid for each in findings.restarts}
    for slots in all_slots:
        for pod in slots.pods.values():
            if pod.metadata.uid not in known:
                yield Restart(slots.role, pod, disrupted=False)


def _read_progress(framework: Framework, job: Job, arrangement: Arrangement, tallies: Mapping[str, Tally]) -> Progress:
    """The framework's progress. While the spec has errors and there are pods of roles that it lacks, it is neither
    running nor succeeded: an edit may have misspelt the deciding role."""
    if job.errors and arrangement.pods_of_removed_roles:
        return Progress(running=False, succeeded=False)
    return framework.progress(job, tallies)
