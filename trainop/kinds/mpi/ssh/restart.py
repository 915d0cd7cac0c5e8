"""The restart of a whole MPIJob with transport ssh: the Job of its launcher and its workers are deleted, and made anew
when all their pods are gone.

The Job controller counts the failures of one Job. Those of former Jobs, and the restarts themselves, are in the restart
history, so that `backoffLimit` holds for all together.
"""

from __future__ import annotations

from trainop.engine.actions import Plan, Remove
from trainop.engine.failures import Limit
from trainop.engine.restart_history import RESTARTS
from trainop.engine.root_cause import Failure
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.status import RESTARTING
from trainop.engine.steps.restarts import describe_restart
from trainop.kinds.mpi.ssh.clean_up import end
from trainop.kinds.mpi.ssh.finish import release
from trainop.kinds.mpi.ssh.job import parse_ssh
from trainop.kinds.mpi.ssh.launcher import DEFAULT_BACKOFF_LIMIT
from trainop.kinds.mpi.ssh.status import BACKOFF, fail
from trainop.kinds.mpi.ssh.workers import all_workers, delete
from trainop.kinds.mpi.ssh.world import ENDED_PHASES, World, survey
from trainop.kinds.mpi.transport import LAUNCHER_JOBS


def restart_ssh(seen: Snapshot, cause: Failure) -> Plan | None:
    """Plans the restart of launcher and workers. None if their templates are unreadable."""
    job, _ = parse_ssh(seen.job, seen.options)
    if job is None:
        return None
    world = survey(seen, job)
    if _begin(world, cause):
        return continue_restart(world)
    fail(world, BACKOFF, Limit.BACKOFF.message.format(job.name))
    return end(world)


def give_up_ssh(seen: Snapshot, cause: Failure) -> Plan:
    """Plans the end of a job at its startup deadline."""
    job, _ = parse_ssh(seen.job, seen.options)
    if job is None:
        return Plan()
    world = survey(seen, job)
    world.builder.blame(cause)
    fail(world, Limit.STARTUP.value, Limit.STARTUP.message.format(job.name))
    return end(world)


def _begin(world: World, cause: Failure) -> bool:
    """Counts the restart and deletes all pods. Returns False if `backoffLimit` is exceeded."""
    builder, history = world.builder, world.history
    builder.blame(cause)
    failed = world.launcher_status.get("failed")
    history.count(1 + (failed if isinstance(failed, int) else 0), 0)
    history.whole = True
    pods = _living(world)
    for pod in pods:
        history.mark_counted(pod.metadata.uid)
    builder.annotations[RESTARTS] = history.text(pod.metadata.uid for pod in pods)
    if history.failures > world.job.job_limits.get("backoffLimit", DEFAULT_BACKOFF_LIMIT):
        return False
    text = builder.with_cause(describe_restart(builder, cause.reason))
    builder.status.set(RESTARTING, "MPIJobRestarting", text)
    builder.event("MPIJobRestarting", text, "Warning")
    builder.count("restarted")
    return True


def continue_restart(world: World) -> Plan:
    """Deletes what is left of the former run. Nothing is created meanwhile."""
    builder, launcher = world.builder, world.launcher
    builder.status.retire_active()
    if launcher is not None and not launcher.metadata.terminating:
        builder.actions += [each for each in (release(launcher),) if each is not None]
        builder.actions.append(Remove(LAUNCHER_JOBS, launcher.metadata.name, launcher.metadata.uid))
    delete(world, _living(world))
    return builder.plan(waits=True)


def _living(world: World) -> list[Pod]:
    return [*all_workers(world), *(pod for pod in world.launcher_pods if pod.status.phase not in ENDED_PHASES)]
