"""Users of MPIJobs who lay hands on what the operator has made: they delete launchers, workers and keys, edit hosts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.facts import finished, phase, terminating
from tests.simulation.mpi_node import role_of
from tests.simulation.oracle.mpi import owner_of
from tests.simulation.oracle.mpi_observer import MpiObserver
from tests.simulation.script import NAMESPACE
from tests.simulation.wire import at_once
from trainop.engine.steps.rights import BINDING, ROLE
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V1, TRANSPORT
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import CONFIG_MAPS, PODS, SECRETS, SERVICES, Json, Resource

if TYPE_CHECKING:
    from tests.simulation.world import World

OBJECTS: dict[str, tuple[Resource, str]] = {
    "delete launcher": (LAUNCHER_JOBS, "-launcher"),
    "delete secret": (SECRETS, "-ssh"),
    "delete config": (CONFIG_MAPS, "-config"),
    "delete service": (SERVICES, ""),
    "delete role": (ROLE.resource, "-launcher"),
    "delete binding": (BINDING.resource, "-launcher"),
}
"""What is deleted, by the end of its name."""
ACTS = {
    *OBJECTS,
    *("delete launcher pod", "delete worker", "edit config", "empty secret", "flip transport"),
    "take name",
}


def meddle(world: World, act: str, rng: random.Random) -> bool:
    """Carries out one deed; returns False if there is nothing to do it to yet."""
    jobs = [job for job in world.jobs() if not finished(job) and not terminating(job)]
    if not jobs:
        return False
    name = rng.choice(jobs)["metadata"]["name"]
    try:
        done = _act(world, act, rng, name)
    except NotFoundError:
        return False
    if done:
        world.note("user", f"{act} of {name}")
        world.happened += 1
    return done


def _act(world: World, act: str, rng: random.Random, name: str) -> bool:
    client = world.users.client
    match act:
        case "delete launcher pod" | "delete worker":
            role = "launcher" if act == "delete launcher pod" else "worker"
            found = [stored for stored in _pods(world, name) if role_of(stored.value) == role]
            if not found:
                return False
            stored = rng.choice(found)
            world.observer.loses(stored.uid)
            world.mark_deleted(stored)
        case "take name":
            return _take_name(world, rng, name)
        case "edit config":
            file = rng.choice(("hostfile", "discover_hosts.sh"))
            _patch(world, CONFIG_MAPS, f"{name}-config", {"data": {file: f"nobody-{rng.randrange(9)}\n"}})
        case "empty secret":
            _patch(world, SECRETS, f"{name}-ssh", {"data": {"ssh-privatekey": None}})
        case "flip transport":
            if not _has_child(world, name):
                return False  # the user may still choose
            value = rng.choice((None, "exec", "ssh", "rsh"))
            _patch(world, MPI_V1, name, {"metadata": {"annotations": {TRANSPORT: value}}})
        case _:
            resource, ending = OBJECTS[act]
            propagation = rng.choice(("Background", "Foreground"))
            at_once(client.delete(resource, name + ending, NAMESPACE, propagation=propagation))
    return True


def _has_child(world: World, name: str) -> bool:
    """Whether the operator has made something for the job, by which its transport is settled."""
    store = world.store
    job = next(each for each in world.jobs() if each["metadata"]["name"] == name)
    tables = (str(PODS), str(CONFIG_MAPS))
    found = (stored.value for table in tables for stored in store.table(table).objects.values())
    return any(owner_of(value)[1] == job["metadata"]["uid"] for value in found)


def _take_name(world: World, rng: random.Random, name: str) -> bool:
    """A worker is gone at once, and a pod of somebody else has its name for a while."""
    found = [stored for stored in _pods(world, name) if role_of(stored.value) == "worker"]
    if not found:
        return False
    stored = rng.choice(found)
    world.observer.loses(stored.uid)
    world.store.remove(str(PODS), stored.key)
    body = {"metadata": {"name": stored.key[1]}, "spec": {"containers": [{"name": "bank", "image": "img"}]}}
    client = world.users.client
    made = at_once(client.create(PODS, body, namespace=NAMESPACE))

    def leave() -> None:
        try:
            at_once(client.delete(PODS, stored.key[1], NAMESPACE, uid=made["metadata"]["uid"], grace_seconds=0))
        except NotFoundError:
            return
        world.happened += 1

    world.loop.outside(rng.uniform(1, 12), leave)
    return True


def _patch(world: World, resource: Resource, name: str, body: Json) -> None:
    observer = world.observer
    assert isinstance(observer, MpiObserver), "of a world with MPIJobs"
    observer.by_others = True
    try:
        at_once(world.users.client.patch(resource, name, NAMESPACE, body))
    finally:
        observer.by_others = False


def _pods(world: World, name: str) -> list[Stored]:
    """The running pods of the job."""
    pods = world.store.table(str(PODS)).objects.values()
    found = [pod for pod in pods if phase(pod.value) == "Running" and not terminating(pod.value)]
    return sorted(
        (pod for pod in found if (job := world.job_of(pod.value)) is not None and job["metadata"]["name"] == name),
        key=lambda pod: pod.key,
    )
