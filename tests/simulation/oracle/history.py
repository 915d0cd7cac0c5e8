"""The history of each job and its pods, derived from the writes in the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.oracle.children import is_in_place
from tests.simulation.oracle.kinds import Job, Json, Slot, is_terminating, phase_of, slot_of

RETRYABLE = 128
"""Exit codes from here on are retried under policy ExitCode (job-engine §1.4)."""

USER_REASONS = {"", "DeadlineExceeded"}
"""Of the reasons in a pod's status, those that are the doing of the user's code; any other is a disruption."""


@dataclass(slots=True)
class Pod:
    """One pod of one job, from its creation on."""

    uid: str
    name: str
    slot: Slot | None
    born: float
    value: Json
    """The latest version, also of one that has gone."""
    taken: bool = False
    """Deleted or removed by others than the operator."""
    ended_at: float | None = None
    """When it reached its phase Failed or Succeeded, not being deleted."""
    leaves_at: float | None = None
    """When somebody deleted it."""
    gone_at: float | None = None

    @property
    def phase(self) -> str:
        return phase_of(self.value)

    @property
    def living(self) -> bool:
        """It exists and is not being deleted."""
        return self.leaves_at is None and self.gone_at is None

    @property
    def there(self) -> bool:
        return self.gone_at is None

    @property
    def restarts(self) -> int:
        """Of its containers, by the kubelet."""
        return sum(each["restartCount"] for each in self.value["status"].get("containerStatuses") or ())

    @property
    def announced(self) -> bool:
        """It still runs, and somebody else is about to end it, or has begun to."""
        return self.phase == "Running" and self.there and ((self.taken and not self.living) or self.disrupted)

    @property
    def disrupted(self) -> bool:
        """It failed for a reason other than the user's code (design 9), or is about to be ended for one."""
        status = self.value["status"]
        conditions = status.get("conditions") or ()
        marked = any(each["type"] == "DisruptionTarget" and each["status"] == "True" for each in conditions)
        return marked or status.get("reason", "") not in USER_REASONS

    def exit_code(self, container: str) -> int | None:
        for each in self.value["status"].get("containerStatuses") or ():
            if each["name"] == container and "terminated" in each["state"]:
                return int(each["state"]["terminated"]["exitCode"])
        return None

    def retryable(self, job: Job) -> bool:
        """Having failed, it gives way to a new one; otherwise it fails the job (job-engine §1.4, design 9)."""
        policy = job.policy_of(self.slot) if self.slot else "Never"
        if policy != "ExitCode":
            return policy != "Never"
        code = self.exit_code(job.kind.container)
        return self.disrupted or code is None or code >= RETRYABLE


@dataclass(slots=True)
class Record:
    """One job by UID."""

    job: Job
    born: float
    versions: list[tuple[float, Job]] = field(default_factory=list)
    """Since when it had which spec."""
    pods: dict[str, Pod] = field(default_factory=dict)
    resumed_at: float = 0.0
    """The time at which a user last set `suspend` to false."""
    counted_from: float = 0.0
    """When it was last resumed by the operator: restarts count from then."""
    finished_at: float | None = None
    ended_before: list[str] = field(default_factory=list)
    """UIDs of the pods that were there and had ended long enough before the job finished."""
    gone: bool = False
    refused: dict[str, float] = field(default_factory=dict)
    """When an admission policy last refused the pod of that name."""
    failures: int = 0
    """Restarts of pods that failed by their own code, of which the operator must know; see `losses.py`."""
    disruptions: int = 0
    """The same of pods that were evicted."""
    counted_at: float | None = None
    """When the last disruption of a job that restarts as a whole was noted."""

    def there(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.there]

    def living(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.living]

    def in_place(self) -> list[Pod]:
        """Those that have a slot, also while they are being deleted."""
        return [pod for pod in self.there() if is_in_place(self.job, pod.value)]

    def since(self, moment: float) -> Iterator[Job]:
        """The versions of the spec that were current at `moment` or later."""
        for number, (_, job) in enumerate(self.versions):
            if number + 1 == len(self.versions) or self.versions[number + 1][0] >= moment:
                yield job

    def take(self, now: float, job: Job) -> None:
        """A new version of the job."""
        before, self.job = self.job, job
        if before.value["metadata"].get("generation") != job.value["metadata"].get("generation") or (
            before.annotations != job.annotations
        ):
            self.versions.append((now, job))
        if before.suspended and not job.suspended:
            self.resumed_at = now
        if before.is_true("Suspended") and not job.is_true("Suspended"):
            self.counted_from, self.failures, self.disruptions = now, 0, 0
        if job.finished and self.finished_at is None:
            self.finished_at = now

    def add(self, now: float, value: Json) -> Pod:
        uid = value["metadata"]["uid"]
        pod = self.pods[uid] = Pod(uid, value["metadata"]["name"], slot_of(value), now, value)
        self.update(now, pod, value)
        return pod

    def take_back(self, now: float, value: Json) -> Pod | None:
        """A pod that was the job's before is so again; None if it never was."""
        pod = self.pods.get(value["metadata"]["uid"])
        if pod is not None:
            pod.gone_at = None
            self.update(now, pod, value)
        return pod

    def update(self, now: float, pod: Pod, value: Json) -> None:
        pod.value, pod.slot = value, slot_of(value)
        if is_terminating(value) and pod.leaves_at is None:
            pod.leaves_at = now
        if pod.ended_at is None and pod.living and pod.phase in {"Succeeded", "Failed"}:
            pod.ended_at = now
