"""The workers of an MPIJob with transport ssh: created, deleted and replaced."""

from __future__ import annotations

from collections.abc import Iterable

from trainop.engine.actions import CreateOnce, CreatePod, DeletePod
from trainop.engine.seen import Pod
from trainop.engine.steps.replicas import MAX_PER_PLAN
from trainop.kinds.mpi.ssh_keys import are_usable, make_keys
from trainop.kinds.mpi.ssh_objects import secret, worker_encoder
from trainop.kinds.mpi.ssh_world import World
from trainop.runtime.clock import read_time
from trainop.runtime.objects.resource import SECRETS

REPLACED_AFTER = 10.0
"""Seconds from the creation of a worker until it is replaced at the earliest: one that fails at once must not be
replaced in a hot loop."""

KEY_CHECK = 30.0
"""Seconds after which a pending worker is a reason to check the Secret with the key, which the operator does not watch.
The interval doubles with the age of the worker."""

NAMES_IN_EVENT = 10


def all_workers(world: World) -> list[Pod]:
    return [*world.workers.values(), *world.surplus]


def delete(world: World, pods: Iterable[Pod]) -> None:
    """Deletes those that are not terminating yet."""
    living = (pod.metadata for pod in pods if not pod.metadata.terminating)
    world.builder.actions += [DeletePod(metadata.name, metadata.uid) for metadata in living]


def create_missing(world: World) -> list[CreatePod]:
    """Creates the lowest missing workers, at most `MAX_PER_PLAN`."""
    job = world.job
    if job.worker is None or len(world.workers) == job.workers:
        return []
    missing = [index for index in range(job.workers) if index not in world.workers][:MAX_PER_PLAN]
    encoder = worker_encoder(job, job.worker, world.seen.options)
    return [CreatePod(f"{job.name}-worker-{index}", encoder(index)) for index in missing]


def replace_failed(world: World) -> None:
    """Deletes failed workers, so that they are created again, if an annotation of the job asks for it."""
    if not world.job.extras.replace_failed:
        return
    failed = [pod for _, pod in sorted(world.workers.items()) if pod.status.phase == "Failed"]
    due = []
    for pod in (each for each in failed if not each.metadata.terminating):
        left = REPLACED_AFTER - _age(world, pod)
        if left > 0:
            world.builder.requeue_after(min(left, REPLACED_AFTER))
        else:
            due.append(pod)
    if due:
        delete(world, due)
        names = [pod.metadata.name for pod in due]
        more = f" and {len(names) - NAMES_IN_EVENT} more" if len(names) > NAMES_IN_EVENT else ""
        text = f"Replacing failed workers: {', '.join(names[:NAMES_IN_EVENT])}{more}"
        world.builder.warn(f"replaced/{due[0].metadata.uid}", "WorkersReplaced", text)


def ensure_key(world: World, *, needed: bool) -> None:
    """Creates the Secret with the key if pods need it. The key does not change under running workers: a missing one is
    made anew only when none runs."""
    if not needed and not _seems_stuck(world):
        return
    running = any(pod.status.phase == "Running" for pod in all_workers(world))
    is_new = not world.seen.job.raw.get("status")
    world.builder.actions.append(
        CreateOnce(
            SECRETS,
            secret(world.job),
            make_keys,
            is_valid=are_usable,
            in_use="workers are running with the key of the job" if running else "",
            posted=is_new,
        )
    )


def _seems_stuck(world: World) -> bool:
    """Whether no worker runs and the oldest has been pending for long: its Secret may have been deleted."""
    if world.job.suspend or any(pod.status.phase != "Pending" for pod in world.workers.values()):
        return False
    age = max((_age(world, pod) for pod in world.workers.values()), default=0.0)
    world.builder.requeue_after(max(age, KEY_CHECK) if world.workers else None)
    return age >= KEY_CHECK


def _age(world: World, pod: Pod) -> float:
    """Seconds since the creation of the pod."""
    created = read_time(pod.metadata.creation_timestamp)
    now = world.seen.wall or world.seen.now
    return KEY_CHECK if created is None else (now - created).total_seconds()
