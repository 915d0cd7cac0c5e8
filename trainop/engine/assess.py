"""What the pods of a job mean, before anything is done about it: a plan acts on it, and `why` explains it.

Reads a snapshot and decides nothing: which pod holds which replica slot, how many pods are in which state, which pods
are to be restarted or end the job, which limit is reached, and how long restarts in a row have to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainop.engine.claim import Children, claim
from trainop.engine.failures import (
    Findings,
    NewRestarts,
    count_new_restarts,
    examine,
    restart_group,
    restartable,
)
from trainop.engine.framework import Framework, Progress, Tally
from trainop.engine.job import Job
from trainop.engine.limits import Limit, exceeded, seconds_to_deadline
from trainop.engine.parse import parse
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Snapshot
from trainop.engine.slots import Arrangement, RoleSlots, arrange
from trainop.engine.status import Status


@dataclass(frozen=True, slots=True)
class Assessment:
    """The state of a job that is neither finished nor suspended."""

    arrangement: Arrangement
    """Every pod in its replica slot."""
    tallies: Mapping[str, Tally]
    """Role type -> how many of its pods are in which state."""
    progress: Progress
    """Whether the job is running or has succeeded, by the rules of its kind."""
    findings: Findings
    """Pods to restart, and pods that end the job."""
    new_restarts: NewRestarts
    """Those of `findings` that no earlier pass has counted."""
    history: RestartHistory
    limit: Limit | None
    """The limit of `runPolicy` that the job has reached."""
    deadline_in: float | None
    """Seconds until `activeDeadlineSeconds` are over; None without a deadline."""
    waits: Mapping[str, float]
    """Restart group (a role, or the whole job) -> seconds until its pods may be created again."""

    @property
    def role_slots(self) -> Sequence[RoleSlots]:
        """In the kind's order of roles."""
        return self.arrangement.all_slots


def assess(framework: Framework, seen: Snapshot) -> Assessment:
    """The assessment of a job as it is seen. Never raises for what a job contains."""
    job = parse(framework, seen.job)
    return assess_job(framework, job, claim(framework, job, seen), seen, Status(seen.job.raw.get("status"), seen.now))


def assess_job(
    framework: Framework, job: Job, children: Children, seen: Snapshot, status: Status, *, resumed: bool = False
) -> Assessment:
    """The same for a pass that has parsed the job and claimed its children. The restarts of a job that is `resumed` in
    this pass are forgotten."""
    pods = children.pods.ours
    arrangement = arrange(job, pods)
    slots = arrangement.all_slots
    tallies = {each.role.type: each.tally(framework.container) for each in slots}
    history = RestartHistory(job.metadata.uid, {} if resumed else job.metadata.annotations)
    findings = examine(framework, job, slots, pods, history)
    findings.restarts = restartable(job, findings.restarts)
    new_restarts = count_new_restarts(job, findings, history)
    deadline_in = seconds_to_deadline(job, status, seen.now)
    limit = exceeded(job, slots, findings, history, new_restarts)
    if limit is None and deadline_in is not None and deadline_in <= 0:
        limit = Limit.DEADLINE
    groups = {restart_group(job, role.type) for role in job.roles}
    return Assessment(
        arrangement=arrangement,
        tallies=tallies,
        progress=_read_progress(framework, job, arrangement, tallies),
        findings=findings,
        new_restarts=new_restarts,
        history=history,
        limit=limit,
        deadline_in=deadline_in,
        waits={group: wait for group in sorted(groups) if (wait := history.wait(group, seen.now)) > 0},
    )


def _read_progress(framework: Framework, job: Job, arrangement: Arrangement, tallies: Mapping[str, Tally]) -> Progress:
    """Neither running nor succeeded while the pods of a role that an edit removed or misspelt may be those that
    decide."""
    if job.errors and arrangement.pods_of_removed_roles:
        return Progress(running=False, succeeded=False)
    return framework.progress(job, tallies)
