"""Scripts of the simulation: the jobs, the fates of their pods, the actions of users, and the faults.

A script is data, generated before the run, so that the same seed can be played with and without faults. In an `orderly`
script users have finished before any pod ends, and pods end together, so that the end does not depend on races: it must
equal that of the run without faults. In a `wild` script everything may happen at any time; then only the safety rules
are checked, and that no work is left undone at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.facts import Slot
from tests.simulation.fault_rates import FAIR, FaultRates
from trainop.engine.extensions import RESTART_SCOPE
from trainop.engine.framework import Framework
from trainop.kinds.dijob.names import DIJOBS
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.transport import MPI_V2, SSH
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Resource

NAMESPACE = "ns"
SUCCEED, FAIL, BACKOFF, DEADLINE, RUN, FOREIGN = "succeed", "fail", "backoff", "deadline", "run", "foreign"
REQUIRED: Mapping[str, Json] = {"MXJob": {"jobMode": "MXTrain"}}
"""Fields that a kind's CRD requires."""


@dataclass(frozen=True)
class JobPlan:
    """A job and the fates of its pods."""

    name: str
    kind: str
    spec: Json
    goal: str
    attempts: Mapping[Slot, tuple[int, ...]] = field(default_factory=dict)
    """Exit codes with which the first pods of a slot end; a pod that is lost in between does not count."""
    in_place: Mapping[Slot, int] = field(default_factory=dict)
    """Restarts of the container within the pod."""
    culprit: Slot | None = None
    """Whose failure ends the job, if its goal is to fail."""
    delicate: bool = False
    """Losing a pod would change the end."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    transport: str = ""
    """Of an MPIJob."""

    @property
    def framework(self) -> Framework:
        return framework_of(self.kind)

    @property
    def resource(self) -> Resource:
        """In the version that its users speak."""
        if self.kind == DIJOBS.kind:
            return DIJOBS
        return MPI_V2 if self.transport == SSH else self.framework.resource

    @property
    def scope(self) -> str:
        """The restart scope: pod, role or job."""
        return self.annotations.get(RESTART_SCOPE, "pod")

    def body(self) -> Json:
        metadata = {"name": self.name, "namespace": NAMESPACE}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)  # type: ignore[assignment]
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.kind,
            "metadata": metadata,
            "spec": self.spec,
        }


@dataclass(frozen=True, order=True)
class Step:
    """An event at a time: an action of a user (`create`, `delete`, `suspend` …) or a fault (`kill`, `freeze`, `evict`
    …)."""

    at: float
    act: str
    subject: str = ""
    value: Any = field(default=None, compare=False)

    @property
    def lasts(self) -> float:
        """Seconds."""
        match self.act:
            case "freeze":
                return float(self.value[0])
            case "lag":
                return float(self.value[1])
            case "deny":
                return float(self.value[0])
            case "no room" | "jobs away" | "jobs slow" | "outage" | "no quorum" | "no admission" | "node":
                return float(self.value)
        return 0.0


@dataclass(frozen=True)
class Script:
    seed: str
    """Or a name."""
    jobs: tuple[JobPlan, ...]
    steps: tuple[Step, ...]
    chaos: tuple[Step, ...] = ()
    fault_rates: FaultRates = FAIR
    storm_at: float = 0.0
    """The time at which network faults begin."""
    calm_at: float = 30.0
    """When faults end."""
    encore: tuple[Step, ...] = ()
    """One more fault once all is at rest, when nothing else happens that could make good what it does; times count
    from then."""
    hold: float = 0.0
    """No pod ends before."""
    orderly: bool = True
    replicas: int = 1
    lease: tuple[float, float, float] = (15.0, 10.0, 2.0)
    events: bool = True
    """The operator writes events, which nobody judges."""
    force_delete_after: float | None = None
    lingering: bool = False
    """Pods that run go on when their job has finished."""
    unreported: Collection[Slot] = ()
    """Slots whose pods succeed without a known exit code, in scripts that are not orderly."""
    family: str = ""
    """`mpi` for MPIJobs, `di` for DIJobs."""
    gang: str = ""
    """The value of --gang-scheduler-name."""
    stubborn: float = 0.0
    """Share of pods that stay Terminating until it is calm, or somebody uses force."""

    standing: bool = False
    """Something keeps the job from going on for ever. What is wrong does not end, and only what the job says is judged
    at the end."""
    unstartable: Collection[str] = ()
    """Ends of the names of pods that find no node."""
    immortal: bool = False
    """Pods that are deleted never go."""
    unready: bool = False
    """Pods never become ready."""
    reports: bool = False
    """Pods report progress."""
    restart_rules: str = "kept"
    """What the API server does with the restart rules of pods: `kept`, `dropped` or `refused`."""

    def without_faults(self) -> Script:
        return replace(self, chaos=(), encore=(), fault_rates=FAIR, calm_at=self.hold, stubborn=0.0, replicas=1)

    @property
    def jumps(self) -> bool:
        """Wall clocks are set."""
        return any(step.act == "jump" for step in self.chaos)


def framework_of(kind: str) -> Framework:
    """MPIJobs of both transports are read by that of transport exec: their replica types are the same."""
    return MPI_EXEC if kind == MPI_EXEC.kind else FRAMEWORKS[kind]


def replica_spec(framework: Framework, count: int, policy: str) -> Json:
    template = {"spec": {"containers": [{"name": framework.container, "image": "img"}]}}
    return {"replicas": count, "restartPolicy": policy, "template": template}
