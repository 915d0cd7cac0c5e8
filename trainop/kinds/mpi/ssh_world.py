"""What one plan of an MPIJob with transport ssh starts from: the job's pods and its launcher Job in the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trainop.engine.claim import Children, Claimed
from trainop.engine.framework import CompanionKind, NameTaken
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.status import RESTARTING, RUNNING, ConditionRules
from trainop.engine.steps.builder import PlanBuilder
from trainop.kinds.mpi.exec import MPI_EXEC
from trainop.kinds.mpi.hosts import CONFIG, owned_workers, worker_index
from trainop.kinds.mpi.ssh_finish import condition_of, has_ended
from trainop.kinds.mpi.ssh_gang import gang_view
from trainop.kinds.mpi.ssh_job import SshJob
from trainop.kinds.mpi.ssh_objects import CONTROLLER, config, waits_for_workers
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2
from trainop.runtime.objects.metadata import Json, Metadata, Unstructured

RULES = ConditionRules(removes={RUNNING: (RESTARTING,), RESTARTING: (RUNNING,)})
ENDED = ("Succeeded", "Failed")
LAUNCHER_JOB = CompanionKind(LAUNCHER_JOBS, needed_by_pods=True, permission_optional=True)

MPI_SSH = replace(
    MPI_EXEC,
    resource=MPI_V2,
    controller=CONTROLLER,
    companion_kinds=(CONFIG, LAUNCHER_JOB),
    name_taken=NameTaken(
        "ErrResourceExists", 'Resource "{name}" of Kind "{kind}" already exists and is not managed by MPIJob'
    ),
)
"""The constants of the transport in the form that the engine's steps read. Its plan is not the engine's."""


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
    taken: list[tuple[str, Metadata]] = field(default_factory=list)
    """Kinds and metadata of objects of other owners that have names of children."""

    @property
    def seen(self) -> Snapshot:
        return self.builder.seen

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
    world = World(_begin(seen, job), job)
    for index, pod in owned_workers(seen):
        if index < job.workers:
            world.workers[index] = pod
        else:
            world.surplus.append(pod)
    _sort_launchers(world)
    for pod in seen.pods:
        place = worker_index(job.name, pod.metadata.name)
        if place is not None and place < job.workers and not _is_controlled_by(pod.metadata, uid):
            world.taken.append(("Pod", pod.metadata))
    return world


def _sort_launchers(world: World) -> None:
    """Finds the launcher's Job, its pods, and whether a pod of a former one runs."""
    seen, job = world.seen, world.job
    for found in seen.companions.get(LAUNCHER_JOBS, ()):
        if found.metadata.name != job.launcher_name:
            continue
        if _is_controlled_by(found.metadata, job.metadata.uid):
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
        elif pod.status.phase not in ENDED:
            world.former_runs = True


def _is_controlled_by(metadata: Metadata, uid: str) -> bool:
    owner = metadata.controller
    return owner is not None and owner.uid == uid


def _begin(seen: Snapshot, job: SshJob) -> PlanBuilder:
    owned = [pod for _, pod in owned_workers(seen)]
    parsed = gang_view(job, seen.job.raw["spec"])
    framework = replace(MPI_SSH, companions=lambda _job, seen: (config(job, seen, settled=_is_settled(seen, job)),))
    return PlanBuilder(framework, parsed, seen, Children(Claimed(owned=owned), Claimed()), RULES)


def _is_settled(seen: Snapshot, job: SshJob) -> bool:
    """Whether all workers run, and the launcher if it does not wait for them."""
    running = sum(index < job.workers and pod.status.phase == "Running" for index, pod in owned_workers(seen))
    if running < job.workers:
        return False
    return waits_for_workers(job) or any(
        pod.status.phase == "Running" and pod.metadata.controller is not None and pod.metadata.controller.kind == "Job"
        for pod in seen.pods
    )
