"""The informer cache: which callers share an informer, synchronization, namespaces, and mutation detection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.runtime.scripted import (
    HANG,
    Answer,
    CountingMetrics,
    ScriptedTransport,
    Streamed,
    added,
    bookmark,
    json_response,
    page,
    pod,
    refusal,
)
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.cache.cache import Cache, CacheError
from trainop.runtime.cache.mutation_detector import GuardedStore, MutationError
from trainop.runtime.cache.store import Store, by_controller, by_namespace
from trainop.runtime.client.client import Client
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import (
    NODES,
    PODS,
    SERVICES,
    Key,
    Metadata,
    PartialObject,
    Resource,
    decode_complete,
    decode_unstructured,
)

DECODE = msgspec.json.Decoder(PartialObject).decode
JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
TFJOBS = Resource("kubeflow.org", "v1", "tfjobs", "TFJob")


def cache_of(*answers: Answer, namespaces: tuple[str, ...] = ()) -> tuple[Cache, ScriptedTransport]:
    transport, clock = ScriptedTransport(*answers), VirtualClock()
    client = Client(transport, clock=clock, rng=random.Random(1))
    return Cache(client, namespaces=namespaces, clock=clock, rng=random.Random(1)), transport


@contextlib.asynccontextmanager
async def running(cache: Cache) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def holding(*names: str) -> Streamed:
    return Streamed([*[added(name, 1) for name in names], bookmark(2, end=True), HANG])


@virtual_time
async def test_equal_requests_share_an_informer():
    cache, _ = cache_of()
    pods = cache.informer(PODS, DECODE, label_selector="app=x", indices={"owner": by_controller}, optional=True)
    again = cache.informer(PODS, DECODE, label_selector="app=x", indices={"namespace": by_namespace})
    assert pods is again
    assert pods.store.by_index("owner", "x") == pods.store.by_index("namespace", "x") == []
    assert not pods.optional, "required, because one caller requires it"
    others = [
        cache.informer(PODS, DECODE),
        cache.informer(SERVICES, DECODE, label_selector="app=x"),
        cache.informer(PODS, DECODE, label_selector="app=x", metadata_only=True),
        cache.informer(PODS, msgspec.json.Decoder(PartialObject).decode, label_selector="app=x"),
    ]
    assert pods not in others
    with pytest.raises(ValueError, match="exists with another function"):
        cache.informer(PODS, DECODE, label_selector="app=x", indices={"owner": by_namespace})


@virtual_time
async def test_synced_when_all_are():
    cache, transport = cache_of(holding("a"), Streamed([5.0, bookmark(1, end=True), HANG]), holding("n"))
    pods = cache.informer(PODS, DECODE)
    cache.informer(SERVICES, DECODE)
    async with running(cache):
        await pods.wait_synced()
        assert not cache.synced
        await cache.wait_synced()
        assert transport.times[-1] == 0
        assert asyncio.get_running_loop().time() == 5
        late = cache.informer(NODES, DECODE)
        await late.wait_synced()
        assert len(late.store) == 1


@virtual_time
async def test_namespaces_are_for_namespaced_kinds():
    cache, transport = cache_of(holding(), holding(), holding(), namespaces=("one", "two"))
    cache.informer(PODS, DECODE)
    cache.informer(NODES, DECODE)
    async with running(cache):
        await cache.wait_synced()
    paths = {request.path for request in transport.requests}
    assert paths == {"/api/v1/namespaces/one/pods", "/api/v1/namespaces/two/pods", "/api/v1/nodes"}


@pytest.mark.case("runtime-18", "a")
@virtual_time
async def test_kinds_of_a_group_ask_discovery_together():
    cache, transport = cache_of(
        json_response({"kind": "APIResourceList", "resources": [{"name": "tfjobs"}]}), holding("a"), refusal(404)
    )
    jobs = cache.informer(JOBS, DECODE, optional=True)
    tfjobs = cache.informer(TFJOBS, DECODE, optional=True)
    async with running(cache):
        await cache.wait_synced()
        assert cache.synced
        assert (jobs.served, tfjobs.served) == (False, True)
        assert transport.verbs() == ["GET", "stream"]
        assert transport.requests[0].path == "/apis/kubeflow.org/v1"


@virtual_time
async def test_reading_by_kind():
    cache, _ = cache_of(holding("a", "b"), holding("a"), namespaces=("ns",))
    with pytest.raises(CacheError, match="unable to read pods: 0 informers have it"):
        cache.get(PODS, Key("ns", "a"))
    cache.informer(PODS, DECODE, indices={"namespace": by_namespace})
    with pytest.raises(CacheError, match="not synced yet"):
        cache.list(PODS)
    async with running(cache):
        await cache.wait_synced()
        assert cache.get(PODS, Key("ns", "a")).metadata.name == "a"
        assert cache.get(PODS, Key("ns", "c")) is None
        assert [obj.metadata.name for obj in cache.list(PODS, "ns")] == ["a", "b"]
        assert len(cache.by_index(PODS, "namespace", "ns")) == len(cache.list(PODS)) == 2
        with pytest.raises(KeyError):
            cache.by_index(PODS, "color", "red")
        with pytest.raises(CacheError, match="unable to read pods in elsewhere: because of unknown namespace"):
            cache.get(PODS, Key("elsewhere", "a"))
        cache.informer(PODS, DECODE, label_selector="x=y")
        with pytest.raises(CacheError, match="2 informers"):
            cache.list(PODS)


@virtual_time
async def test_namespaces_of_one_informer_go_before_those_of_the_cache():
    cache, transport = cache_of(holding(), namespaces=("one",))
    assert cache.informer(PODS, DECODE, namespaces=("two",)) is cache.informer(PODS, DECODE, namespaces=["two"])
    async with running(cache):
        await cache.wait_synced()
    assert [request.path for request in transport.requests] == ["/api/v1/namespaces/two/pods"]


@virtual_time
async def test_the_options_of_the_cache_reach_the_server():
    transport, clock, metrics = ScriptedTransport(refusal(503), holding("a")), VirtualClock(), CountingMetrics()
    client = Client(transport, clock=clock, rng=random.Random(1))
    cache = Cache(client, clock=clock, rng=random.Random(1), metrics=metrics)
    pods = cache.informer(PODS, DECODE, label_selector="app=x", field_selector="spec.x=1", metadata_only=True)
    async with running(cache):
        await pods.wait_synced()
    assert len(pods.store) == metrics.objects == 1
    for request in transport.requests:
        assert (request.query["labelSelector"], request.query["fieldSelector"]) == ("app=x", "spec.x=1")
        assert "PartialObjectMetadata" in request.accept
    assert 0.8 <= transport.times[1] <= 1.6, "the back-off uses the clock of the cache"


@virtual_time
async def test_a_cache_may_list_in_pages_only():
    """Also after its watch has expired."""
    clock = VirtualClock()
    first = page(pod("a"), token="t"), page(pod("b"), version=10), refusal(410, "Expired")
    transport = ScriptedTransport(*first, page(pod("c"), version=20))
    client = Client(transport, clock=clock, rng=random.Random(1))
    cache = Cache(client, clock=clock, rng=random.Random(1), streamed=False)
    pods = cache.informer(PODS, DECODE)
    async with running(cache):
        await transport.exhausted()
    assert transport.verbs() == ["list", "next", "watch@10", "list", "watch@20"]
    assert [obj.metadata.name for obj in pods.store.list()] == ["c"]


@virtual_time
async def test_an_informer_is_optional_only_if_all_callers_say_so():
    cache, _ = cache_of()
    assert cache.informer(JOBS, DECODE, optional=True).optional
    assert cache.informer(JOBS, DECODE, optional=True).optional
    assert not cache.informer(JOBS, DECODE).optional
    assert not cache.informer(JOBS, DECODE, optional=True).optional, "required, because one caller requires it"


OBJECT = {
    "metadata": {
        "name": "a",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "yes"},
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {"unknown": 1},
}


def test_managed_fields_are_dropped_unless_decoded_completely():
    raw = msgspec.json.encode(OBJECT)
    slim = decode_unstructured(raw)
    assert slim.raw == {"metadata": {"name": "a", "annotations": {"kept": "yes"}}, "spec": {"unknown": 1}}
    assert slim.metadata.annotations == {"kept": "yes"}
    assert decode_complete(raw).raw == OBJECT


@virtual_time
async def test_a_mutation_of_a_cached_object_is_detected():
    script = Streamed([added("a", 1), added("b", 1), bookmark(2, end=True), 5.0, added("a", 3), HANG])
    transport, clock = ScriptedTransport(script), VirtualClock()
    cache = Cache(Client(transport, clock=clock), clock=clock, guarded=True)
    pods = cache.informer(PODS, decode_unstructured)
    task = asyncio.create_task(cache.run())
    await cache.wait_synced()
    assert isinstance(pods.store, GuardedStore)
    pods.store.verify()
    cache.get(PODS, Key("ns", "a")).raw["spec"] = {"mine": True}
    with pytest.raises(MutationError, match="ns/a was mutated"):
        pods.store.verify()
    with pytest.raises(ExceptionGroup) as caught:
        await task
    assert caught.group_contains(MutationError)


def test_a_guarded_store_releases_removed_objects():
    """An object stored under a reused key is compared with the current object only."""
    store: GuardedStore[PartialObject] = GuardedStore({"namespace": by_namespace})

    def version(number: int) -> PartialObject:
        return DECODE(b'{"metadata": {"name": "a", "uid": "1", "resourceVersion": "%d"}}' % number)

    store.put(version(1))
    store.put(version(2))
    store.verify()
    store.remove(version(3))
    assert not store._received
    store.put(version(4))
    store.verify()
    store.prune(())
    assert not store._received


def test_structs_are_guarded_too():
    store: GuardedStore[PartialObject] = GuardedStore({"namespace": by_namespace})
    pod = DECODE(b'{"metadata": {"name": "a", "uid": "1", "resourceVersion": "1"}}')
    store.put(pod)
    pod.metadata.labels["a"] = "b"
    with pytest.raises(MutationError):
        store.remove(pod)
    assert isinstance(store, Store)


def test_informers_of_one_resource_are_counted_together():
    """Such as the pods of two kinds of jobs, which are selected by different labels."""
    metrics = Metrics()
    cache = Cache(Client(ScriptedTransport()), metrics=metrics)
    every, own = (cache.informer(PODS, DECODE, label_selector=selector) for selector in ("", "a=b"))
    first, second, third = (PartialObject(Metadata(name, "ns", uid=name, resource_version="1")) for name in "xyz")
    for informer, each in ((every, first), (own, second), (every, third)):
        informer.put(each, listing=False, initial=False)
    own.remove(second)
    assert metrics.registry.get_sample_value("runtime_informer_objects", {"resource": "pods"}) == 2
