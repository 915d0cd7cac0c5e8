"""Lower and upper bounds of the pods that a job has lost, against its limits (job-engine §2.5, D5, design 9).

An observer of the store cannot decide whether the operator saw a failed pod before another client deleted it, and only
then it counts as a restart. The bounds differ by these cases. Times are virtual seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tests.simulation.oracle.children import is_in_place
from tests.simulation.oracle.history import Pod, Record
from tests.simulation.oracle.kinds import Job

BACKOFF = "Job {} has failed because it has reached the specified backoff limit"
INFRA = "Job {} has failed because it has reached the specified infra restart limit"
DEADLINE = "Job {} has failed because it was active longer than specified deadline"

DENIED = "denied the request"
"""In the API server's words when an admission policy refuses an object."""


def limits_of(job: Job) -> tuple[int | None, int | None]:
    """backoffLimit and infra-restart-limit."""
    infra = job.extension("infra-restart-limit")
    return job.backoff_limit, int(infra) if infra else None


def count_restart(record: Record, pod: Pod, known: list[Job]) -> None:
    """The operator deletes a failed pod. If nothing it may know of gives another reason, it was a restart."""
    job = record.job
    alone = job.scope == "pod" and not job.together
    if pod.phase != "Failed" or pod.ended_at is None or job.finished or not alone or not pod.retryable(job):
        return
    if any(each.suspended or each.is_true("Suspended") or not is_in_place(each, pod.value) for each in known):
        return
    if pod.disrupted:
        record.disruptions += 1
    else:
        record.failures += 1


def failures_most(record: Record) -> int:
    """Failures of the user's code that can have been seen."""
    return sum(pod.ended_at is not None and pod.phase == "Failed" and not pod.disrupted for pod in _counting(record))


def disruptions_most(record: Record) -> int:
    together = record.job.together
    return sum(pod.taken or (pod.disrupted and (together or pod.phase == "Failed")) for pod in _counting(record))


def _counting(record: Record) -> Iterator[Pod]:
    return (pod for pod in record.pods.values() if pod.gone_at is None or pod.gone_at >= record.counted_from)


def too_early(record: Record) -> str:
    """The reason why a job failed at a limit too early, or an empty string."""
    job = record.job
    text, (backoff, infra) = job.message("Failed"), limits_of(job)
    if text == BACKOFF.format(job.name):
        lost = failures_most(record)
        if backoff == 0:  # any failure ends the job then, under policy Never also a loss
            lost += disruptions_most(record)
        in_place = sum(pod.restarts for pod in _counting(record))
        if backoff is None or (lost <= backoff and not 0 < in_place >= backoff):
            return f"failed at its backoffLimit {backoff} after {lost} failures, {in_place} in place"
    if text == INFRA.format(job.name):
        lost = disruptions_most(record)
        if infra is None or lost <= infra:
            return f"failed at its infra-restart-limit {infra} after {lost} disruptions"
    return ""


def too_late(record: Record) -> str:
    """The reason why a running job should have failed at a limit, or an empty string."""
    backoff, infra = limits_of(record.job)
    if backoff is not None and record.failures > backoff:
        return f"goes on after {record.failures} failures, its backoffLimit is {backoff}"
    if infra is not None and record.disruptions > infra:
        return f"goes on after {record.disruptions} disruptions, its infra-restart-limit is {infra}"
    in_place = sum(
        pod.restarts
        for pod in record.living()
        if pod.phase == "Running" and pod.slot and record.job.policy_of(pod.slot) != "Never"
    )
    if backoff is not None and in_place and in_place >= backoff:
        return f"goes on after {in_place} restarts within pods, its backoffLimit is {backoff}"
    return ""


def overcounted(record: Record) -> Iterator[str]:
    """Restarts that are recorded on the job without a lost pod."""
    noted = _noted(record)
    for name, most in (("failures", failures_most), ("disruptions", disruptions_most)):
        if noted.get(name, 0) > most(record):
            yield f"{noted[name]} {name} are noted, there were {most(record)} at most"


def counted_twice(record: Record, before: Job, now: float) -> Iterator[str]:
    """A disruption is noted while pods are left from before the last one, of a job that restarts as a whole."""
    job = record.job
    if not job.together or job.is_true("Suspended") or _of(job) <= _of(before):
        return
    since, record.counted_at = record.counted_at, now
    left = [pod.name for pod in record.in_place() if since is not None and pod.born < since]
    if _of(before) and left and since is not None and since >= record.counted_from:
        yield f"notes a disruption, and {left} are left from before the last one"


def lonely_faults(record: Record, pod: Pod, fair_since: float, shown: float) -> Iterator[str]:
    """A new pod replaces one that others ended, for long enough to be seen, and the rest of the job was not ended."""
    if not record.job.together:
        return
    for former in record.pods.values():
        left, gone = former.leaves_at, former.gone_at
        if former.slot != pod.slot or not former.taken or former.phase == "Pending" or left is None or gone is None:
            continue
        if left > fair_since and gone - left > shown and left > record.resumed_at:
            beside = [each.name for each in record.living() if each.born < left and is_in_place(record.job, each.value)]
            if beside:
                yield f"replaced {pod.name}, which others ended, and {beside} were not ended"


def _of(job: Job) -> int:
    found: Mapping[str, int] = json.loads(job.extension("restarts", "{}"))
    return found.get("disruptions", 0)


def undercounted(record: Record) -> Iterator[str]:
    """Restarts that are not recorded on the job."""
    noted = _noted(record)
    for name, least in (("failures", record.failures), ("disruptions", record.disruptions)):
        if noted.get(name, 0) < least:
            yield f"{noted.get(name, 0)} {name} are noted, there were {least} at least"


def _noted(record: Record) -> Mapping[str, int]:
    """The annotation that docs/decisions/0001-restarts-in-an-annotation.md describes."""
    noted: Mapping[str, int] = json.loads(record.job.extension("restarts", "{}"))
    return noted
