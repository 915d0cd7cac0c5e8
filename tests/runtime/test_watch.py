"""Mappers and predicates: the keys that an event adds to the queue, and their priority.

For case runtime-26, these tests prove what is enqueued; the tests of the reconciler prove which children it sees.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.controller.enqueue import (
    Changed,
    Enqueue,
    EnqueueMapped,
    EnqueueObject,
    EnqueueOwner,
    Mapper,
    Matching,
)
from trainop.runtime.controller.workqueue import WorkQueue
from trainop.runtime.objects.metadata import PODS, Key, Metadata, OwnerReference, PartialObject, Resource


def make(name: str = "pod", *owners: OwnerReference, version: str = "1", **fields: object) -> PartialObject:
    metadata = Metadata(name=name, namespace="ns", resource_version=version, owner_references=owners, **fields)  # type: ignore[arg-type]  # fields of Metadata
    return PartialObject(metadata)


def owner(
    api_version: str = "kubeflow.org/v1",
    kind: str = "PyTorchJob",
    name: str = "job",
    uid: str = "u",
    *,
    controller: bool | None = True,
) -> OwnerReference:
    return OwnerReference(api_version, kind, name, uid, controller=controller)


JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
OF_JOB = EnqueueOwner(JOBS)


@pytest.mark.case("runtime-26", "abc")
@pytest.mark.parametrize(
    ("reference", "keys"),
    [
        (owner(), [Key("ns", "job")]),
        (owner("kubeflow.org/v2beta1"), [Key("ns", "job")]),
        (owner(uid="of the predecessor"), [Key("ns", "job")]),
        (owner("example.org/v1"), []),
        (owner(kind="TFJob"), []),
        (owner("v1"), []),
        (owner("kubeflow.org/v1/extra"), []),
        (owner(controller=None), []),
        (owner(controller=False), []),
    ],
)
def test_owner_is_matched_by_group_kind_and_control(reference: OwnerReference, keys: list[Key]):
    assert list(OF_JOB.keys(make("pod", reference))) == keys


def test_core_group_has_no_slash():
    assert list(EnqueueOwner(PODS).keys(make("x", owner("v1", "Pod", "p")))) == [Key("ns", "p")]


def test_a_cluster_scoped_owner_has_no_namespace():
    fleets = Resource("example.com", "v1", "fleets", "Fleet", namespaced=False)
    child = make("x", owner("example.com/v1", "Fleet", "f"))
    assert list(EnqueueOwner(fleets).keys(child)) == [Key("", "f")]


def test_owners_that_do_not_control_are_found_on_demand():
    owners = [owner(name="a"), owner(name="b", controller=False), owner(name="c", controller=None)]
    child = make("x", *owners, owner(kind="TFJob", name="d", controller=False))
    assert list(OF_JOB.keys(child)) == [Key("ns", "a")]
    assert list(EnqueueOwner(JOBS, only_controller=False).keys(child)) == [Key("ns", name) for name in "abc"]


class RecordingQueue(WorkQueue[Key]):
    def __init__(self) -> None:
        super().__init__("test", VirtualClock())
        self.added: list[tuple[str, int]] = []

    def add(self, key: Key, priority: int = 0) -> None:
        self.added.append((key.name, priority))


def make_handler(
    mapper: Mapper[PartialObject], *predicates: Changed | Matching
) -> tuple[Enqueue[PartialObject], list[tuple[str, int]]]:
    queue = RecordingQueue()
    return Enqueue(queue, mapper, predicates), queue.added


@virtual_time
async def test_initial_and_resync_events_have_low_priority():
    await asyncio.sleep(0)
    handler, added = make_handler(EnqueueObject())
    handler.add(make("first"), True)
    handler.add(make("new"), False)
    handler.update(make("resync"), make("resync"))
    handler.update(make("changed"), make("changed", version="2"))
    handler.delete(make("gone"), Key("ns", "gone"), False)
    assert added == [("first", -100), ("new", 0), ("resync", -100), ("changed", 0), ("gone", 0)]


@pytest.mark.case("runtime-26", "e")
@virtual_time
async def test_a_tombstone_adds_the_owner_of_the_last_known_object_or_the_key():
    handler, added = make_handler(OF_JOB)
    handler.delete(make("pod", owner()), Key("ns", "pod"), True)
    assert added == [("job", 0)]
    handler.delete(None, Key("ns", "pod"), True)
    assert added == [("job", 0)]
    handler, added = make_handler(EnqueueObject(), Matching(lambda _: False))
    handler.delete(None, Key("ns", "lost"), True)
    assert added == [("lost", 0)]


@virtual_time
async def test_an_update_adds_the_owners_of_both_states_once_each():
    handler, added = make_handler(OF_JOB)
    handler.update(make("pod", owner(name="a")), make("pod", owner(name="b"), version="2"))
    handler.update(make("pod", owner(name="c")), make("pod", owner(name="c"), version="2"))
    assert added == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.parametrize("fails", ["old", "new"])
@virtual_time
async def test_a_mapper_that_raises_for_one_state_is_called_for_the_other(fails: str):
    def names(obj: PartialObject) -> list[Key]:
        if obj.metadata.name == fails:
            raise KeyError("a mistake")
        return [obj.metadata.key]

    handler, added = make_handler(EnqueueMapped(names))
    with pytest.raises(KeyError):
        handler.update(make("old"), make("new", version="2"))
    assert added == [("new" if fails == "old" else "old", 0)]


@virtual_time
async def test_a_mapped_object_adds_what_the_function_names():
    handler, added = make_handler(EnqueueMapped(lambda obj: [Key("ns", "x"), Key("ns", obj.metadata.name)]))
    handler.add(make("x"), False)
    handler.add(make("y"), False)
    assert added == [("x", 0), ("x", 0), ("y", 0)]


@virtual_time
async def test_an_event_has_to_pass_all_predicates():
    handler, added = make_handler(
        EnqueueObject(),
        Changed(lambda obj: obj.metadata.generation),
        Matching(lambda obj: obj.metadata.name != "ignored"),
    )
    handler.add(make("a"), False)
    handler.add(make("ignored"), False)
    handler.update(make("b", generation=1), make("b", version="2", generation=1))
    handler.update(make("c", generation=1), make("c", version="2", generation=2))
    handler.update(make("ignored", generation=1), make("ignored", version="2", generation=2))
    handler.delete(make("ignored"), Key("ns", "ignored"), False)
    handler.delete(make("d"), Key("ns", "d"), False)
    assert added == [("a", 0), ("c", 0), ("d", 0)]
