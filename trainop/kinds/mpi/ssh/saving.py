"""The restart of a whole MPIJob over ssh, with on-disruption `checkpoint-all` (`trainop/engine/disruptions.py`).

The launcher's Job is suspended: the Job controller ends its pod and counts no failure. A Job that has ended meanwhile,
whatever its result, is deleted, because it has ended as a consequence. Workers are created and the Job is resumed once
all pods are gone. Until then the restart history also contains the UID of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trainop.engine.actions import Remove
from trainop.engine.disruptions import is_disrupted
from trainop.engine.evidence import Place, failure_of
from trainop.engine.extensions import read_checkpoint, read_extensions
from trainop.engine.failures import Limit
from trainop.engine.fields import Fields
from trainop.engine.framework import Tally
from trainop.engine.restart_history import RESTARTS, RestartHistory
from trainop.engine.root_cause import find_cause
from trainop.engine.seen import Pod
from trainop.engine.status import RESTARTING
from trainop.engine.steps.checkpoints import AWAITED, await_checkpoint, may_await_checkpoint
from trainop.kinds.mpi.hosts import LAUNCHER, WORKER
from trainop.kinds.mpi.ssh.finish import release
from trainop.kinds.mpi.ssh.launcher import suspend_launcher
from trainop.kinds.mpi.ssh.status import fail, full_name, record
from trainop.kinds.mpi.ssh.workers import all_workers, delete
from trainop.kinds.mpi.ssh.world import ENDED_PHASES, World
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.runtime import PODS


def restart_together(world: World) -> bool:
    """Begins or continues a restart of the whole job. Returns whether that is all that this plan does. The job may have
    failed then, because of the limit of disruptions."""
    metadata = world.job.metadata
    checkpoint = read_checkpoint(metadata.annotations)
    if not checkpoint.asked or world.job.suspend:
        return False
    history = RestartHistory(metadata.uid, metadata.annotations)
    history.whole = world.restarting  # that of a restart that is over is outdated
    if checkpoint.together and (disrupted := _find_disrupted(world, history)):
        _begin(world, history, disrupted)
        if world.builder.status.finished:
            return True
    if not history.is_counted(metadata.uid):
        return False
    if not world.launcher_is_done and not any(history.is_counted(pod.metadata.uid) for _, pod in _living(world)):
        world.builder.annotations[RESTARTS] = history.text(pod.metadata.uid for pod in _pods(world))
        return False
    _end_pods(world)
    failed = world.launcher_status.get("failed")
    world.builder.status.record({LAUNCHER: Tally(failed=failed if isinstance(failed, int) else 0), WORKER: Tally()})
    return True


def note_ends(world: World) -> None:
    """Records the pods that this plan ends, so that their end is no disruption. After a suspension, the job goes on
    when all are gone, as after a restart."""
    metadata, suspend = world.job.metadata, world.job.suspend
    if not read_checkpoint(metadata.annotations).asked:
        return
    noted = {RESTARTS: found} if (found := world.builder.annotations.get(RESTARTS)) is not None else {}
    history = RestartHistory(metadata.uid, metadata.annotations | noted)
    history.whole = False
    ended = {action.uid for action in world.builder.actions if isinstance(action, Remove) and action.resource == PODS}
    if suspend:
        ended |= {pod.metadata.uid for _, pod in _living(world)}
    if suspend and ended:
        ended.add(metadata.uid)
    for uid in ended:
        history.mark_counted(uid)
    if history.changed:
        world.builder.annotations[RESTARTS] = history.text(_marked(world))


def awaits_checkpoint(world: World) -> bool:
    """Whether the job is to be suspended and runs on until its next checkpoint. It does not if it has lost a pod."""
    builder = world.builder
    if not (world.job.suspend and may_await_checkpoint(builder)):
        builder.drop_annotation(AWAITED)
        return False
    whole = world.running_launchers and world.count("Running") == world.job.workers
    if not whole or any(pod.metadata.terminating for pod in _pods(world)) or not await_checkpoint(builder):
        return False
    record(replace(world, job=replace(world.job, suspend=False)), launcher_exists=True)
    return True


def _find_disrupted(world: World, history: RestartHistory) -> list[tuple[Place, Pod]]:
    living = [(place, pod) for place, pod in _living(world) if not history.is_counted(pod.metadata.uid)]
    return [(place, pod) for place, pod in living if is_disrupted(pod)]


def _living(world: World) -> Iterator[tuple[Place, Pod]]:
    """The workers, and the pods of the launcher that have not ended: the Job controller keeps those of failed
    attempts."""
    for index, pod in world.workers.items():
        yield Place(WORKER, index), pod
    for pod in world.launcher_pods:
        if pod.status.phase not in ENDED_PHASES:
            yield Place(LAUNCHER), pod


def _begin(world: World, history: RestartHistory, disrupted: list[tuple[Place, Pod]]) -> None:
    """Counts one disruption, and marks everything that is to end."""
    builder, now = world.builder, world.seen.wall or world.seen.now
    history.count(0, 1)
    builder.count("disrupted")
    for uid in _marked(world):
        history.mark_counted(uid)
    builder.annotations[RESTARTS] = history.text(_marked(world))
    builder.blame(find_cause([failure_of(pod, place, now) for place, pod in disrupted]))
    limit = read_extensions(Fields(), world.job.metadata.annotations).infra_restart_limit
    if limit is not None and history.disruptions > limit:
        fail(world, f"MPIJob{Limit.INFRA.value}", Limit.INFRA.message.format(world.job.name))
        return
    what = f"{full_name(world)} is restarting because {len(disrupted)} of its pods were disrupted."
    text = builder.with_cause(f"{what} All replicas save and end.")
    builder.status.set(RESTARTING, builder.reason(RESTARTING), text)
    builder.event(builder.reason(RESTARTING), text, "Warning")
    builder.count("restarted")


def _pods(world: World) -> list[Pod]:
    return [*all_workers(world), *world.launcher_pods]


def _marked(world: World) -> list[str]:
    """The UIDs that the history keeps: those of pods, and that of the job while everything is to end."""
    return [world.job.metadata.uid, *(pod.metadata.uid for pod in _pods(world))]


def _end_pods(world: World) -> None:
    launcher, actions = world.launcher, world.builder.actions
    if launcher is not None and world.launcher_is_done:
        actions += [patch for patch in (release(launcher),) if patch is not None]
        if not launcher.metadata.terminating:
            actions.append(Remove(LAUNCHER_JOBS, launcher.metadata.name, launcher.metadata.uid))
    elif launcher is not None and not world.launcher_is_suspended and not launcher.metadata.terminating:
        actions.append(suspend_launcher(launcher))
    delete(world, all_workers(world))
