"""The root cause of the end of an MPIJob with transport ssh: its launcher's Job fails, or workers are evicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from trainop.engine.evidence import Place, failure_of, past_failure_of, was_stopped
from trainop.engine.failures import EVICTED, Limit
from trainop.engine.root_cause import MAX_NAME, Failure, count_running, find_cause, one_line
from trainop.kinds.mpi.hosts import LAUNCHER, WORKER
from trainop.kinds.mpi.ssh.world import World
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_time


def cause_of_launcher(world: World, condition: Json) -> Failure:
    """The root cause of the failure of the launcher's Job, which has this condition. The Job controller may have
    deleted the pods already; then it is what the status remembers, or the condition."""
    launchers = list(_launcher_failures(world))
    remembered = world.builder.remembered
    if not launchers:
        return remembered or _without_pods(world, condition)
    past = [*_worker_failures(world), *([remembered] if remembered and remembered.role == WORKER else [])]
    return _name_attempt(find_cause(launchers[-1:], past) or launchers[-1], launchers)


def _without_pods(world: World, condition: Json) -> Failure:
    """What the condition of the Job says. At its deadline the launcher has not failed."""
    reason = one_line(str(condition.get("reason") or ""), MAX_NAME)
    at = read_time(condition.get("lastTransitionTime"))
    if reason != Limit.DEADLINE.value:
        return Failure(LAUNCHER, reason=reason, at=at)
    return Failure(reason=reason, message=count_running(world.count("Running"), world.job.workers, "workers"), at=at)


def cause_of_eviction(world: World) -> Failure | None:
    """The worker that was evicted first."""
    evicted = {index: pod for index, pod in world.workers.items() if pod.status.reason == EVICTED}
    return find_cause([failure_of(pod, Place(WORKER, index), _now(world)) for index, pod in evicted.items()])


def cause_of_restart(world: World) -> Failure | None:
    """The root cause of the latest restart of the launcher; None if it was not restarted."""
    launchers = list(_launcher_failures(world))
    if not launchers:
        return None
    return _name_attempt(find_cause([], [launchers[-1], *_worker_failures(world)]) or launchers[-1], launchers)


def _name_attempt(cause: Failure, launchers: Sequence[Failure]) -> Failure:
    """Each failed pod of the launcher was an attempt."""
    return replace(cause, attempt=max(cause.attempt, len(launchers))) if cause.role == LAUNCHER else cause


def _launcher_failures(world: World) -> Iterator[Failure]:
    """One per pod in which the launcher has failed, oldest first. A pod that is deleted while it runs has not
    failed."""
    pods = sorted(world.launcher_pods, key=lambda pod: pod.metadata.creation_timestamp or "")
    for pod in pods:
        place = Place(LAUNCHER, main=_main(world.job.launcher.template))
        if pod.status.phase == "Failed" and not was_stopped(pod, _now(world)):
            yield failure_of(pod, place, _now(world))
        elif pod.status.phase != "Succeeded" and (found := past_failure_of(pod, place, _now(world))) is not None:
            yield found


def _worker_failures(world: World) -> Iterator[Failure]:
    main = _main(world.job.worker.template) if world.job.worker else ""
    for index, pod in world.workers.items():
        if pod.status.phase == "Failed" and not pod.metadata.terminating:
            yield failure_of(pod, Place(WORKER, index, main=main), _now(world))


def _main(template: Json) -> str:
    """The first container, which runs the launcher or sshd."""
    first = template["spec"]["containers"][0]
    return str(first.get("name") or "") if isinstance(first, dict) else ""


def _now(world: World) -> datetime:
    return world.seen.wall or world.seen.now
