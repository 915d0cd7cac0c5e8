"""Conditions, counters and events of an MPIJob with transport ssh (mpi-operator
`pkg/controller/mpi_job_controller_status.go`)."""

from __future__ import annotations

from trainop.engine.failures import EVICTED
from trainop.engine.framework import Tally
from trainop.engine.pod_status import ContainerStatus
from trainop.engine.seen import Pod
from trainop.engine.status import CREATED, FAILED, RUNNING, SUCCEEDED, SUSPENDED
from trainop.kinds.mpi.hosts import LAUNCHER, WORKER
from trainop.kinds.mpi.ssh.cause import cause_of_launcher
from trainop.kinds.mpi.ssh.world import World
from trainop.runtime import Json
from trainop.runtime.lowlevel import timestamp

RESUMED = "MPIJobResumed"
BACKOFF = "BackoffLimitExceeded"


def full_name(world: World) -> str:
    metadata = world.job.metadata
    return f"MPIJob {metadata.namespace}/{metadata.name}"


def note_creation(world: World) -> None:
    """Sets Created on the first reconcile."""
    builder = world.builder
    text = f"{full_name(world)} is created."
    if builder.status.find(CREATED) is None and builder.status.set(CREATED, "MPIJobCreated", text):
        builder.event("MPIJobCreated", text)
        builder.count("created")


def note_suspension(world: World) -> None:
    """Sets Suspended, and Running to False, or takes Suspended back."""
    builder, status = world.builder, world.builder.status
    if not world.job.suspend:
        if status.is_true(SUSPENDED) and status.set(SUSPENDED, RESUMED, "MPIJob resumed", status="False"):
            builder.event(RESUMED, "MPIJob resumed")
            status.start()
        return
    if status.set(SUSPENDED, "MPIJobSuspended", "MPIJob suspended"):
        status.forget_start()  # mpi-operator keeps it, and the status of a job that it has suspended stays as it is
        builder.event("MPIJobSuspended", "MPIJob suspended")
    status.set(RUNNING, "MPIJobSuspended", f"{full_name(world)} is suspended.", status="False")


def record(world: World, *, launcher_exists: bool) -> None:
    """The counters of a job that has not ended, and the conditions that follow from them."""
    tallies: dict[str, Tally] = {}
    if launcher_exists:
        failed = world.launcher_status.get("failed")
        tallies[LAUNCHER] = Tally(world.running_launchers, 0, failed if isinstance(failed, int) else 0)
    running = world.count("Running")
    tallies[WORKER] = Tally(running, world.count("Succeeded"), world.count("Failed"))
    if world.job.suspend:
        tallies[WORKER] = Tally()
    world.builder.status.record(tallies)
    note_suspension(world)
    if not world.job.suspend and world.running_launchers and running == world.job.workers:
        reason, text = "MPIJobRunning", f"{full_name(world)} is running"
        if world.builder.status.set(RUNNING, reason, f"{text}."):
            world.builder.event(reason, text)


def evictions(world: World) -> int:
    """The number of workers that were evicted from their nodes."""
    return sum(pod.status.phase == "Failed" and pod.status.reason == EVICTED for pod in world.workers.values())


def end_with_launcher(world: World) -> None:
    """Ends the job as its launcher has ended."""
    found = world.launcher_status.get("failed")
    failed = found if isinstance(found, int) else 0
    if world.launcher_condition("Complete") is not None:
        world.builder.status.record({LAUNCHER: Tally(succeeded=1, failed=failed), WORKER: Tally()})
        end = world.launcher_status.get("completionTime")
        succeed(world, end if isinstance(end, str) else None)
        return
    world.builder.status.record({LAUNCHER: Tally(failed=failed), WORKER: Tally()})
    condition = world.launcher_condition("Failed") or {}
    world.builder.blame(cause_of_launcher(world, condition))
    fail(world, *_failure(world, condition))


def succeed(world: World, at: str | None) -> None:
    text = f"{full_name(world)} successfully completed."
    _note_never_run(world, at)
    world.builder.status.set(SUCCEEDED, "MPIJobSucceeded", text)
    world.builder.status.complete(at)
    world.builder.event("MPIJobSucceeded", text)
    world.builder.count("successful")


def fail(world: World, reason: str, message: str) -> None:
    """Fails the job, whose launcher is suspended if it still runs, with the root cause behind upstream's message."""
    message = world.builder.with_cause(message)
    _note_never_run(world, None)
    world.builder.status.retire_active(LAUNCHER)
    world.builder.status.set(FAILED, reason, message)
    world.builder.status.complete()
    world.builder.event(reason, message, "Warning")
    world.builder.count("failed")


def _failure(world: World, condition: Json) -> tuple[str, str]:
    """Reason and message of the failed Job, completed by those of its newest failed pod. Of a pod whose program has
    failed, upstream finds neither and leaves `BackoffLimitExceeded/`; its container then has both. A Job of policy
    OnFailure deletes its last pod, which is still in phase Running if it is seen at all."""
    reason = str(condition.get("reason") or "MPIJobFailed")
    message = str(condition.get("message") or f"{full_name(world)} has failed")
    failed = [pod for pod in world.launcher_pods if pod.status.phase == "Failed" or failed_container(pod)]
    if reason != BACKOFF or not failed:
        return reason, message
    pod: Pod = max(failed, key=lambda pod: pod.metadata.creation_timestamp or "")
    container = failed_container(pod)
    end = container.state.terminated if container is not None else None
    why = pod.status.reason or (end.reason if end else "")
    text = pod.status.message
    if not text and container is not None and end is not None:
        text = f"container {container.name} of {pod.metadata.name} exited with code {end.exit_code}"
    return "/".join(filter(None, (reason, why))), ": ".join(filter(None, (message, text)))


def failed_container(pod: Pod) -> ContainerStatus | None:
    """The first container that has ended with another exit code than 0."""
    for each in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        if each.state.terminated is not None and each.state.terminated.exit_code:
            return each
    return None


def _note_never_run(world: World, at: str | None) -> None:
    """Adds Running False before the terminal condition, so that the last condition is the terminal one (column
    State). Upstream adds it after."""
    status = world.builder.status
    text = f"{full_name(world)} is finished but Running condition was never set."
    if status.find(RUNNING) is None and status.set(RUNNING, "MPIJobRunning", text, status="False"):
        moment = at or timestamp(world.seen.now)
        status.conditions[-1] |= {"lastUpdateTime": moment, "lastTransitionTime": moment}
