"""Jobs that restart in place: what has happened to one, as docs/survive.md describes it.

All that fails from one exit on until every replica has restarted and runs is one *episode*: one failure of the job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.simulation.oracle.kinds import Job, Json, phase_of
from tests.simulation.oracle.losses import BACKOFF

ROUNDING = 1.5
"""Seconds: times in the annotation are whole."""
UNSEEN = "RestartingAllContainers"
"""The reason of a failure whose exit code nobody has seen."""
RETRYABLE = 128


@dataclass(eq=False)
class Rank:
    value: Json
    born: float
    taken: bool = False
    """Others delete it, or have evicted it."""
    leaves: bool = False
    left_at: float = math.inf
    gone: bool = False

    @property
    def name(self) -> str:
        return str(self.value["metadata"]["name"])

    @property
    def restarts(self) -> int:
        return sum(each["restartCount"] for each in self.value["status"].get("containerStatuses") or ())

    @property
    def runs(self) -> bool:
        statuses = self.value["status"].get("containerStatuses") or ()
        return phase_of(self.value) == "Running" and all("running" in each["state"] for each in statuses)


@dataclass
class Episode:
    began: float
    before: dict[str, int]
    """Restarts of each pod, by UID."""
    exits: dict[str, set[int]] = field(default_factory=dict)
    """Pod name -> the codes with which its container has exited."""
    counted_at: float | None = None
    recreates: bool = False
    """It began too soon after the last one to restart in place."""
    disturbed: bool = False
    """Something else has happened meanwhile, so that it need not be counted."""
    settled_at: float = math.inf


@dataclass
class Course:
    """What has happened to one job since it was created or resumed."""

    job: Job
    pods: dict[str, Rank] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    disruptions: int = 0
    """Pods that others have ended."""
    disrupted_at: float = -math.inf
    failed_at: float = -math.inf
    """When a pod last ended for good."""
    fatal: bool = False
    """A replica has failed with a code from which it does not restart."""
    certain: bool = False
    """It was the first to fail, so that the job has to fail."""
    rounds: tuple[int, float] = (0, -math.inf)
    """The consecutive restarts, and the time of the last."""
    counts: list[float] = field(default_factory=list)
    """When restarts were counted."""
    scaled_at: float = -math.inf
    stopped_at: float = -math.inf
    """When it was last suspended."""
    told_at: float = -math.inf
    """When it last began to say that it restarts."""

    @property
    def open(self) -> Episode | None:
        last = self.episodes[-1] if self.episodes else None
        return last if last is not None and last.settled_at == math.inf else None

    def living(self) -> Iterator[Rank]:
        return (pod for pod in self.pods.values() if not pod.leaves and not pod.gone)

    @property
    def sound(self) -> bool:
        """Whether it can restart in place: the table in docs/survive.md."""
        job = self.job
        policies = {job.policy_of((role, 0)) for role in job.roles if job.replicas(role)}
        servants = {"TFJob": {"PS", "Evaluator"}, "PaddleJob": {"Master"}}.get(job.kind_name, set())
        return (
            job.extension("restart-mode") == "in-place"
            and policies <= {"OnFailure", "ExitCode"}
            and job.extension("restart-scope", "job") == "job"
            and job.kind_name != "MXJob"
            and not servants & {role for role in job.roles if job.replicas(role)}
        )


def is_over(course: Course) -> bool:
    job = course.job
    return job.finished or job.suspended or job.is_true("Suspended") or job.terminating


def rule_of(policy: str) -> Json:
    """From which exit codes a replica restarts (docs/survive.md)."""
    codes = {"operator": "In", "values": list(range(RETRYABLE, 256))}
    if policy == "OnFailure":
        codes = {"operator": "NotIn", "values": [0]}
    return {"action": "RestartAllContainers", "exitCodes": codes}


def exit_of(pod: Json) -> int | None:
    """The code with which the container has just exited, if it has failed."""
    for each in pod["status"].get("containerStatuses") or ():
        if code := (each["state"].get("terminated") or {}).get("exitCode"):
            return int(code)
    return None


def next_round(rounds: tuple[int, float], now: float) -> tuple[int, float]:
    """Restarts in a row: after ten minutes without one they start again, and none begins during a pause."""
    number, last = rounds
    if now - last > 600.0:
        return 1, now
    pause = min(2.0 ** (number - 2), 300.0) if number >= 2 else 0.0
    return (number + 1, now) if now - last >= pause + ROUNDING else rounds


def cause_faults(course: Course, before: Job) -> Iterator[str]:
    """A counted failure is explained: by a rank that has failed, and its exit code if that was seen."""
    named, noted = course.job.status.get("lastFailure"), noted_of(course.job)
    if named is None or named == before.status.get("lastFailure") or "pod" not in named:
        return
    total = noted.get("failures", 0) + noted.get("disruptions", 0)
    if named.get("attempt") not in {total, total + 1}:
        yield f"attempt {named.get('attempt')} after {total} restarts"
    exits = [each.exits[named["pod"]] for each in course.episodes if named["pod"] in each.exits]
    lost = any(pod.taken or pod.leaves for pod in course.pods.values() if pod.name == named["pod"])
    code = named.get("exitCode")
    if not exits and not lost:
        yield f"{named['pod']} is blamed, which has not failed"
    elif code is None and not lost and named.get("reason") != UNSEEN:
        yield f"{named['pod']} is blamed without an exit code, for {named.get('reason')}"
    elif code is not None and not lost and not any(code in codes for codes in exits):
        yield f"{named['pod']} is blamed for exit code {code}"


def end_faults(course: Course) -> Iterator[str]:
    """A job fails at its back-off limit, or because of a rank that does not restart."""
    job, limit = course.job, course.job.backoff_limit
    if "lastFailure" not in job.status:
        yield "failed without a lastFailure"
    most = len(course.episodes)
    if job.message("Failed").startswith(BACKOFF.format(job.name)):
        if limit is None or most <= limit:
            yield f"failed at its backoffLimit {limit} after {most} failures"
    elif not course.fatal:
        yield f"failed, and no rank has for good: {job.message('Failed')}"


def noted_of(job: Job) -> Mapping[str, int]:
    """The annotation that docs/decisions/0001-restarts-in-an-annotation.md describes."""
    noted: Mapping[str, int] = json.loads(job.extension("restarts", "{}"))
    return noted
