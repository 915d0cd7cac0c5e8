"""What one plan of an MPIJob with transport ssh starts from: the job's pods and its launcher Job in the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainop.engine.framework import CompanionKind, NameTaken, Words
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.status import RESTARTING, RUNNING, ConditionRules
from trainop.engine.steps.builder import PlanBuilder
from trainop.kinds.mpi.hosts import owned_workers, worker_index
from trainop.kinds.mpi.ssh.finish import condition_of, has_ended
from trainop.kinds.mpi.ssh.job import SshJob
from trainop.kinds.mpi.ssh.objects import CONTROLLER, waits_for_workers
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2
from trainop.runtime import Json, Metadata, Unstructured

RULES = ConditionRules(removes={RUNNING: (RESTARTING,), RESTARTING: (RUNNING,)})
ENDED = ("Succeeded", "Failed")
LAUNCHER_JOB = CompanionKind(LAUNCHER_JOBS, needed_by_pods=True, permission_optional=True)

WORDS = Words(
    resource=MPI_V2,
    controller=CONTROLLER,
    name_taken=NameTaken(
        "ErrResourceExists", 'Resource "{name}" of Kind "{kind}" already exists and is not managed by MPIJob'
    ),
)


@dataclass(slots=True)
class World:
    """The job and its children, and the plan that is being made."""

    builder: PlanBuilder
    job: SshJob
    launcher: Unstructured | None = None
    """The launcher's Job, if the MPIJob controls it."""
    workers: dict[int, Pod] = field(default_factory=dict)
    """Index -> pod, terminating ones included; only indices that the spec asks for."""
    surplus: list[Pod] = field(default_factory=list)
    """Workers above the count."""
    launcher_pods: list[Pod] = field(default_factory=list)
    former_runs: bool = False
    """A pod of a deleted Job of the launcher runs, because it is not garbage-collected yet, or terminates."""
    others: list[Pod] = field(default_factory=list)
    """Pods of other owners that have names of workers, and those of former Jobs of the launcher."""
    taken: list[tuple[str, Metadata]] = field(default_factory=list)
    """Kinds and metadata of objects of other owners that have names of children."""

    @property
    def seen(self) -> Snapshot:
        return self.builder.seen

    @property
    def has_begun(self) -> bool:
        """A child exists that needs the key, which is made before the first of them."""
        return bool(self.workers or self.surplus or self.launcher or self.launcher_pods or self.former_runs)

    @property
    def launcher_is_done(self) -> bool:
        """The Job has ended, successfully or not."""
        return self.launcher is not None and has_ended(self.launcher)

    def launcher_condition(self, type_: str) -> Json | None:
        """The condition of the launcher's Job, if it is true."""
        return condition_of(self.launcher, type_) if self.launcher else None

    @property
    def launcher_status(self) -> Json:
        status = self.launcher.raw.get("status") if self.launcher else None
        return status if isinstance(status, dict) else {}

    @property
    def launcher_is_suspended(self) -> bool:
        spec = self.launcher.raw.get("spec") if self.launcher else None
        return isinstance(spec, dict) and spec.get("suspend") is True

    def count(self, phase: str) -> int:
        """The number of workers in a phase."""
        return sum(pod.status.phase == phase for pod in self.workers.values())

    @property
    def running_launchers(self) -> int:
        return sum(pod.status.phase == "Running" for pod in self.launcher_pods)

    @property
    def all_ready(self) -> bool:
        """Every worker that the spec asks for is ready."""
        ready = (pod for pod in self.workers.values() if pod.status.ready and not pod.metadata.terminating)
        return sum(1 for _ in ready) == self.job.workers

    @property
    def may_launch(self) -> bool:
        """The workers are as far as the launcher needs them, and no former launcher uses them."""
        return not self.former_runs and (not waits_for_workers(self.job) or self.all_ready)


def look(seen: Snapshot, job: SshJob) -> World:
    """Sorts the children in the snapshot."""
    uid = seen.job.metadata.uid
    owned = list(owned_workers(seen))
    world = World(PlanBuilder(WORDS, seen, begun=bool(owned), rules=RULES), job)
    for index, pod in owned:
        if index < job.workers:
            world.workers[index] = pod
        else:
            world.surplus.append(pod)
    _sort_launchers(world)
    for pod in seen.pods:
        place = worker_index(job.name, pod.metadata.name)
        if place is not None and place < job.workers and not pod.metadata.controlled_by(uid):
            world.taken.append(("Pod", pod.metadata))
            world.others.append(pod)
    return world


def _sort_launchers(world: World) -> None:
    """Finds the launcher's Job, its pods, and whether a pod of a former one runs."""
    seen, job = world.seen, world.job
    for found in seen.companions.get(LAUNCHER_JOBS, ()):
        if found.metadata.name != job.launcher_name:
            continue
        if found.metadata.controlled_by(job.metadata.uid):
            world.launcher = found
        else:
            world.taken.append(("Job", found.metadata))
    uid = world.launcher.metadata.uid if world.launcher is not None else ""
    for pod in seen.pods:
        owner = pod.metadata.controller
        if owner is None or (owner.kind, owner.name) != (LAUNCHER_JOBS.kind, job.launcher_name):
            continue
        if owner.uid == uid:
            world.launcher_pods.append(pod)
        else:
            world.others.append(pod)
            world.former_runs |= pod.status.phase not in ENDED


def is_settled(seen: Snapshot, job: SshJob) -> bool:
    """Whether all workers run, and the launcher if it does not wait for them."""
    running = sum(index < job.workers and pod.status.phase == "Running" for index, pod in owned_workers(seen))
    if running < job.workers:
        return False
    return waits_for_workers(job) or any(
        pod.status.phase == "Running" and pod.metadata.controller is not None and pod.metadata.controller.kind == "Job"
        for pod in seen.pods
    )
