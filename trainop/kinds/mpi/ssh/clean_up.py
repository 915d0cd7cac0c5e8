"""What is done for an MPIJob with transport ssh that has finished."""

from __future__ import annotations

from dataclasses import replace

from trainop.engine.actions import DeleteJob, Plan
from trainop.engine.checkpoint import brief_grace
from trainop.engine.extensions import read_checkpoint
from trainop.engine.failures import Limit
from trainop.engine.status import FAILED, SUCCEEDED
from trainop.engine.steps.gang import disband
from trainop.kinds.mpi.ssh.launcher import leave_launcher
from trainop.kinds.mpi.ssh.workers import all_workers, delete
from trainop.kinds.mpi.ssh.world import World


def tidy_up(world: World) -> Plan:
    """A finished job is cleaned up, and deleted after its time to live if the operator is to do that."""
    status = world.builder.status
    if status.completion_time is None:  # mpi-operator does not set it after an eviction
        status.complete()
    if (left := _seconds_to_live(world)) is not None and left <= 0:
        return replace(world.builder.plan(), actions=(DeleteJob(),))
    world.builder.requeue_after(left)
    _clean_up(world)
    return world.builder.plan()


def _seconds_to_live(world: World) -> float | None:
    """Seconds until the job itself is deleted. mpi-operator leaves that to the user, and so does the operator unless
    `--mpi-job-ttl` is set."""
    ttl, end = world.job.job_limits.get("ttlSecondsAfterFinished"), world.builder.status.completion_time
    if ttl is None or end is None or world.job.suspend or not world.seen.options.mpi_job_ttl:
        return None
    return float(ttl - (world.seen.now - end).total_seconds())


def _clean_up(world: World) -> None:
    """Deletes the workers that `cleanPodPolicy` does not keep. The launcher stays, unless an annotation of the job asks
    for its deletion; one that is not done is suspended."""
    builder, policy = world.builder, world.job.clean_pod_policy
    if (builder.status.find(FAILED) or {}).get("reason") == Limit.STARTUP.value:
        policy = "All"  # the workers that have started only wait for the others
    disband(builder)
    if policy != "None":
        builder.status.clear_counters(("Worker",))
        phases = {"Running", "Pending"} if policy == "Running" else {}
        ended = (pod for pod in all_workers(world) if not phases or pod.status.phase in phases)
        delete(world, ended, _grace_after_success(world))
    builder.actions += leave_launcher(world)
    if world.job.extras.clean_launcher:
        delete(world, world.launcher_pods)


def _grace_after_success(world: World) -> int | None:
    """The grace period of workers that have nothing left to save; None: their own."""
    if world.job.worker is None or not world.builder.status.is_true(SUCCEEDED):
        return None
    return brief_grace(read_checkpoint(world.job.metadata.annotations), world.job.worker.template)


def end(world: World) -> Plan:
    """Completes a plan that has set a terminal condition."""
    _clean_up(world)
    return world.builder.plan(status_first=True)
