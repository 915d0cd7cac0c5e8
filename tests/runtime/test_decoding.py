"""The decode boundary: any bytes become an object or a `DecodeError`, which affects that object alone."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.scripted import (
    HANG,
    NO_STREAMED_LISTS,
    RecordingHandler,
    ScriptedTransport,
    Streamed,
    added,
    deleted,
    event,
    json_response,
    modified,
    page,
    pod,
    status,
)
from tests.runtime.test_informer import ERROR_410, FIRST, Scene, listed, watch
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.cache.cache import Cache
from trainop.runtime.cache.store import Store
from trainop.runtime.cache.watchevents import decode_event, decode_status
from trainop.runtime.client.client import Client
from trainop.runtime.client.decoding import ObjectDecoder, read, read_object
from trainop.runtime.client.transport import Response
from trainop.runtime.errors import ApiError, DecodeError, LeadershipLostError, api_error, error_of_status
from trainop.runtime.manager.leader import LeaderElector
from trainop.runtime.objects.metadata import (
    PODS,
    Json,
    Key,
    PartialObject,
    Resource,
    Unstructured,
    decode_complete,
    decode_unstructured,
)
from trainop.runtime.objects.nesting import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_STRINGS,
    count_containers,
    count_strings,
    is_deep,
    prune,
    prune_in_slices,
    prune_value,
)

JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
DECODE = msgspec.json.Decoder(PartialObject).decode
DEEP = (980, 2_000, 9_900)
"""Levels of nesting: about CPython's recursion limit, beyond it, and the maximum of API servers."""


def nested(levels: int, inner: bytes = b"1") -> bytes:
    """JSON of `levels` alternating objects and lists around `inner`."""
    return b'{"a":[' * (levels // 2) + inner + b"]}" * (levels // 2)


def deep_job(levels: int, name: str = "deep", version: int = 5) -> bytes:
    """A job as an API server writes it, whose `managedFields` are as deep as its spec."""
    metadata = (
        b'{"annotations":{"a":"b"},"managedFields":[{"fieldsV1":%b}],"name":"%b","namespace":"ns",'
        b'"resourceVersion":"%d","uid":"uid-%b"}' % (nested(levels), name.encode(), version, name.encode())
    )
    spec = b'{"affinity":%b,"runPolicy":{"suspend":true}}' % nested(levels)
    return (
        b'{"apiVersion":"kubeflow.org/v1","kind":"PyTorchJob","metadata":%b,"spec":%b,"status":{"conditions":[]}}'
        % (metadata, spec)
    )


def reject(raw: bytes, decode: Callable[[bytes], Any] = decode_unstructured) -> DecodeError:
    """The message of the DecodeError."""
    with pytest.raises(DecodeError) as caught:
        ObjectDecoder(JOBS, decode)(raw)
    return caught.value


# One object ----------------------------------------------------------------------------------------------------------


def crowded_job(entry: str, number: int, text: str = "") -> bytes:
    """A job with `number` entries in one list, at the depth of a pod template."""
    spec = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Master": {"template": {"spec": {"a": "HERE"}}}}}
    body = job(annotations={"text": text}, managedFields=[{"fieldsV1": {}}]) | {"spec": spec, "status": {"a": [1]}}
    return json.dumps(body).replace('"HERE"', f"[{','.join([entry] * number)}]").encode()


@pytest.mark.parametrize("entry", ["[]", "{}", '{"a":"b"}', "[[]]", '{"\\"[":"]\\\\"}'])
def test_an_object_with_too_many_containers_is_named_and_the_rest_of_it_read(entry: str):
    per_entry = entry.count("[[") + 1
    error = reject(crowded_job(entry, MAX_CONTAINERS // per_entry))
    assert error.path == "spec.pytorchReplicaSpecs.Master.template.spec.a"
    assert error.detail.startswith("must not have more than 49,152 lists and objects, and has 49,1")
    assert error.remains is not None
    assert error.remains.raw["spec"]["runPolicy"] == {"suspend": True}
    assert error.remains.raw["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"] == {"a": None}
    assert error.remains.raw["status"] == {"a": [1]}


@pytest.mark.parametrize("entry", ['"x"', '"\\\\"', '"\\""', '{"a":"b","c":"d","e":"f"}'])
def test_an_object_with_too_many_strings_is_named_and_the_rest_of_it_read(entry: str):
    per_entry = max(1, 2 * entry.count(":"))
    error = reject(crowded_job(entry, MAX_STRINGS // per_entry))
    assert error.path == "spec.pytorchReplicaSpecs.Master.template.spec.a"
    assert error.detail.startswith("must not have more than 131,072 names and strings, and has 131,")
    assert error.remains is not None
    assert error.remains.raw["spec"]["runPolicy"] == {"suspend": True}
    assert error.remains.raw["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"] == {"a": None}


def test_quotation_marks_in_texts_are_no_strings():
    raw = crowded_job('"x"', 100_000, text='"\\' * 80_000)
    assert count_strings(raw) == 100_000 + crowded_job("1", 1).count(b'"') // 2
    kept = ObjectDecoder(JOBS, decode_unstructured)(raw)
    assert len(kept.raw["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["a"]) == 100_000


def test_brackets_in_texts_are_no_containers():
    raw = crowded_job("[]", 30_000, text='["{' * 50_000)
    assert count_containers(raw) == 30_000 + crowded_job("1", 1).count(b"{") + crowded_job("1", 1).count(b"[")
    kept = ObjectDecoder(JOBS, decode_unstructured)(raw)
    assert len(kept.raw["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["a"]) == 30_000


@pytest.mark.parametrize("levels", DEEP)
def test_an_object_that_is_too_deep_is_named_and_the_rest_of_it_read(levels: int):
    error = reject(deep_job(levels))
    assert error.key == Key("ns", "deep")
    assert str(error) == (
        "pytorchjobs.kubeflow.org ns/deep cannot be read: spec.affinity.a[0].a[0].a[0]...: "
        "must not be nested more than 200 levels deep"
    )
    assert error.remains is not None
    assert (error.remains.metadata.uid, error.remains.metadata.resource_version) == ("uid-deep", "5")
    assert error.remains.metadata.annotations == {"a": "b"}
    assert error.remains.raw["spec"]["runPolicy"] == {"suspend": True}
    assert error.remains.raw["status"] == {"conditions": []}
    assert "managedFields" not in error.remains.raw["metadata"]
    assert error.remains.fault == (error.path, error.detail)


@pytest.mark.parametrize("levels", DEEP)
def test_unread_fields_may_have_any_depth(levels: int):
    assert ObjectDecoder(PODS, DECODE)(deep_job(levels)).metadata.key == Key("ns", "deep")


def test_the_limit_is_exact_and_what_is_below_it_can_be_walked():
    metadata = {"name": "a", "uid": "u"}
    for levels, fits in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False)):  # the object itself is the first level
        value: Any = 1
        for _ in range(levels):
            value = {"a": value}
        raw = msgspec.json.encode({"metadata": metadata, **value})
        if not fits:
            assert reject(raw).remains is None, "the object has no resourceVersion"
            continue
        obj = ObjectDecoder(JOBS, decode_unstructured)(raw)
        assert msgspec.json.decode(msgspec.json.encode(copy.deepcopy(obj.raw))) == obj.raw


def job(**metadata: Any) -> Json:
    known = {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    return {"kind": "PyTorchJob", "metadata": known | metadata, "spec": {"a": [1, {"b": None}]}}


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (job(annotations=[]), "metadata.annotations: Expected `object`, got `array` - at `$.annotations`"),
        (job(annotations={"a": 1}), "metadata.annotations: Expected `str`, got `int` - at `$.annotations[...]`"),
        (job(labels="x"), "metadata.labels: Expected `object`, got `str` - at `$.labels`"),
        (job(ownerReferences={}), "metadata.ownerReferences: Expected `array`, got `object` - at `$.ownerReferences`"),
        (job(generation="x"), "metadata.generation: Expected `int`, got `str` - at `$.generation`"),
        (job(finalizers=[[]]), "metadata.finalizers: Expected `str`, got `array` - at `$.finalizers[0]`"),
    ],
)
def test_metadata_of_a_wrong_type_is_named_and_left_out(raw: Json, fault: str):
    error = reject(msgspec.json.encode(raw))
    assert error.fault == fault
    assert error.key == Key("ns", "j")
    assert error.remains is not None
    assert error.remains.metadata.resource_version == "7"
    assert error.remains.raw["spec"] == raw["spec"]


def test_bytes_that_are_no_utf_8_are_replaced_in_what_remains():
    error = reject(msgspec.json.encode(job()).replace(b'"b"', b'"\xff\xfe"'))
    assert "utf-8" in error.fault
    assert error.remains is not None
    assert error.remains.raw["spec"] == {"a": [1, {"\ufffd\ufffd": None}]}


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"metadata": {"name": "a", "namespace": "ns", "labels": 5}}', Key("ns", "a")),
        (b'{"metadata": {"name": "n"}}', None),
        (b'{"metadata": {"namespace": "ns", "uid": "u"}}', None),
        (b'{"metadata": 5}', None),
        (b'{"metadata": null}', None),
        (b"{}", None),
        (b"[]", None),
        (b'{"metadata": {"name": "a", "uid": "u"', None),
        (b'{"kind":"Status","status":"Failure","code":500,"metadata":{}}', None),
        (b"", None),
        (nested(20_000), None),
        (b"[" * 1_000_000, None),
    ],
)
def test_what_is_not_an_object_with_name_and_uid_is_refused(raw: bytes, key: Key | None):
    for decode in (DECODE, decode_unstructured, decode_complete):
        error = reject(raw, decode)
        assert error.key == key
        assert error.remains is None


@pytest.mark.parametrize("error", [KeyError("nodeName"), ZeroDivisionError(), OSError("disk"), DecodeError("", "x")])
def test_any_exception_of_a_decoder_affects_only_its_object(error: Exception):
    def decode(raw: bytes) -> PartialObject:
        raise error

    fault = reject(msgspec.json.encode(job()), decode)
    assert fault.fault == f"the decoder raised {type(error).__name__}: {error}"
    assert fault.key == Key("ns", "j")


def test_long_texts_do_not_get_into_the_message():
    error = reject(msgspec.json.encode(job(labels={"a" * 300_000: 5})), decode_unstructured)
    assert len(str(error)) < 2_000
    deep = job() | {"x" * 300_000: msgspec.Raw(nested(500))}
    assert len(str(reject(msgspec.json.encode(deep)))) < 2_000


def test_a_response_is_decoded_or_refused():
    assert read_object(JOBS, job()).metadata.uid == "u"
    wrong: list[Any] = [
        {},
        {"metadata": None},
        {"metadata": 5},
        {"metadata": {"name": "a"}},
        job(labels=5),
        None,
        [],
        "x",
    ]
    for value in wrong:
        with pytest.raises(DecodeError):
            read_object(JOBS, value)


# Iterative pruning ---------------------------------------------------------------------------------------------------


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('[]{}",\\:a\u00fc', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('{}"\\a', max_size=3), inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((depth(each) for each in inner), default=0)


def pruned(value: Any, levels: int) -> Any:
    """Replaces deeper values with null; the recursive oracle."""
    if levels == 0 and isinstance(value, dict | list):
        return None
    if isinstance(value, dict):
        return {name: pruned(inner, levels - 1) for name, inner in value.items()}
    return [pruned(inner, levels - 1) for inner in value] if isinstance(value, list) else value


@given(json_values, st.integers(1, 6))
def test_pruning_keeps_what_is_above_and_nothing_two_levels_below(value: Any, levels: int):
    left = msgspec.json.decode(prune(msgspec.json.encode(value), levels))
    assert depth(left) <= levels + 1
    assert pruned(left, levels) == pruned(value, levels)


@given(st.binary(max_size=200) | st.text('[]{}",\\:1a ', max_size=60).map(str.encode))
def test_pruning_takes_any_bytes(raw: bytes):
    assert prune(raw, 10_000) == raw or raw.count(b"[") + raw.count(b"{") != raw.count(b"]") + raw.count(b"}")
    assert isinstance(prune(raw, 2), bytes)


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 400])
def test_values_are_cut_at_the_limit(levels: int):
    raw = b'{"a":' * levels + b"1" + b"}" * levels
    value = msgspec.json.decode(raw)
    deep = levels > MAX_DEPTH
    assert is_deep(raw, value) == deep
    assert prune_value(value) == ("a.a.a.a.a.a.a.a..." if deep else "")
    assert not is_deep(raw, value)
    assert depth(value) == min(levels, MAX_DEPTH)


MIB = 1024 * 1024


@pytest.mark.parametrize("piece", [b"[[]],", b"[", b'{"', b'{"a":', b"[1", b'"\\"', b'"', b'[{"a":[]}],', b"\\"])
def test_pruning_takes_linear_time_and_gives_way(piece: bytes):
    """Counts the steps between two turns of the event loop instead of seconds, because the machine may be busy."""
    steps = {size: sum(1 for _ in prune_in_slices(piece * (size // len(piece)), 50)) for size in (MIB // 4, MIB)}
    assert steps[MIB] <= 4 * steps[MIB // 4] + 4
    assert steps[MIB] <= 2 * MIB / 5_000 + 2


def test_what_is_far_too_deep_is_counted_rather_than_walked_through():
    """Slices are counted instead of time: 630 of them take two seconds."""
    assert sum(1 for _ in prune_in_slices(b"[" * MIB + b"]" * MIB, 200)) < 20


# Streams and lists ---------------------------------------------------------------------------------------------------


def line(kind: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), raw)


def job_scene(*steps: Any, rest: tuple[Any, ...] = ()) -> Scene:
    """An informer of jobs, which stay JSON; `good@3` is listed first."""
    first = page(pod("good", 3), kind="PyTorchJob")
    scene = Scene(NO_STREAMED_LISTS, first, watch(*steps), *rest, resource=JOBS)
    cache = Cache(scene.client, clock=VirtualClock(), rng=random.Random(1), metrics=scene.metrics)
    scene.informer = cast("Any", cache.informer(JOBS, decode_unstructured))
    scene.informer.add_handler(scene.handler)
    return scene


def job_page(*items: bytes) -> Response:
    """A list of jobs."""
    body = b'{"apiVersion":"v1","items":[%b],"kind":"PyTorchJobList","metadata":{"resourceVersion":"10"}}'
    return Response(200, {}, body % b",".join(items))


@pytest.mark.parametrize("levels", DEEP)
@virtual_time
async def test_a_deep_object_in_a_watch_does_not_affect_others(levels: int):
    """The watch continues without a relist."""
    steps = [line("ADDED", deep_job(levels)), added("b", 6), line("MODIFIED", deep_job(levels, version=7)), HANG]
    scene = job_scene(*steps)
    async with scene.running():
        await scene.until(lambda: len(scene.handler.calls) == 4)
    assert scene.handler.calls == ["+good@3!", "-deep??", "+b@6", "-deep??"]
    assert scene.names == ["b", "good"]
    remains = scene.informer.store.unreadable[Key("ns", "deep")].remains
    assert remains is not None
    assert remains.metadata.resource_version == "7"
    assert scene.transport.verbs() == ["stream", "list", "watch@10"]
    assert scene.metrics.drops == ["undecodable"] * 2


@pytest.mark.parametrize("levels", DEEP)
@virtual_time
async def test_a_deep_object_in_a_page_does_not_affect_others(levels: int):
    deep_page = job_page(msgspec.json.encode(pod("a", 3)), deep_job(levels), msgspec.json.encode(pod("b", 5)))
    scene = job_scene(ERROR_410, rest=(deep_page, watch(ERROR_410), deep_page))
    await scene.play()
    assert scene.handler.calls == ["+good@3!", "+a@3", "-deep??", "+b@5", "-good?"], (
        "the second list contains no change"
    )
    assert scene.names == ["a", "b"]
    listing = await Client(ScriptedTransport(deep_page)).list(JOBS)
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert [error.key for error in listing.unreadable] == [Key("ns", "deep")]


@virtual_time
async def test_an_unreadable_update_removes_the_previous_version():
    """An object that becomes unreadable leaves the store, returns when readable again, and is forgotten when
    deleted."""
    good = msgspec.json.encode(job(name="deep", uid="uid-deep", resourceVersion="4"))
    again = good.replace(b'"4"', b'"8"')
    stale = good.replace(b'"4"', b'"6"')
    scene = job_scene(
        *(line("ADDED", good), line("MODIFIED", deep_job(980, version=7)), line("MODIFIED", stale)),
        *(
            line("MODIFIED", again),
            line("MODIFIED", deep_job(980, version=9)),
            line("DELETED", deep_job(980, version=9)),
        ),
        added("end", 10),
        HANG,
    )
    async with scene.running():
        await scene.until(lambda: "+end@10" in scene.handler.calls)
    calls = ["+deep@4", "-deep?", "+deep@8", "-deep?", "-deep??", "+end@10"]
    assert scene.handler.calls == ["+good@3!", *calls]
    assert scene.metrics.drops.count("stale") == 1
    assert dict(scene.informer.store.unreadable) == {}


@virtual_time
async def test_an_unreadable_object_is_not_sent_again_with_each_watch():
    """The next watch begins after it, also if no other event has followed."""
    scene = job_scene(line("ADDED", deep_job(980, version=17)), rest=(watch(HANG),))
    async with scene.running():
        await scene.until(lambda: len(scene.transport.verbs()) == 4)
    assert scene.transport.verbs() == ["stream", "list", "watch@10", "watch@17"]
    assert scene.metrics.drops == ["undecodable"]


@virtual_time
async def test_the_same_fault_of_an_object_is_logged_and_published_once(capsys: pytest.CaptureFixture[str]):
    """Each relist sends it again, and each status write of others a new version."""
    one, other = deep_job(980, version=7), deep_job(980, version=8)
    again = job_page(one)
    scene = job_scene(
        line("ADDED", one), ERROR_410, rest=(again, watch(ERROR_410), again, watch(line("MODIFIED", other), HANG))
    )
    async with scene.running():
        await scene.until(lambda: len(scene.metrics.drops) == 4)
    assert [call for call in scene.handler.calls if "deep" in call] == ["-deep??"] * 2, "one for each version"
    assert capsys.readouterr().out.count("object cannot be decoded") == 1


@virtual_time
async def test_an_unreadable_object_that_a_list_lacks_is_forgotten():
    scene = job_scene(line("ADDED", deep_job(980)), ERROR_410, rest=(page(pod("good", 3), kind="PyTorchJob"),))
    await scene.play()
    assert scene.handler.calls == ["+good@3!", "-deep??", "-deep??"]
    assert dict(scene.informer.store.unreadable) == {}


@virtual_time
async def test_a_late_handler_receives_unreadable_objects():
    scene, late = job_scene(line("ADDED", deep_job(980)), HANG), RecordingHandler()
    async with scene.running():
        await scene.until(lambda: "-deep??" in scene.handler.calls)
        scene.informer.add_handler(late)
    assert late.calls == ["+good@3!", "-deep??"]


@virtual_time
async def test_a_nameless_object_causes_a_relist():
    """A watch line without a name may concern any object, so it causes a relist; a list with such an item is
    retried."""
    nameless = page(pod("a", 3), {"metadata": {}}, version=20)
    scene = listed(watch(event("ADDED", {"metadata": {"uid": "u"}})), nameless, page(pod("a", 3), version=30))
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10", "list", "list", "watch@30"]
    assert scene.transport.delays()[2] >= 0.8
    assert scene.handler.calls == [*FIRST, "-b?"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        status(500, "InternalError"),
        {"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "30"}, "items": []},
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []},
        {"kind": "PodList", "apiVersion": "v1", "items": []},
        {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "30"}, "rows": []},
        {"metadata": {"resourceVersion": "30"}, "items": []},
        {"kind": "PodList", "metadata": {"resourceVersion": "30"}, "items": {}},
        [],
        None,
        "<html>",
    ],
)
@virtual_time
async def test_a_success_that_is_no_list_of_the_kind_does_not_empty_the_cache(body: Any):
    again = page(pod("a", 3), pod("b", 5), version=30)
    scene = listed(watch(ERROR_410), json_response(body), again)
    await scene.play()
    assert scene.handler.calls == FIRST
    assert scene.transport.verbs()[2:] == ["watch@10", "list", "list", "watch@30"]
    assert scene.transport.delays()[3] >= 0.8, "retried with back-off"
    with pytest.raises(DecodeError):
        await Client(ScriptedTransport(json_response(body))).list(PODS)


@virtual_time
async def test_list_kinds_are_accepted_by_other_names():
    odd = Resource("example.com", "v1", "mice", "Mouse", list_kind="Mice")
    for resource, kind in ((odd, "Mice"), (PODS, "PodList"), (PODS, "PartialObjectMetadataList")):
        body = {"kind": kind, "metadata": {"resourceVersion": "3"}, "items": None}
        assert (await Client(ScriptedTransport(json_response(body))).list(resource)).items == []


# Handlers ------------------------------------------------------------------------------------------------------------


class OwnError(Exception):
    """An exception type that is derived directly from Exception."""


class Failing(RecordingHandler):
    def add(self, obj: Any, initial: bool) -> None:
        super().add(obj, initial)
        raise OwnError(obj.metadata.name)

    def delete(self, obj: Any, key: Key, final_state_unknown: bool) -> None:
        raise OwnError(key)


@virtual_time
async def test_a_custom_exception_of_a_handler_affects_nothing_else():
    scene, after = listed(watch(added("c", 11), deleted("c", 12), modified("a", 13), HANG)), RecordingHandler()
    failing = Failing()
    scene.informer._handlers = [failing, scene.handler, after]
    async with scene.running():
        await scene.until(lambda: "~a@13" in after.calls)
    assert scene.handler.calls == after.calls == [*FIRST, "+c@11", "-c", "~a@13"]
    assert failing.calls == [*FIRST, "+c@11", "~a@13"]
    assert scene.metrics.failures == 4
    assert scene.names == ["a", "b"]


@virtual_time
async def test_a_custom_exception_of_an_index_keeps_no_object_out_of_the_store():
    def index(obj: Any) -> tuple[str, ...]:
        if obj.metadata.name == "b":
            raise OwnError
        return (obj.metadata.name,)

    scene = listed(watch(HANG), indices={"name": index})
    async with scene.running():
        await scene.informer.wait_synced()
    assert scene.handler.calls == FIRST
    assert [obj.metadata.name for obj in scene.informer.store.by_index("name", "a")] == ["a"]
    assert scene.informer.store.by_index("name", "b") == []
    assert scene.metrics.failures == 1


# Responses and errors
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", DEEP)
async def test_answers_that_are_too_deep(levels: int):
    deep = Response(200, {}, deep_job(levels))
    with pytest.raises(DecodeError, match="must not be nested more than 200 levels"):
        await Client(ScriptedTransport(deep)).get(JOBS, "deep", "ns")
    answer = await Client(ScriptedTransport(deep)).patch(JOBS, "deep", "ns", {}, metadata_only=True)
    assert answer["metadata"]["resourceVersion"] == "5"


@pytest.mark.parametrize(
    "body",
    [
        b'{"details": "x", "code": 409, "reason": "AlreadyExists"}',
        b'{"details": {"causes": "x"}, "code": 409, "reason": "AlreadyExists"}',
        b'{"details": {"causes": ["x", null, {"reason": 5}]}, "code": 409, "reason": "AlreadyExists"}',
        b'{"details": {"retryAfterSeconds": "soon"}, "code": 409, "reason": "AlreadyExists"}',
        b'{"details": [], "code": "x", "reason": "AlreadyExists", "message": {}}',
        b'{"details": ' + nested(2_000) + b', "code": 409}',
        b'{"message": "\xff", "code": 409}',
        b"\xff\xfe",
        b"[]",
    ],
)
def test_error_bodies_of_any_shape_are_errors(body: bytes):
    error = api_error(409, body)
    assert error.code == 409
    assert isinstance(error.causes, list)
    assert (error.too_large_resource_version, error.namespace_terminating, error.retry_after) == (False, False, None)


# Fuzzing ------------------------------------------------------------------------------------------------------------


LEASE: Json = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "l", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
    "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2025-06-01T12:00:00.000000Z"},
}
SAMPLES: dict[str, bytes] = {
    "job": msgspec.json.encode(job(labels={"a": "b"}, annotations={"a": "b"}, ownerReferences=[{"kind": "x"}])),
    "deep": deep_job(600),
    "lease": msgspec.json.encode(LEASE),
    "line": line("ADDED", msgspec.json.encode(job())),
    "page": page(pod("a"), pod("b"), kind="PyTorchJob").body,
    "status": msgspec.json.encode(status(409, "AlreadyExists", "m", "NamespaceTerminating")),
}


@st.composite
def mutilated(draw: st.DrawFn) -> bytes:
    """Arbitrary bytes, or a real object that is truncated, has pieces replaced, or is nested in another."""
    raw = draw(st.sampled_from([*SAMPLES.values()]) | st.binary(max_size=100) | json_values.map(msgspec.json.encode))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(raw)))
        end = draw(st.integers(start, min(len(raw), start + 20)))
        piece = draw(
            st.binary(max_size=8)
            | st.sampled_from([b"", b"[]", b"{}", b"null", b"5", b'"x"', b"}", b'"', nested(1_500), *SAMPLES.values()])
        )
        raw = raw[:start] + piece + raw[end:]
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw


fuzzed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def attempt(decode: Callable[[bytes], Any], raw: bytes) -> tuple[DecodeError | None, Any]:
    try:
        return None, ObjectDecoder(JOBS, decode)(raw)
    except DecodeError as error:
        return error, None


@fuzzed
@given(mutilated())
def test_any_bytes_are_an_object_or_a_decode_error(raw: bytes):
    for decode in (DECODE, decode_unstructured, decode_complete):
        error, obj = attempt(decode, raw)
        if error is not None:
            assert len(str(error)) < 4_000
            assert error.remains is None or (
                error.remains.metadata.uid and error.remains.fault == (error.path, error.detail)
            )
            obj = error.remains
        if isinstance(obj, Unstructured):
            assert msgspec.json.decode(msgspec.json.encode(obj.raw)) == obj.raw


@fuzzed
@given(mutilated(), st.integers(200, 599))
def test_any_error_body_is_an_error(raw: bytes, code: int):
    error = api_error(code, raw)
    assert isinstance(error, ApiError)
    for each in (error, error_of_status(error.status)):
        assert (each.too_large_resource_version, each.namespace_terminating, len(each.causes)) is not None


@fuzzed
@given(mutilated())
async def test_any_line_is_an_event_or_a_decode_error(raw: bytes):
    try:
        found = await read(decode_event, raw)
        if found.type == "ERROR":
            error_of_status(await read(decode_status, found.object))
    except DecodeError:
        pass


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(mutilated(), min_size=1, max_size=3), mutilated())
def test_no_bytes_end_an_informer(lines: list[bytes], body: bytes):
    @virtual_time
    async def scenario() -> None:
        steps = [each.replace(b"\n", b" ") + b"\n" for each in lines]
        wrapped = [line("MODIFIED", each.replace(b"\n", b" ")) for each in lines]
        good = page(pod("good", 90), version=99, kind="PyTorchJob")
        scene = job_scene(*wrapped, *steps, ERROR_410, rest=(Response(200, {}, body), *[good] * 3, Streamed([HANG])))
        async with scene.running():
            await scene.until(lambda: len(scene.transport.requests) >= 6)
            assert "good" in scene.names or is_list(body)

    scenario()


def is_list(body: bytes) -> bool:
    """Whether the drawn bytes happen to be a valid list, which an informer must accept."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    metadata = value.get("metadata") if isinstance(value, dict) and value.get("kind") == "PyTorchJobList" else None
    return isinstance(metadata, dict) and bool(metadata.get("resourceVersion"))


@fuzzed
@given(mutilated() | json_values.map(lambda value: msgspec.json.encode({**LEASE, "spec": value})))
def test_no_lease_ends_the_election(raw: bytes):
    @virtual_time
    async def scenario() -> None:
        clock = VirtualClock()
        client = Client(ScriptedTransport(*[Response(200, {}, raw)] * 2), clock=clock, rng=random.Random(1))
        elector = LeaderElector(client, "ns", ["l"], "other", clock=clock, rng=random.Random(1))
        await elector._try_acquire(elector._locks[0])

    scenario()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutilated() | json_values.map(lambda value: msgspec.json.encode({**LEASE, "spec": value})))
def test_no_lease_ends_its_renewal_or_return(raw: bytes):
    @virtual_time
    async def scenario() -> None:
        clock = VirtualClock()
        free = {**LEASE, "spec": {}}
        script = [json_response(free), json_response(LEASE), *[Response(200, {}, raw)] * 200]
        client = Client(ScriptedTransport(*script), clock=clock, rng=random.Random(1))
        elector = LeaderElector(client, "ns", ["l"], "me", clock=clock, rng=random.Random(1))
        assert await elector._try_acquire(elector._locks[0])
        with contextlib.suppress(LeadershipLostError):
            await elector._renew_held()
        elector._locks[0].renewed_at = clock.monotonic()
        await elector.release()

    scenario()


def test_a_store_holds_no_bytes_of_what_it_refused():
    store: Store[Unstructured] = Store()
    error = reject(deep_job(2_000))
    assert error.__cause__ is not None
    store.reject(Key("ns", "deep"), error)
    assert [error.__cause__, error.__context__, error.__traceback__].count(None) == 3
