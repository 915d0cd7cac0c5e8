"""Foreign clients that tamper with pods: they change labels, remove owners, and create pods with the labels of a job.

Orderly scripts do not use them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.oracle.kinds import KINDS, LABELS, Json
from tests.simulation.script import NAMESPACE, JobPlan
from tests.simulation.wire import at_once
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.objects.metadata import PODS

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTS = {"disown", "relabel", "plant"}
LASTING = {"unlabel", "squat"}
"""Of scripts in which a job stands still."""


def intrude(world: World, act: str, rng: random.Random, living: list[Stored]) -> bool:
    """Carry out one intrusion; returns False if there is no suitable pod yet."""
    if act == "plant":
        _plant(world, rng.choice(world.script.jobs), rng)
        return True
    if not living:
        return False
    stored = rng.choice(living)
    value = msgspec.json.decode(stored.body, type=dict)
    metadata = value["metadata"]
    if act == "disown":
        del metadata["ownerReferences"]
        if rng.random() < 0.5:  # the pod ends before it is adopted again
            value["status"] |= _ended(value["spec"]["containers"][0]["name"], rng.choice((0, 0, 1)))
    else:
        label = LABELS + rng.choice(("job-name", "operator-name", "replica-type", "replica-index", "replica-index"))
        metadata["labels"][label] = rng.choice("017x")
    world.note("intruder", f"{act} {stored.key[1]} {metadata['labels']}")
    _put(world, value)
    return True


def impede(world: World, act: str, name: str, rng: random.Random, living: list[Stored]) -> bool:
    """Keep a job from going on: a pod loses the labels by which it is counted, or another one takes the name of one of
    its pods. Returns False if there is no suitable pod yet."""
    if act == "squat":
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        spec = {"containers": [{"name": "c", "image": "img"}]}
        at_once(world.users.client.create(PODS, pod | {"spec": spec}, namespace=NAMESPACE))
        return True
    if not living:
        return False
    stored = rng.choice(living)
    value = msgspec.json.decode(stored.body, type=dict)
    del value["metadata"]["labels"][LABELS + "replica-type"]
    world.note("intruder", f"unlabel {stored.key[1]}")
    _put(world, value)
    return True


def _put(world: World, value: Json) -> None:
    world.happened += 1
    world.store.put(str(PODS), (NAMESPACE, value["metadata"]["name"]), value)


def _plant(world: World, plan: JobPlan, rng: random.Random) -> None:
    """Create a terminated pod with the labels of one of the job's slots, under the name of that or another slot."""
    role, spec = rng.choice(list(plan.spec[plan.framework.replica_specs].items()))
    index = rng.randrange(spec["replicas"] + 1)
    name = f"{plan.name}-{role.lower()}-{index}"
    if rng.random() < 0.4 or world.store.get(str(PODS), (NAMESPACE, name)):
        name = f"stranger-{rng.randrange(1_000_000)}"
    labels = {
        "operator-name": KINDS[plan.kind].controller,
        "job-name": plan.name,
        "replica-type": role.lower(),
        "replica-index": str(index),
    }
    world.note("intruder", f"plant {name} as {role} {index}")
    metadata = {"name": name, "labels": {LABELS + key: each for key, each in labels.items()}}
    containers = [{"name": plan.framework.container, "image": "img"}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
    made = at_once(world.users.client.create(PODS, pod, namespace=NAMESPACE))
    made["status"] |= _ended(plan.framework.container, rng.choice((0, 0, 1)))
    _put(world, made)


def _ended(container: str, code: int) -> Json:
    ended = {"name": container, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}
