"""Requests, retries, errors and limits of the client, against a scripted API server in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from tests.runtime.scripted import (
    HANG,
    Answer,
    CountingMetrics,
    ScriptedTransport,
    Step,
    Streamed,
    json_response,
    page,
    pod,
    refusal,
)
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.conflicts import update
from trainop.runtime.client.sender import retry_after
from trainop.runtime.client.transport import NotConnectedError, Request, Response
from trainop.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    DecodeError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    api_error,
)
from trainop.runtime.objects.metadata import NODES, PODS, Change, Json, apply_change

Call: TypeAlias = Callable[[Client], Awaitable[Any]]


class FencedError(Exception):
    """Raised by a write gate that refuses."""


def client_of(*answers: Answer, **options: Any) -> tuple[Client, ScriptedTransport]:
    transport = ScriptedTransport(*answers)
    return Client(transport, clock=VirtualClock(), rng=random.Random(1), **options), transport


def versioned(name: str) -> Json:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": "7"}}


CALLS: dict[str, Call] = {
    "get": lambda client: client.get(PODS, "a", "ns"),
    "create": lambda client: client.create(PODS, pod("a")),
    "replace": lambda client: client.replace(PODS, versioned("a")),
    "overwrite": lambda client: client.replace(PODS, {"metadata": {"name": "a"}}),
    "merge": lambda client: client.patch(PODS, "a", "ns", {"spec": {}}),
    "merge at a version": lambda client: client.patch(PODS, "a", "ns", versioned("a")),
    "patch at a version": lambda client: client.patch(
        PODS, "a", "ns", [{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}], kind=PatchKind.JSON
    ),
    "apply": lambda client: client.patch(PODS, "a", "ns", pod("a"), kind=PatchKind.APPLY),
    "force status": lambda client: client.patch(
        PODS, "a", "ns", pod("a"), kind=PatchKind.APPLY, force=True, subresource="status"
    ),
    "delete": lambda client: client.delete(PODS, "a", "ns"),
    "delete uid": lambda client: client.delete(PODS, "a", "ns", uid="u"),
    "get node": lambda client: client.get(NODES, "n"),
}

RESET = ConnectionResetError("reset")
REFUSED = NotConnectedError("refused")
BUSY = refusal(429, "TooManyRequests")


@pytest.mark.case("runtime-38", "a")
@pytest.mark.parametrize(
    ("call", "failure", "repeated"),
    [
        ("get", RESET, True),
        ("get", TimeoutError(), True),
        ("get", refusal(500), True),
        ("get", refusal(503), True),
        ("get", refusal(404), False),
        ("get", REFUSED, True),
        ("create", RESET, False),
        ("create", refusal(500), False),
        ("create", refusal(503), False),
        ("create", TimeoutError(), False),
        ("create", BUSY, True),
        ("create", REFUSED, True),
        ("replace", RESET, True),
        ("replace", refusal(500, message="etcdserver: leader changed"), True),
        ("replace", refusal(500, message="etcdserver: request is too large"), False),
        ("merge at a version", refusal(500, message="rpc error: trying to send message larger than max"), False),
        ("replace", refusal(409, "Conflict"), False),
        ("overwrite", RESET, False),
        ("merge", refusal(502), False),
        ("merge at a version", refusal(502), True),
        ("patch at a version", refusal(502), True),
        ("apply", refusal(504), True),
        ("delete", RESET, False),
        ("delete uid", RESET, True),
    ],
)
@virtual_time
async def test_only_harmless_requests_are_retried(call: str, failure: Answer, repeated: bool):
    client, transport = client_of(failure, json_response({}))
    if repeated:
        await CALLS[call](client)
        assert len(transport.requests) == 2
        assert transport.requests[0] == transport.requests[1]
        assert 0.16 <= transport.delays()[0] <= 0.24
    else:
        with pytest.raises((ApiError, ConnectionError, TimeoutError)):
            await CALLS[call](client)
        assert len(transport.requests) == 1


@virtual_time
async def test_the_time_of_a_write_is_an_average_of_the_last_ones():
    client, transport = client_of(*[json_response({})] * 200)
    assert client.write_seconds() == 0
    send, seconds = transport.send, [0.5]

    async def slowly(request: Request) -> Response:
        await client._clock.sleep(seconds[0])
        return await send(request)

    transport.send = slowly  # type: ignore[method-assign]
    await CALLS["get"](client)
    assert client.write_seconds() == 0, "a read is none"
    for _ in range(80):
        await CALLS["create"](client)
    assert client.write_seconds() == pytest.approx(0.5, abs=0.01)
    seconds[0] = 0.01
    for _ in range(16):
        await CALLS["create"](client)
    assert 0.1 < client.write_seconds() < 0.25


@virtual_time
async def test_retries_end_after_five_tries():
    client, transport = client_of(*[refusal(503)] * 10)
    with pytest.raises(ApiError) as caught:
        await CALLS["get"](client)
    assert caught.value.code == 503
    delays = transport.delays()
    assert len(delays) == 4
    for delay, exact in zip(delays, (0.2, 0.4, 0.8, 1.6), strict=True):
        assert 0.8 * exact <= delay <= 1.2 * exact


@pytest.mark.parametrize(("seconds", "tries"), [(7, 4), (20, 2), (60, 1)])
@virtual_time
async def test_retries_wait_as_asked_but_not_beyond_the_budget(seconds: int, tries: int):
    client, transport = client_of(*[refusal(429, retry_after=seconds)] * 10)
    with pytest.raises(TooManyRequestsError) as caught:
        await CALLS["create"](client)
    assert caught.value.retry_after == seconds
    assert len(transport.requests) == tries
    assert all(seconds <= delay <= 1.2 * seconds for delay in transport.delays())


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", UnauthorizedError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (409, "AlreadyExists", AlreadyExistsError),
        (409, "Conflict", ConflictError),
        (410, "Expired", GoneError),
        (422, "Invalid", InvalidError),
    ],
)
@virtual_time
async def test_refusals_are_errors_with_all_details_of_the_server(code: int, reason: str, kind: type[ApiError]):
    client, _ = client_of(refusal(code, reason, "FieldValueInvalid"))
    with pytest.raises(kind) as caught:
        await CALLS["create"](client)
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert caught.value.causes == [{"reason": "FieldValueInvalid"}]


@virtual_time
async def test_success_that_is_no_json_is_an_error():
    client, _ = client_of(Response(200, {}, b"<html>please log in</html>"))
    with pytest.raises(ApiError, match="please log in"):
        await CALLS["get"](client)


def body_of(request: Request) -> Any:
    return msgspec.json.decode(request.body) if request.body else None


@pytest.mark.parametrize(
    ("call", "method", "path", "query", "content_type"),
    [
        ("get", "GET", "/api/v1/namespaces/ns/pods/a", {}, None),
        ("create", "POST", "/api/v1/namespaces/ns/pods", {"fieldManager": "controller"}, "application/json"),
        ("replace", "PUT", "/api/v1/namespaces/ns/pods/a", {"fieldManager": "controller"}, "application/json"),
        (
            "merge",
            "PATCH",
            "/api/v1/namespaces/ns/pods/a",
            {"fieldManager": "controller"},
            "application/merge-patch+json",
        ),
        (
            "patch at a version",
            "PATCH",
            "/api/v1/namespaces/ns/pods/a",
            {"fieldManager": "controller"},
            "application/json-patch+json",
        ),
        (
            "apply",
            "PATCH",
            "/api/v1/namespaces/ns/pods/a",
            {"fieldManager": "controller"},
            "application/apply-patch+yaml",
        ),
        ("delete", "DELETE", "/api/v1/namespaces/ns/pods/a", {}, None),
        ("get node", "GET", "/api/v1/nodes/n", {}, None),
        (
            "force status",
            "PATCH",
            "/api/v1/namespaces/ns/pods/a/status",
            {"fieldManager": "controller", "force": "true"},
            "application/apply-patch+yaml",
        ),
    ],
)
@virtual_time
async def test_requests_are_as_the_api_wants_them(
    call: str, method: str, path: str, query: dict[str, str], content_type: str | None
):
    client, transport = client_of(json_response({}))
    await CALLS[call](client)
    (request,) = transport.requests
    assert (request.method, request.path) == (method, path)
    assert request.query == query | ({"timeout": "30s"} if method != "GET" else {})
    assert request.timeout == 30
    assert request.headers["user-agent"].startswith("controller (")
    if content_type:
        assert request.content_type == content_type


@virtual_time
async def test_deletion_carries_its_preconditions():
    client, transport = client_of(json_response({}))
    await client.delete(PODS, "a", "ns", uid="u", resource_version="7", propagation="Background", grace_seconds=0)
    assert body_of(transport.requests[0]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 0,
    }


@virtual_time
async def test_a_whole_collection_is_deleted_by_one_request():
    client, transport = client_of(json_response({}), json_response({}))
    await client.delete_collection(PODS, "ns", label_selector="a=b", propagation="Background")
    await client.delete_collection(NODES, field_selector="spec.x=y")
    first, second = transport.requests
    assert (first.method, first.path) == ("DELETE", "/api/v1/namespaces/ns/pods")
    assert first.query == {"labelSelector": "a=b", "timeout": "60s"}
    assert body_of(first) == {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert (second.path, second.query["fieldSelector"], second.body) == ("/api/v1/nodes", "spec.x=y", b"")


@virtual_time
async def test_decoding_a_long_list_yields_to_other_tasks():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    big = [pod(f"p{number}", x="y" * 512 * 1024) for number in range(8)]
    client, _ = client_of(page(*big))
    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    turns = 0
    listing = await client.list(PODS)
    assert len(listing.items) == 8
    assert turns >= 3, "the event loop gets a turn per MiB"
    counting.cancel()


@virtual_time
async def test_an_update_is_computed_again_after_a_conflict():
    def count(obj: Json) -> Json:
        obj["status"] = {"count": obj.get("status", {}).get("count", 0) + 1}
        return obj

    answers = (versioned("a"), refusal(409, "Conflict"), {**versioned("a"), "status": {"count": 4}}, {"done": True})
    client, transport = client_of(*[each if isinstance(each, Response) else json_response(each) for each in answers])
    assert await update(client, PODS, "a", "ns", count, subresource="status") == {"done": True}
    puts = [request for request in transport.requests if request.method == "PUT"]
    assert [body_of(put)["status"]["count"] for put in puts] == [1, 5]
    assert puts[0].path.endswith("/pods/a/status")


@virtual_time
async def test_an_update_that_changes_nothing_writes_nothing_and_one_that_always_loses_gives_up():
    client, transport = client_of(json_response(versioned("a")))
    await update(client, PODS, "a", "ns", lambda obj: obj)
    assert transport.verbs() == ["GET"]
    losing = [json_response(versioned("a")), refusal(409, "Conflict")] * 5
    client, transport = client_of(*losing)
    with pytest.raises(ConflictError):
        await update(client, PODS, "a", "ns", lambda obj: {**obj, "spec": {}})
    assert transport.verbs() == ["GET", "PUT"] * 5


async def _label(change: Change) -> Json:
    """The body that an update of an object with one label sends."""
    given = {"metadata": {"name": "a", "labels": {"old": "1"}}}
    client, transport = client_of(json_response(given), json_response({}))
    await update(client, PODS, "a", "ns", change)
    sent: Json = body_of(transport.requests[-1])
    return sent


def test_a_change_gets_a_copy_of_its_own_and_may_return_another_object():
    given = {"labels": {"old": "1"}}

    def in_place(obj: Json) -> None:
        obj["labels"]["new"] = "2"

    assert apply_change(given, in_place) == {"labels": {"old": "1", "new": "2"}}
    assert apply_change(given, lambda obj: {"labels": {**obj["labels"], "new": "2"}}) == apply_change(given, in_place)
    assert given == {"labels": {"old": "1"}}
    with pytest.raises(TypeError, match="not str"):
        apply_change(given, lambda obj: obj["labels"].setdefault("new", "2"))


@virtual_time
async def test_an_update_takes_a_change_in_place_as_well_as_a_returned_one():
    def in_place(obj: Json) -> None:
        obj["metadata"]["labels"]["new"] = "2"

    def returned(obj: Json) -> Json:
        return {**obj, "metadata": {**obj["metadata"], "labels": {**obj["metadata"]["labels"], "new": "2"}}}

    assert (await _label(in_place))["metadata"]["labels"] == {"old": "1", "new": "2"}
    assert await _label(returned) == await _label(in_place)


@virtual_time
async def test_list_follows_pages_and_names_kinds():
    client, transport = client_of(page(pod("a"), token="t"), page({"metadata": {"name": "b"}}, version=11))
    listing = await client.list(PODS, "ns", label_selector="x=1", limit=1)
    assert [(item["metadata"]["name"], item["kind"], item["apiVersion"]) for item in listing.items] == [
        ("a", "Pod", "v1"),
        ("b", "Pod", "v1"),
    ]
    assert listing.resource_version == "11"
    assert [dict(request.query) for request in transport.requests] == [
        {"labelSelector": "x=1", "limit": "1"},
        {"labelSelector": "x=1", "limit": "1", "continue": "t"},
    ]
    assert transport.requests[0].timeout == 60


@virtual_time
async def test_list_that_expires_begins_once_more():
    client, _ = client_of(page(pod("a"), token="t"), refusal(410, "Expired"), page(pod("b")))
    assert [item["metadata"]["name"] for item in (await client.list(PODS)).items] == ["b"]


@virtual_time
async def test_gate_is_asked_before_every_attempt_to_write():
    asked = 0

    def gate() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise FencedError

    client, transport = client_of(json_response({}), page(), BUSY, json_response({}), gate=gate)
    await client.get(PODS, "a", "ns")
    await client.list(PODS)
    assert asked == 0
    with pytest.raises(FencedError):
        await CALLS["create"](client)
    assert len(transport.requests) == 3, "the retry is refused before it is sent"


@virtual_time
async def test_every_attempt_is_counted():
    metrics = CountingMetrics()
    client, _ = client_of(refusal(503), RESET, json_response({}), Streamed([]), metrics=metrics, host="api:443")
    await CALLS["get"](client)
    await client.open(Request("GET", "/x"))
    assert metrics.requests == [
        ("GET", "503", "api:443"),
        ("GET", "<error>", "api:443"),
        ("GET", "200", "api:443"),
        ("GET", "200", "api:443"),
    ]
    assert metrics.retries == [("GET", "503", "api:443"), ("GET", "<error>", "api:443")]
    assert [received > 0 for _, received in metrics.sizes] == [True, False, True, False]
    assert metrics.decodes == 1


@virtual_time
async def test_stream_that_is_refused_is_an_error_and_closed():
    refused = Streamed([b'{"reason": "Exp', b'ired", "code": 410}'], 410, {"retry-after": "3"})
    client, _ = client_of(refused)
    with pytest.raises(GoneError) as caught:
        await client.open(Request("GET", "/x"))
    assert (caught.value.reason, caught.value.retry_after) == ("Expired", 3)
    assert refused.closed


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([b"bad gateway", HANG], "bad gateway"),
        ([b"x" * 60_000] * 1000, "x" * 1024),
        ([b"bad", ConnectionResetError()], "bad"),
        ([b"\xff\xfe"], "\ufffd\ufffd"),
        ([], "HTTP 502"),
    ],
    ids=["never ends", "endless", "cut", "no text", "nothing"],
)
@virtual_time
async def test_the_body_of_a_refused_stream_is_bounded_in_time(steps: list[Step], message: str):
    """A proxy in front of the API server may send any response."""
    refused = Streamed(steps, 502)
    client, _ = client_of(refused)
    with pytest.raises(ApiError) as caught:
        await client.open(Request("GET", "/x", timeout=30))
    assert (caught.value.code, str(caught.value)) == (502, message)
    assert asyncio.get_running_loop().time() <= 30
    assert refused.closed


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"message": "no", "reason": "Forbidden", "code": 403}, "no"),
        ({"reason": "Forbidden", "code": 403}, "Forbidden"),
        ({"code": 403}, "HTTP 403"),
        ({"message": "no", "code": "403"}, "no"),
    ],
)
def test_message_of_a_refusal(said: Json, message: str):
    error = api_error(403, msgspec.json.encode(said))
    assert type(error) is ForbiddenError
    assert (str(error), error.code, error.causes) == (message, 403, [])


def test_predicates_of_a_refusal():
    def caused(code: int, why: str, **cause: str) -> ApiError:
        return api_error(code, msgspec.json.encode({"code": code, "reason": why, "details": {"causes": [cause]}}))

    assert caused(504, "Timeout", reason="ResourceVersionTooLarge").too_large_resource_version
    assert caused(504, "Timeout", message="Too large resource version: 9").too_large_resource_version
    assert not caused(504, "Timeout", reason="Other").too_large_resource_version
    assert not caused(500, "InternalError", reason="ResourceVersionTooLarge").too_large_resource_version
    assert caused(403, "Forbidden", reason="NamespaceTerminating").namespace_terminating
    assert not caused(403, "Forbidden", reason="Other").namespace_terminating
    assert not api_error(403, b"{}").namespace_terminating


def test_the_header_says_how_long_to_wait_and_else_the_body():
    busy = msgspec.json.encode({"code": 429, "details": {"retryAfterSeconds": 3}})
    assert api_error(429, busy).retry_after == 3
    assert api_error(429, busy, 7).retry_after == 7
    assert api_error(429, b"{}").retry_after is None


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        ("60", 60),
        ("3600", 60),
        ("9" * 400, 60),
        ("9" * 5_000, 60),
        ("-1", None),
        ("1.5", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_is_limited_to_a_minute(asked: str, seconds: float | None):
    assert api_error(429, b"{}", retry_after({"retry-after": asked})).retry_after == seconds


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("7", 7),
        ("3600", 60),
        ("9" * 400, 60),
        ("-1", None),
        ('"7"', None),
        ("true", None),
        ("[7]", None),
        ("1e300", 60),
    ],
)
def test_retry_after_in_the_body_is_limited_too(asked: str, seconds: float | None):
    assert api_error(429, b'{"details":{"retryAfterSeconds":%s}}' % asked.encode()).retry_after == seconds


@virtual_time
async def test_a_list_has_its_own_deadline_and_selectors():
    client, transport = client_of(page(), page())
    await client.list(PODS, "ns", field_selector="spec.x=1")
    await client.list(PODS)
    first, second = transport.requests
    assert (first.query, first.timeout) == ({"fieldSelector": "spec.x=1", "limit": "250"}, 60)
    assert (second.path, second.query) == ("/api/v1/pods", {"limit": "250"})


@virtual_time
async def test_a_create_uses_the_namespace_of_the_object_or_the_caller():
    client, transport = client_of(json_response({}), json_response({}), json_response({}))
    await client.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    await client.create(PODS, {"metadata": {"name": "a"}}, namespace="other")
    await client.create(NODES, {})
    assert [request.path for request in transport.requests] == [
        "/api/v1/namespaces/ns/pods",
        "/api/v1/namespaces/other/pods",
        "/api/v1/nodes",
    ]


@virtual_time
async def test_only_metadata_is_requested_if_no_more_is_read():
    client, transport = client_of(*[json_response({"metadata": {"uid": "u", "resourceVersion": "1"}})] * 4)
    await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns")
    await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns", metadata_only=True)
    await client.patch(PODS, "a", "ns", {})
    await client.patch(PODS, "a", "ns", {}, metadata_only=True)
    brief = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    assert [request.accept for request in transport.requests] == ["application/json", brief] * 2


@pytest.mark.parametrize("answer", [{}, {"metadata": {}}, {"metadata": {"uid": "u"}}, {"metadata": 5}, [], None])
@virtual_time
async def test_an_answer_without_uid_and_version_is_an_error(answer: Any):
    client, _ = client_of(json_response(answer))
    with pytest.raises(DecodeError):
        await client.patch(PODS, "a", "ns", {}, metadata_only=True)


@virtual_time
async def test_only_writes_name_their_deadline_and_manager():
    client, transport = client_of(*[json_response({})] * 4, field_manager="me", user_agent="mine/1")
    await client.get(PODS, "a", "ns")
    await CALLS["merge"](client)
    await client.request(Request("DELETE", "/x", {"timeout": "5s"}))
    await client.request(Request("POST", "/x", timeout=7, headers={"user-agent": "other"}))
    queries = [dict(request.query) for request in transport.requests]
    assert queries == [{}, {"fieldManager": "me", "timeout": "30s"}, {"timeout": "5s"}, {"timeout": "7s"}]
    assert [request.headers["user-agent"] for request in transport.requests] == ["mine/1"] * 3 + ["other"]


@virtual_time
async def test_retries_end_within_half_a_minute_and_jitter():
    client, transport = client_of(*[refusal(503)] * 5)
    with pytest.raises(ApiError):
        await CALLS["get"](client)
    for delay, exact in zip(transport.delays(), (0.2, 0.4, 0.8, 1.6), strict=True):
        assert 0.8 * exact <= delay <= 1.2 * exact
        assert delay != exact


@virtual_time
async def test_limiter_is_waited_for():
    waited = []

    class Limiter:
        async def acquire(self) -> None:
            waited.append(len(transport.requests))
            await asyncio.sleep(0.5)

    metrics = CountingMetrics()
    client, transport = client_of(BUSY, json_response({}), limiter=Limiter(), metrics=metrics)
    await CALLS["create"](client)
    assert waited == [0, 1]
    assert metrics.waits == [0.5, 0.5]


@virtual_time
async def test_warnings_of_the_server_are_repeated_once(capsys: pytest.CaptureFixture[str]):
    warning = '299 - "old \\"v1\\" API", 299 - "unknown field"'
    answer = Response(200, {"warning": warning}, b"{}")
    client, _ = client_of(answer, answer)
    await CALLS["get"](client)
    await CALLS["get"](client)
    out = capsys.readouterr().out
    assert out.count("API server warning") == 2
    assert "unknown field" in out


@virtual_time
async def test_the_warnings_of_a_create_reach_its_caller():
    warning = '299 - "unknown field \\"spec.containers[0].resource\\"", 299 kube "a \\\\ b"'
    answer = Response(201, {"warning": warning}, b'{"metadata": {"uid": "u", "resourceVersion": "1"}}')
    client, _ = client_of(answer, answer)
    for _ in range(2):  # also those that have been logged
        heard: list[str] = []
        await client.create(PODS, {"metadata": {"name": "p"}}, namespace="ns", warned=heard.append)
        assert heard == ['unknown field "spec.containers[0].resource"', "a \\ b"]


@virtual_time
async def test_the_memory_of_warnings_is_bounded(capsys: pytest.CaptureFixture[str]):
    answers = [Response(200, {"warning": f'299 - "number {number}"'}, b"{}") for number in range(1100)]
    client, _ = client_of(*answers)
    for _ in answers:
        await CALLS["get"](client)
    assert capsys.readouterr().out.count("API server warning") == 1000
