"""What one plan of an MPIJob with transport ssh starts from: the pods of the snapshot, sorted into workers and launcher
pods, and the launcher's Job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from trainop.engine.actions import Need
from trainop.engine.bad_nodes import read_avoidance
from trainop.engine.fields import as_object
from trainop.engine.framework import CompanionKind, NameTaken, Words
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.status import RESTARTING, RUNNING, ConditionRules
from trainop.engine.steps.builder import PlanBuilder
from trainop.kinds.mpi.hosts import owned_workers, worker_index
from trainop.kinds.mpi.ssh.finish import condition_of, has_ended
from trainop.kinds.mpi.ssh.job import SshJob
from trainop.kinds.mpi.ssh.objects import CONTROLLER, waits_for_workers
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2
from trainop.runtime import Json, Metadata, Unstructured

CONDITION_RULES = ConditionRules(removes={RUNNING: (RESTARTING,), RESTARTING: (RUNNING,)})
ENDED_PHASES = ("Succeeded", "Failed")
LAUNCHER_JOB = CompanionKind(LAUNCHER_JOBS, Need.JOB, permission_optional=True)

WORDS = Words(
    resource=MPI_V2,
    controller=CONTROLLER,
    name_taken=NameTaken(
        "ErrResourceExists", 'Resource "{name}" of Kind "{kind}" already exists and is not managed by MPIJob'
    ),
)


@dataclass
class World:
    """The job and its children as the snapshot shows them, and the plan to which the steps of `plan_ssh` add."""

    builder: PlanBuilder
    job: SshJob
    launcher: Unstructured | None = None
    """The launcher's Job, if the MPIJob controls it."""
    workers: dict[int, Pod] = field(default_factory=dict)
    """Index -> pod, for the indices below the number of replicas. Some may be terminating."""
    surplus: list[Pod] = field(default_factory=list)
    """Workers whose index is not below the number of replicas, as after scaling down."""
    launcher_pods: list[Pod] = field(default_factory=list)
    """Pods of `launcher`."""
    former_launcher_pods: list[Pod] = field(default_factory=list)
    """Pods of deleted Jobs of the launcher's name."""
    foreign_launchers: list[Unstructured] = field(default_factory=list)
    """Jobs of the launcher's name that the MPIJob does not control."""
    foreign_workers: list[Pod] = field(default_factory=list)
    """Pods with the name of a worker that the MPIJob does not control."""

    @property
    def seen(self) -> Snapshot:
        return self.builder.seen

    @cached_property
    def history(self) -> RestartHistory:
        """The restarts of the whole job. Those of the launcher alone are counted by the Job controller."""
        return RestartHistory(self.job.metadata.uid, self.job.metadata.annotations)

    @property
    def restarting(self) -> bool:
        """Whether pods from before a restart of the whole job are left."""
        pods = (*self.workers.values(), *self.surplus, *self.launcher_pods, *self.former_launcher_pods)
        return self.history.restarts_whole(pod.metadata.uid for pod in pods)

    @property
    def former_launcher_runs(self) -> bool:
        """A pod of a deleted launcher Job runs or terminates: the garbage collector has not removed it yet."""
        return any(pod.status.phase not in ENDED_PHASES for pod in self.former_launcher_pods)

    @property
    def foreign_pods(self) -> list[Pod]:
        """Pods that the MPIJob and its launcher Job do not control, and whose end the job may wait for."""
        return [*self.former_launcher_pods, *self.foreign_workers]

    @property
    def foreign_objects(self) -> list[tuple[str, Metadata]]:
        """Kind and metadata of the objects that have names of children and that the MPIJob does not control."""
        jobs, pods = self.foreign_launchers, self.foreign_workers
        return [*(("Job", each.metadata) for each in jobs), *(("Pod", each.metadata) for each in pods)]

    @property
    def has_begun(self) -> bool:
        """A child exists that mounts the key. The Secret is made before the first of them."""
        pods = (self.workers, self.surplus, self.launcher_pods)
        return any(pods) or self.launcher is not None or self.former_launcher_runs

    @property
    def launcher_is_done(self) -> bool:
        """The Job has ended, successfully or not."""
        return self.launcher is not None and has_ended(self.launcher)

    def launcher_condition(self, type_: str) -> Json | None:
        """The condition of the launcher's Job, if it is true."""
        return condition_of(self.launcher, type_) if self.launcher else None

    @property
    def launcher_status(self) -> Json:
        """The status of the launcher's Job, empty without one."""
        return as_object(self.launcher.raw.get("status") if self.launcher else None)

    @property
    def launcher_is_suspended(self) -> bool:
        spec = self.launcher.raw.get("spec") if self.launcher else None
        return isinstance(spec, dict) and spec.get("suspend") is True

    def count(self, phase: str) -> int:
        """The number of workers in a phase."""
        return sum(pod.status.phase == phase for pod in self.workers.values())

    @property
    def running_launchers(self) -> int:
        """The number of running pods of the launcher's Job."""
        return sum(pod.status.phase == "Running" for pod in self.launcher_pods)

    @property
    def all_ready(self) -> bool:
        """Every worker that the spec asks for is ready."""
        ready = (pod for pod in self.workers.values() if pod.status.ready and not pod.metadata.terminating)
        return sum(1 for _ in ready) == self.job.workers

    @property
    def may_launch(self) -> bool:
        """The workers are as far as the launcher needs them, and no former launcher uses them."""
        return not self.former_launcher_runs and (not waits_for_workers(self.job) or self.all_ready)


def survey(seen: Snapshot, job: SshJob) -> World:
    """Sorts the children in the snapshot and begins a plan."""
    job = replace(job, avoidance=read_avoidance(seen.job.metadata, seen.now))
    owned = list(owned_workers(seen))
    world = World(PlanBuilder(WORDS, seen, begun=bool(owned), rules=CONDITION_RULES), job)
    for index, pod in owned:
        if index < job.workers:
            world.workers[index] = pod
        else:
            world.surplus.append(pod)
    world.foreign_workers = _foreign_workers(seen, job)
    for found in seen.companions.get(LAUNCHER_JOBS, ()):
        if found.metadata.name != job.launcher_name:
            continue
        if found.metadata.controlled_by(job.metadata.uid):
            world.launcher = found
        else:
            world.foreign_launchers.append(found)
    uid = world.launcher.metadata.uid if world.launcher is not None else ""
    for pod in seen.pods:
        owner = pod.metadata.controller
        if owner is not None and (owner.kind, owner.name) == (LAUNCHER_JOBS.kind, job.launcher_name):
            (world.launcher_pods if owner.uid == uid else world.former_launcher_pods).append(pod)
    return world


def _foreign_workers(seen: Snapshot, job: SshJob) -> list[Pod]:
    foreign = (pod for pod in seen.pods if not pod.metadata.controlled_by(seen.job.metadata.uid))
    return [
        pod
        for pod in foreign
        if (index := worker_index(job.name, pod.metadata.name)) is not None and index < job.workers
    ]


def are_hosts_settled(seen: Snapshot, job: SshJob) -> bool:
    """Whether all workers run, and the launcher too unless it starts after them: the list of hosts is then complete."""
    running = sum(index < job.workers and pod.status.phase == "Running" for index, pod in owned_workers(seen))
    if running < job.workers:
        return False
    return waits_for_workers(job) or any(
        pod.status.phase == "Running" and pod.metadata.controller is not None and pod.metadata.controller.kind == "Job"
        for pod in seen.pods
    )
