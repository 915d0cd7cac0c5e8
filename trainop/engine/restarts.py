"""Restarts: pods give way, and the next pass that finds their names free makes new ones.

A restart may take more with it than the pod that failed: by the annotation restart-scope all pods of its role, or of
the job. Then all of them go, none is made before all have gone, and it counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trainop.engine.cleanup import delete_pod
from trainop.engine.draft import Draft
from trainop.engine.failures import Findings, Restart
from trainop.engine.job import Job
from trainop.engine.ledger import Ledger
from trainop.engine.seen import Pod
from trainop.engine.slots import Line
from trainop.engine.status import RESTARTING
from trainop.runtime.clock import read_time

WHOLE_JOB = "*"


def restartable(job: Job, restarts: Sequence[Restart]) -> list[Restart]:
    """Those that can be followed by new pods: a failed pod stays as long as its successor cannot be made."""
    held = {circle(job, role.type) for role in job.roles if not (role.makeable and job.readable)}
    return [restart for restart in restarts if circle(job, restart.role.type) not in held]


class Fresh(NamedTuple):
    """Restarts that this pass has found and no earlier one has counted, by the budget that they fall under."""

    failures: int
    disruptions: int


def circle(job: Job, role: str) -> str:
    """Names what restarts together: a role, or all of the job."""
    return WHOLE_JOB if job.extensions.restart_scope == "job" else role


def count_fresh(job: Job, findings: Findings, ledger: Ledger) -> Fresh:
    """Each pod is a restart, or each circle of pods, which is a disruption if any pod of it was disrupted: its peers
    fail because of that one."""
    fresh = [restart for restart in findings.restarts if not ledger.settled(restart.pod.metadata.uid)]
    if job.extensions.restart_scope == "pod":
        disruptions = sum(restart.disrupted for restart in fresh)
        return Fresh(len(fresh) - disruptions, disruptions)
    circles = {circle(job, restart.role.type) for restart in fresh}
    disrupted = {circle(job, restart.role.type) for restart in fresh if restart.disrupted}
    return Fresh(len(circles - disrupted), len(disrupted))


def restart(draft: Draft, lines: Sequence[Line], findings: Findings, ledger: Ledger, fresh: Fresh) -> None:
    """Delete the pods that restart, count them once, and say so."""
    ledger.count(fresh.failures, fresh.disruptions)
    new: dict[str, int] = {}
    for found in findings.restarts:
        role = found.role.type
        new.setdefault(role, 0)
        if not ledger.settled(found.pod.metadata.uid):
            new[role] += 1
            ledger.settle(found.pod.metadata.uid)
            born = read_time(found.pod.metadata.creation_timestamp)
            ledger.begin_round(circle(draft.job, role), born, draft.seen.now)
    for pod in (*(found.pod for found in findings.restarts), *_peers(draft.job, lines, new, ledger)):
        ledger.settle(pod.metadata.uid)
        if not pod.metadata.terminating:
            draft.actions.append(delete_pod(pod))
    _tell(draft, new)


def _peers(job: Job, lines: Iterable[Line], new: dict[str, int], ledger: Ledger) -> Iterator[Pod]:
    """Pods that have to go because others of their circle restart."""
    if job.extensions.restart_scope == "pod":
        return
    doomed = {circle(job, role) for role, count in new.items() if count}
    for line in lines:
        if circle(job, line.role.type) in doomed:
            yield from (pod for pod in line.holders.values() if not ledger.settled(pod.metadata.uid))


def _tell(draft: Draft, new: dict[str, int]) -> None:
    """One event for each role, or for the whole job if that restarts; `new` has the fresh restarts of each role."""
    scope = draft.job.extensions.restart_scope
    if scope == "job" and new:
        first = next((role for role, count in new.items() if count), next(iter(new)))
        new = {first: sum(new.values())}
    for role, count in new.items():
        text = f"job {draft.job.name} is restarting because {role} replica(s) failed."
        if draft.status.set(RESTARTING, draft.reason(RESTARTING), text) or count:
            draft.event(draft.reason(RESTARTING), text, "Warning")
        if count:
            draft.count("restarted", count if scope == "pod" else 1)


def going(job: Job, lines: Iterable[Line], findings: Findings) -> set[str]:
    """The circles that get no pods yet, because some of them are still to go."""
    if job.extensions.restart_scope == "pod":
        return set()
    roles = [found.role.type for found in findings.restarts] + [line.role.type for line in lines if line.dying]
    return {circle(job, role) for role in roles}
