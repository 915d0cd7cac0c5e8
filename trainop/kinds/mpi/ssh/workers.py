"""The workers of an MPIJob with transport ssh: created, deleted and replaced."""

from __future__ import annotations

from collections.abc import Iterable

from trainop.engine.actions import Content, Ensure, How, Remove
from trainop.engine.seen import Pod
from trainop.engine.steps.replicas import MAX_PER_PLAN
from trainop.kinds.mpi.hosts import REPLICA_SPECS, WORKER
from trainop.kinds.mpi.ssh.keys import are_usable, make_keys
from trainop.kinds.mpi.ssh.objects import secret, worker_encoder
from trainop.kinds.mpi.ssh.world import World
from trainop.runtime import PODS, SECRETS
from trainop.runtime.lowlevel import read_time

REPLACED_AFTER = 10.0
"""Seconds from the creation of a worker until it is replaced at the earliest: one that fails at once must not be
replaced in a hot loop."""

KEY_CHECK = 30.0
"""Seconds after which a pending worker is a reason to check the Secret with the key, which the operator does not watch.
The interval doubles with the age of the worker."""

NAMES_IN_EVENT = 10

_TEMPLATE = f"spec.{REPLICA_SPECS}.{WORKER}.template"


def all_workers(world: World) -> list[Pod]:
    return [*world.workers.values(), *world.surplus]


def delete(world: World, pods: Iterable[Pod], grace: int | None = None) -> None:
    """Deletes those that are not terminating yet. `grace`: see `Remove`."""
    living = (pod.metadata for pod in pods if not pod.metadata.terminating)
    world.builder.actions += [Remove(PODS, metadata.name, metadata.uid, grace=grace) for metadata in living]


def create_missing(world: World) -> list[Ensure]:
    """Creates the lowest missing workers, at most `MAX_PER_PLAN`."""
    job = world.job
    if job.worker is None or len(world.workers) == job.workers:
        return []
    missing = [index for index in range(job.workers) if index not in world.workers][:MAX_PER_PLAN]
    encoder = worker_encoder(job, job.worker, world.seen.options)
    return [Ensure(PODS, f"{job.name}-worker-{index}", encoder(index), template=_TEMPLATE) for index in missing]


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
    """Creates the Secret with the key if pods need it. One that was deleted is made anew, as upstream, only when a pod
    cannot start without it: the kubelet then brings the new key to the running pods, too, within a minute or two.

    Whoever may create Secrets could plant one with his key and the job as its owner. So one that exists before the
    first child that needs it is never kept; after that child it is the operator's."""
    if needed or _lacks_key(world):
        manifest, is_new = secret(world.job), not world.seen.job.raw.get("status")
        content = Content(make_keys, is_valid=are_usable, is_trusted=world.has_begun)
        name = manifest["metadata"]["name"]
        made = Ensure(SECRETS, name, manifest=manifest, how=How.FILL, content=content, posted=is_new)
        world.builder.actions.append(made)


def _lacks_key(world: World) -> bool:
    """Whether a pod that has a node has been pending for long: the Secret may have been deleted."""
    if world.job.suspend:
        return False
    pods = (*world.workers.values(), *world.launcher_pods)
    ages = [_age(world, pod) for pod in pods if pod.status.phase == "Pending" and not _has_no_node(pod)]
    age = max(ages, default=0.0)
    world.builder.requeue_after(max(age, KEY_CHECK) if ages else None)
    return age >= KEY_CHECK


def _has_no_node(pod: Pod) -> bool:
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)


def _age(world: World, pod: Pod) -> float:
    """Seconds since the creation of the pod."""
    created = read_time(pod.metadata.creation_timestamp)
    now = world.seen.wall or world.seen.now
    return KEY_CHECK if created is None else (now - created).total_seconds()
