"""What an MPIJob with transport ssh waits for, besides its pods."""

from __future__ import annotations

from trainop.engine.actions import Unstarted
from trainop.engine.children import join_names
from trainop.engine.startup import STARTUP_DEADLINE, has_started
from trainop.engine.status import RUNNING
from trainop.engine.steps.symptoms import notice_symptoms
from trainop.engine.waiting import LAUNCHER_PENDING, WORKERS_NOT_READY
from trainop.kinds.mpi.ssh.world import World


def note_waits(world: World, *, launching: bool) -> None:
    """Adds what the launcher waits for, and the events of pods that cannot start. `launching`: the launcher's Job is
    being created."""
    world.builder.notices += notice_symptoms((*world.workers.values(), *world.launcher_pods))
    if launching or world.launcher_pods or world.builder.status.is_true(RUNNING):
        return  # the Job controller usually replaces the pod of a job that runs within moments
    name, wait = world.job.launcher_name, world.builder.wait
    if world.former_launcher_runs:
        wait(LAUNCHER_PENDING, f"Job {name} starts when the pod of its predecessor is gone")
    elif not world.may_launch:
        wait(WORKERS_NOT_READY, *_describe_workers(world))
    elif world.launcher is not None:
        wait(LAUNCHER_PENDING, f"Job {name} has no pod", f"see `kubectl describe job {name}`")


def find_unstarted(world: World) -> Unstarted | None:
    """The replicas that have not started; None if the job has no startup deadline."""
    job = world.job
    if STARTUP_DEADLINE not in job.metadata.annotations:
        return None
    missing = [index for index in range(job.workers) if not has_started(world.workers.get(index))]
    launchers = () if any(map(has_started, world.launcher_pods)) else (job.launcher_name,)
    return Unstarted((*launchers, *(f"{job.name}-worker-{index}" for index in missing)), 1 + job.workers)


def _describe_workers(world: World) -> tuple[str, str]:
    """The workers that are not ready. Those that are missing, pending or terminating are named before."""
    started = [pod for pod in world.workers.values() if pod.status.phase != "Pending" and not pod.status.ready]
    if not started:
        return "The launcher starts when all workers are ready", ""
    ended = [pod for pod in started if pod.status.phase in {"Failed", "Succeeded"}]
    named = join_names(pod.metadata for pod in ended or started)
    if ended:
        return f"The launcher starts when all workers are ready, and {named} will not be, having ended", "delete them"
    return f"The launcher starts when all workers are ready, and {named} are not", "see their readiness probes"
