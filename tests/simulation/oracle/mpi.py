"""MPIJobs as mpi-v2beta1 and frameworks-v1 §10 describe them: one version of a job, and the history of its children."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.oracle.kinds import ANNOTATIONS, LABELS, Json, controller_of, is_terminating, phase_of

OURS = {None, "", "kubeflow.org/training-operator", "kubeflow.org/mpi-operator"}
"""Values of managedBy that mean this operator (mpi-v2beta1 §13.2)."""
GROUP = "kubeflow.org"


class MpiJob:
    """One version of one MPIJob."""

    def __init__(self, value: Json) -> None:
        self.value = value
        metadata = value["metadata"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.uid: str = metadata["uid"]
        self.terminating = is_terminating(value)
        self.spec: Json = value["spec"]
        self.policy: Json = self.spec.get("runPolicy") or {}
        self.status: Json = value.get("status") or {}
        found: list[Json] = self.status.get("conditions") or []
        self.conditions = [each for each in found if each["type"] != "Waiting"]

    @property
    def transport(self) -> str:
        """`ssh`, `exec`, or an empty string while it is not decided."""
        return str((self.value["metadata"].get("annotations") or {}).get(ANNOTATIONS + "mpi-transport", ""))

    @property
    def origin(self) -> str:
        """The transport that follows from the version in which the replicas were written (§13.2)."""
        entries = self.value["metadata"].get("managedFields") or ()
        found = [each for each in entries if "f:mpiReplicaSpecs" in (each["fieldsV1"].get("f:spec") or {})]
        return {"kubeflow.org/v1": "exec", "kubeflow.org/v2beta1": "ssh"}[found[0]["apiVersion"]] if found else ""

    @property
    def workers(self) -> int:
        worker = self.spec["mpiReplicaSpecs"].get("Worker") or {}
        return int(worker.get("replicas") or 0)

    @property
    def slots(self) -> int:
        given = self.spec.get("slotsPerWorker")
        return 1 if given is None else int(given)

    @property
    def waits(self) -> bool:
        """The launcher starts when all workers are ready."""
        return self.spec.get("launcherCreationPolicy") == "WaitForWorkersReady"

    @property
    def suspended(self) -> bool:
        return bool(self.policy.get("suspend"))

    @property
    def foreign(self) -> bool:
        return self.policy.get("managedBy") not in OURS

    @property
    def clean_pod_policy(self) -> str:
        return str(self.policy.get("cleanPodPolicy") or self.spec.get("cleanPodPolicy") or "None")

    @property
    def launcher_works(self) -> bool:
        """`runLauncherAsWorker`."""
        return bool(self.spec.get("runLauncherAsWorker"))

    def worker_names(self) -> Iterator[str]:
        return (f"{self.name}-worker-{index}" for index in range(self.workers))

    def hostfile(self, transport: str) -> str:
        """§5.2 and §12: one line per host, the launcher first if it is one."""
        if transport == "exec":
            return "".join(f"{name} slots={self.slots}\n" for name in self.worker_names())
        names = [*([f"{self.name}-launcher"] if self.launcher_works else []), *self.worker_names()]
        is_open_mpi = (self.spec.get("mpiImplementation") or "OpenMPI") == "OpenMPI"
        slots = f" slots={self.slots}" if is_open_mpi else f":{self.slots}"
        return "".join(f"{name}.{self.name}.{self.namespace}.svc{slots}\n" for name in names)

    def discover_hosts(self, transport: str, running: list[str]) -> str:
        """The script that prints the `running` workers."""
        if transport == "exec":
            return "#!/bin/sh" + "".join(f"\necho {name}:{self.slots}" for name in sorted(running))
        names = [*([f"{self.name}-launcher"] if self.launcher_works else []), *sorted(running)]
        return "#!/bin/sh\n" + "".join(f"echo {name}.{self.name}.{self.namespace}.svc\n" for name in names)

    # Status -----------------------------------------------------------------------------------------------------------

    def find(self, type_: str) -> Json | None:
        return next((each for each in self.conditions if each["type"] == type_), None)

    def is_true(self, type_: str) -> bool:
        found = self.find(type_)
        return found is not None and found["status"] == "True"

    @property
    def finished(self) -> bool:
        return self.is_true("Succeeded") or self.is_true("Failed")


def role_of(pod: Json) -> str:
    """`launcher` or `worker`: each transport says it in a label of its own (§12)."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get(LABELS + "replica-type") or labels.get(LABELS + "job-role") or "")


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_done(launcher: Json | None) -> bool:
    """The batch Job has ended."""
    return has_condition(launcher, "Complete") or has_condition(launcher, "Failed")


def has_condition(launcher: Json | None, type_: str) -> bool:
    conditions = ((launcher or {}).get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def is_suspended(launcher: Json | None) -> bool:
    return bool(((launcher or {}).get("spec") or {}).get("suspend"))


LOST_AFTER = 30.0
"""Seconds after its grace period from which a launcher that is still there is replaced."""


@dataclass(slots=True)
class Member:
    """One pod of an MPIJob: a worker, or the launcher."""

    uid: str
    name: str
    role: str
    value: Json
    ready_at: float | None = None
    """When it was last seen to be ready, living."""
    ran_at: float | None = None
    """When it was first seen to run."""
    left: bool = False
    """Somebody has deleted it."""
    left_at: float = 0.0
    gone: bool = False

    def is_lost(self, now: float) -> bool:
        """Its node is taken for lost: it is there for so long after its grace period (docs/migrate-mpi.md)."""
        grace = self.value["metadata"].get("deletionGracePeriodSeconds") or 0
        return self.left and now >= self.left_at + grace + LOST_AFTER

    @property
    def phase(self) -> str:
        return phase_of(self.value)

    @property
    def alive(self) -> bool:
        """Its processes run, or will, also while it terminates."""
        return not self.gone and self.phase in {"Pending", "Running"}

    @property
    def living(self) -> bool:
        return not self.gone and not self.left


@dataclass(slots=True)
class MpiRecord:
    """One MPIJob by UID."""

    job: MpiJob
    versions: list[tuple[float, MpiJob]]
    """Since when it had which spec."""
    members: dict[str, Member] = field(default_factory=dict)
    launcher: Json | None = None
    """Its batch Job."""
    launchers: set[str] = field(default_factory=set)
    """UIDs of all its batch Jobs."""
    ended_as: set[str] = field(default_factory=set)
    """`Complete` and `Failed`: how its batch Jobs have ended."""
    transport: str = ""
    """By the first child, or the annotation."""
    key: Json | None = None
    """Data of the last Secret that was there."""
    keyless: bool = False
    """Somebody has deleted that Secret."""
    evicted: bool = False
    """A worker was."""
    refused: bool = False
    gone: bool = False

    def since(self, moment: float) -> list[MpiJob]:
        """The versions of the spec that were current at `moment` or later, the latest first."""
        found = [
            job
            for number, (_, job) in enumerate(self.versions)
            if number + 1 == len(self.versions) or self.versions[number + 1][0] >= moment
        ]
        return found[::-1]

    def take(self, now: float, job: MpiJob) -> None:
        if (
            self.job.value["metadata"].get("generation") != job.value["metadata"].get("generation")
            or self.job.finished != job.finished
            or self.job.terminating != job.terminating
        ):
            self.versions.append((now, job))
        self.job = job
        self.transport = self.transport or job.transport

    def of(self, role: str) -> list[Member]:
        return [member for member in self.members.values() if member.role == role and not member.gone]

    def workers(self) -> dict[str, Member]:
        """By name, those that somebody has deleted included."""
        return {member.name: member for member in self.of("worker")}

    def running_workers(self) -> list[str]:
        """Of those that the spec asks for."""
        wanted = set(self.job.worker_names())
        return [
            each.name for each in self.of("worker") if each.living and each.phase == "Running" and each.name in wanted
        ]


def owner_of(value: Json) -> tuple[str, str]:
    """Kind and UID of the controller."""
    owner = controller_of(value) or {}
    return str(owner.get("kind", "")), str(owner.get("uid", ""))
