"""DIJobs as di-orchestrator describes them: one version of a job, its pods, and the requests of its clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.oracle.kinds import Json, is_terminating, phase_of

GROUP = "diengine.opendilab.org"
COUNTERS = {"collector": "Collector", "learner": "Learner", "aggregator": "Aggregator", "coordinator": "Coordinator"}


@dataclass(slots=True, eq=False)
class Ask:
    """A request of a client, which may be sent several times."""

    kind: str
    """post, remove or replace."""
    uid: str
    """Of the job."""
    body: Json
    status: int = 0
    """Of the answer; 0 without one."""
    data: Any = None
    done: bool = False

    @property
    def succeeded(self) -> bool:
        return self.status == 200

    @property
    def refused(self) -> bool:
        """Certainly nothing was done."""
        return 400 <= self.status < 500

    @property
    def demanded(self) -> int:
        """How many pods a client asked to create or delete, without ddp learners."""
        return sum(int(self.body.get(name, {}).get("replicas", 0)) for name in ("collectors", "learners"))

    @property
    def named(self) -> list[str]:
        """The pods that are to be replaced."""
        return [name for kind in ("collectors", "learners") for name in self.body.get(kind, ())]

    @property
    def answered(self) -> list[str]:
        """The names of the pods in the answer."""
        data = self.data or {}
        return [url.split(".")[0] for kind in ("collectors", "learners") for url in data.get(kind) or ()]


@dataclass(slots=True)
class DiPod:
    uid: str
    name: str
    value: Json
    taken: bool = False
    """Others delete it."""
    left: bool = False
    """Somebody has deleted it."""
    gone: bool = False
    ran: bool = False
    ended_at: float | None = None
    aggregators: list[str] = field(default_factory=list)
    """UIDs of the aggregators that own it besides its job. The garbage collector removes those that are gone."""

    @property
    def role(self) -> str:
        return str(self.value["metadata"]["labels"].get("replica-type", ""))

    @property
    def phase(self) -> str:
        return phase_of(self.value)

    @property
    def living(self) -> bool:
        return not self.gone and not self.left


@dataclass(slots=True)
class DiRecord:
    """One DIJob by UID."""

    job: Json
    pods: dict[str, DiPod] = field(default_factory=dict)
    """By UID."""
    asks: list[Ask] = field(default_factory=list)
    gone: bool = False
    is_first: bool = True
    """Of its name."""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def phase(self) -> str:
        return str((self.job.get("status") or {}).get("phase", ""))

    @property
    def finished(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def terminating(self) -> bool:
        return is_terminating(self.job)

    @property
    def policy(self) -> str:
        return str(self.job["spec"].get("cleanPodPolicy") or "Running")

    def living(self) -> list[DiPod]:
        return [pod for pod in self.pods.values() if pod.living]

    def coordinators(self) -> list[DiPod]:
        """All that there have been."""
        return [pod for pod in self.pods.values() if pod.role == "coordinator"]
