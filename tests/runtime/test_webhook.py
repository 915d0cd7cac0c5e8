"""Admission over TLS: versions, refusals, limits, and handlers that fail or take too long."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from cryptography import x509

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.clock import Clock
from trainop.runtime.errors import InvalidError, UnhealthyError
from trainop.runtime.manager.manager import Manager
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import PODS, Json, Resource
from trainop.runtime.serving.bodies import Bodies
from trainop.runtime.serving.certificate_folder import CertificateError, CertificateFolder, ServingCertificate
from trainop.runtime.serving.server import Address
from trainop.runtime.webhook.admission import (
    AdmissionHandler,
    AdmissionRequest,
    AdmissionResponse,
    allow,
    amend,
    decode_review,
    defaulting,
    deny,
    mutating_path,
    validating,
    validating_path,
)
from trainop.runtime.webhook.certificates import issue, make_authority
from trainop.runtime.webhook.server import (
    LARGE_REVIEWS,
    MAX_BODY,
    WebhookServer,
    _Endpoint,
    _Rooms,
    handler_timeout,
)

JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
PATH = "/validate-kubeflow-org-v1-pytorchjob"
NOW = datetime.now(UTC)
AUTHORITY = make_authority("ca", "test", NOW)
SERVER = issue(AUTHORITY, ["localhost"], NOW)


def review(
    operation: str = "CREATE",
    obj: Any = None,
    old: Any = None,
    *,
    version: str = "v1",
    kind: str = "AdmissionReview",
    **more: Any,
) -> Json:
    request = {"uid": "u-1", "operation": operation, "object": obj, "oldObject": old, "kind": {"kind": "PyTorchJob"}}
    return {"apiVersion": f"admission.k8s.io/{version}", "kind": kind, "request": request | more}


def check(obj: Json, old: Json | None) -> AdmissionResponse:
    """A validator that refuses objects marked as bad."""
    return deny("spec is bad", "take care") if obj.get("spec") == "bad" else allow("take care")


class Caller:
    """A client in the role of the API server: trusts the authority and sends reviews."""

    def __init__(self, server: WebhookServer, session: aiohttp.ClientSession) -> None:
        self.url = f"https://localhost:{server.port}"
        self.session = session

    async def post(self, path: str, body: Any, content_type: str = "application/json") -> tuple[int, Json]:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.post(self.url + path, data=data, headers={"content-type": content_type}) as answer:
            return answer.status, await answer.json()

    async def respond(self, path: str, body: Any, **options: Any) -> Json:
        """The `response` of a review whose HTTP status must be 200."""
        status, answer = await self.post(path, body, **options)
        assert (status, answer["kind"]) == (200, "AdmissionReview")
        response: Json = answer["response"]
        return response


@contextlib.asynccontextmanager
async def serving(
    handlers: dict[str, AdmissionHandler], metrics: Metrics | None = None
) -> AsyncIterator[tuple[WebhookServer, Caller]]:
    certificate = ServingCertificate(server_name="localhost")
    certificate.load(SERVER.certificate, SERVER.key)
    certificate.authority = AUTHORITY.certificate
    server = WebhookServer(certificate, address=Address("127.0.0.1", 0), metrics=metrics)
    for path, handler in handlers.items():
        server.register(path, handler)
    await server.bind()
    running = asyncio.create_task(server.run())
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            yield server, Caller(server, session)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.case("runtime-39", "a")
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_an_invalid_object_is_denied_in_the_version_that_was_asked(version: str):
    metrics = Metrics()
    async with serving({PATH: validating(check)}, metrics) as (_, caller):
        status, answer = await caller.post(f"{PATH}?timeout=10s", review("CREATE", {"spec": "bad"}, version=version))
        assert status == 200
        assert answer == {
            "apiVersion": f"admission.k8s.io/{version}",
            "kind": "AdmissionReview",
            "response": {
                "uid": "u-1",
                "allowed": False,
                "status": {"metadata": {}, "code": 403, "reason": "Forbidden", "message": "spec is bad"},
                "warnings": ["take care"],
            },
        }
        response = await caller.respond(PATH, review("CREATE", {"spec": "good"}, version=version))
        assert response == {
            "uid": "u-1",
            "allowed": True,
            "status": {"metadata": {}, "code": 200},
            "warnings": ["take care"],
        }
    value = metrics.registry.get_sample_value
    assert value("controller_runtime_webhook_requests_total", {"webhook": PATH, "code": "200"}) == 2
    assert value("controller_runtime_webhook_requests_total", {"webhook": PATH, "code": "500"}) == 0
    assert value("controller_runtime_webhook_latency_seconds_count", {"webhook": PATH}) == 2
    assert value("controller_runtime_webhook_requests_in_flight", {"webhook": PATH}) == 0


@pytest.mark.case("runtime-39", "bd")
async def test_invalid_requests():
    async with serving({PATH: validating(check)}) as (_, caller):
        for body, content_type, code, message in (
            (review(), "text/plain", 400, "contentType=text/plain, expected application/json"),
            (review(), "application/json; charset=utf-8", 400, "contentType=application/json; charset=utf-8, expected"),
            (b"", "application/json", 400, "request body is empty"),
            (b"{", "application/json", 400, "couldn't decode"),
            (review(kind="Pod"), "application/json", 400, 'no kind "Pod" is registered for version "admission'),
            (b" " * (8 << 20), "application/json", 413, "request entity is too large; limit is 7340032 bytes"),
        ):
            response = await caller.respond(PATH, body, content_type=content_type)
            assert (response["allowed"], response["status"]["code"]) == (False, code)
            assert response["status"]["message"].startswith(message)
        almost = review("CREATE", {"spec": "x" * (6 << 20)})
        assert (await caller.respond(PATH, almost))["allowed"]
        async with caller.session.post(f"{caller.url}/elsewhere", json=review()) as answer:
            assert answer.status == 404


@pytest.mark.case("runtime-39", "c")
async def test_a_handler_that_raises_affects_only_its_request():
    def judge(request: AdmissionRequest) -> AdmissionResponse:
        if request.namespace == "bug":
            raise KeyError("spec")
        if request.namespace == "gone":
            raise asyncio.CancelledError
        raise InvalidError(422, "Invalid", "too many", {"code": 422, "reason": "Invalid", "message": "too many"})

    metrics = Metrics()
    async with serving({PATH: judge}, metrics) as (_, caller):
        response = await caller.respond(PATH, review(namespace="bug"))
        assert response["status"] == {"metadata": {}, "code": 500, "message": "panic: 'spec' [recovered]"}
        assert metrics.registry.get_sample_value("controller_runtime_webhook_panics_total") == 1
        assert (await caller.respond(PATH, review(namespace="gone")))["status"]["code"] == 500
        response = await caller.respond(PATH, review())
        assert response["status"] == {"metadata": {}, "code": 422, "reason": "Invalid", "message": "too many"}
        assert metrics.registry.get_sample_value("controller_runtime_webhook_panics_total") == 2


@pytest.mark.case("runtime-39", "e")
@virtual_time
async def test_a_slow_handler_is_answered_before_the_api_server_times_out():
    ended = []

    async def think(_: AdmissionRequest) -> AdmissionResponse:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(asyncio.get_running_loop().time())
        return allow()

    async def defy(_: AdmissionRequest) -> AdmissionResponse:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)
        return allow()

    loop = asyncio.get_running_loop()
    for handler, query, begins_at, answered_at in (
        (think, "?timeout=2s", 0, 1.5),
        (think, "", 1.5, 1.5 + 9.5),
        (defy, "?timeout=1s", 11.0, 11.0 + 0.5 + 0.25),
    ):
        assert loop.time() == begins_at
        payload = StreamReader(mock.create_autospec(BaseProtocol, instance=True), 2**16, loop=loop)
        payload.feed_data(json.dumps(review()).encode())
        payload.feed_eof()
        request = make_mocked_request("POST", PATH + query, {"content-type": "application/json"}, payload=payload)
        answer = await endpoint(handler).answer(request)
        assert loop.time() == answered_at
        assert isinstance(answer.body, bytes)
        assert json.loads(answer.body)["response"]["status"] == {"metadata": {}, "code": 500, "message": "timeout"}
    assert ended == [1.5, 11.0]


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        ("10s", 9.5),
        ("2s", 1.5),
        ("20.5s", 20.0),
        ("1500ms", 1.0),
        ("", 9.5),
        ("x", 9.5),
        ("10", 9.5),
        ("100ms", 0.1),
        ("9h", 29.5),
    ],
)
def test_the_deadline_leaves_time_for_the_answer(timeout: str, seconds: float):
    assert handler_timeout(timeout) == pytest.approx(seconds)


def request(operation: str, obj: Json | None = None, old: Json | None = None) -> AdmissionRequest:
    return AdmissionRequest("u", operation, object=obj, old_object=old)


BAD, GOOD = {"spec": "bad", "metadata": {"finalizers": ["x"]}}, {"spec": "good"}


@pytest.mark.parametrize(
    ("operation", "obj", "old", "allowed"),
    [
        ("CREATE", BAD, None, False),
        ("CREATE", GOOD, None, True),
        ("UPDATE", BAD, GOOD, False),
        ("UPDATE", GOOD, BAD, True),
        ("UPDATE", BAD | {"metadata": {"deletionTimestamp": "t"}}, BAD, True),
        ("UPDATE", BAD | {"status": {"phase": "x"}}, BAD, True),
        ("DELETE", None, BAD, True),
        ("CONNECT", BAD, None, True),
    ],
)
def test_validators_are_called_by_operation(operation: str, obj: Json | None, old: Json | None, allowed: bool):
    verdict = validating(check)(request(operation, obj, old))
    assert isinstance(verdict, AdmissionResponse)
    assert verdict.allowed is allowed


def test_deletions_are_validated_on_demand():
    judge = validating(check, lambda old: deny(f"{old['spec']} stays"))
    verdict = judge(request("DELETE", None, GOOD))
    assert isinstance(verdict, AdmissionResponse)
    assert verdict.message == "good stays"


async def test_defaults_are_a_patch_against_what_was_sent():
    handler = defaulting(lambda obj: {**obj, "spec": {"replicas": 1, **obj["spec"]}})
    path = mutating_path(JOBS)
    assert path == "/mutate-kubeflow-org-v1-pytorchjob"
    assert validating_path(PODS) == "/validate--v1-pod"
    async with serving({path: handler}) as (_, caller):
        response = await caller.respond(path, review("CREATE", {"spec": {"unknown": {"kept": 1}}}))
        assert response["patchType"] == "JSONPatch"
        patch = json.loads(base64.b64decode(response["patch"]))
        assert patch == [{"op": "add", "path": "/spec/replicas", "value": 1}]
        response = await caller.respond(path, review("CREATE", {"spec": {"replicas": 2}}))
        assert "patch" not in response
        assert (await caller.respond(path, review("DELETE", None, {"spec": {}})))["allowed"]
    assert amend({"a": 1}, {"a": 1}).patch == ()


@pytest.mark.parametrize("result", ["none", "argument", "another"])
def test_defaults_may_be_set_in_place_or_returned(result: str):
    def default(obj: Json) -> Json | None:
        if result == "another":
            return {**obj, "spec": {**obj["spec"], "replicas": 1}}
        obj["spec"]["replicas"] = 1
        return obj if result == "argument" else None

    asked = request("CREATE", {"spec": {}}, None)
    verdict = defaulting(default)(asked)
    assert isinstance(verdict, AdmissionResponse)
    assert verdict.patch == ({"op": "add", "path": "/spec/replicas", "value": 1},)
    assert asked.object == {"spec": {}}


async def test_handlers_see_dry_runs_and_paths_are_unique():
    seen = []

    def judge(asked: AdmissionRequest) -> AdmissionResponse:
        seen.append((asked.dry_run, asked.user_info["username"], asked.sub_resource))
        return allow()

    async with serving({PATH: judge}) as (server, caller):
        more: Json = {"dryRun": True, "userInfo": {"username": "me"}, "subResource": "status", "options": None}
        assert (await caller.respond(PATH, review(**more)))["allowed"]
        assert seen == [(True, "me", "status")]
        with pytest.raises(ValueError, match="registered already"):
            server.register(PATH, judge)


async def test_ready_when_it_serves_a_certificate_that_clients_accept():
    certificate = ServingCertificate(server_name="localhost")
    server = WebhookServer(certificate, address=Address("127.0.0.1", 0))
    manager = Manager(signals=False)
    manager.add_webhooks(server)
    manager.ready.add("webhooks", server.check)
    with pytest.raises(UnhealthyError, match="not been started"):
        await server.check()
    running = asyncio.create_task(manager.run())
    while server.port is None:  # noqa: ASYNC110  # the manager tells nobody when it has bound
        await asyncio.sleep(0)
    with pytest.raises(UnhealthyError, match="no certificate"):
        await server.check()
    certificate.load(SERVER.certificate, SERVER.key)
    await server.check()
    certificate.authority = make_authority("another", "test", NOW).certificate
    with pytest.raises(UnhealthyError, match="certificate verify failed"):
        await server.check()
    certificate.authority = AUTHORITY.certificate
    assert (await manager.ready.all())[0] == 200
    manager.stop()
    assert await running == 0


async def test_a_pair_that_does_not_match_is_not_shown_to_clients():
    certificate = ServingCertificate(server_name="localhost")
    certificate.authority = AUTHORITY.certificate
    server = WebhookServer(certificate, address=Address("127.0.0.1", 0))
    certificate.load(SERVER.certificate, SERVER.key)
    await server.bind()
    running = asyncio.create_task(server.run())
    other = issue(AUTHORITY, ["localhost"], NOW)
    with pytest.raises(CertificateError):
        certificate.load(other.certificate, SERVER.key)
    await server.check()
    running.cancel()
    await asyncio.wait([running])


async def test_a_slow_handler_is_logged(capsys: pytest.CaptureFixture[str]):
    clock = VirtualClock()
    now = 0.0

    def judge(_: AdmissionRequest) -> AdmissionResponse:
        nonlocal now
        now += 0.006
        return allow()

    clock.monotonic = lambda: now  # type: ignore[method-assign]  # stands still but for the handler
    await endpoint(judge, clock)._call((await decode_review(json.dumps(review()).encode()))[1])
    assert "slow webhook handler" in capsys.readouterr().out


def test_warnings_are_kept_when_an_update_of_metadata_is_allowed():
    judge = validating(lambda obj, old: deny("never", "look out"))
    before = {"metadata": {"name": "a", "finalizers": ["x"]}, "spec": 1}
    verdict = judge(AdmissionRequest("u", "UPDATE", object={"metadata": {"name": "a"}, "spec": 1}, old_object=before))
    assert isinstance(verdict, AdmissionResponse)
    assert (verdict.allowed, verdict.warnings) == (True, ("look out",))


async def test_clients_may_be_asked_for_a_certificate():
    certificate = ServingCertificate(client_ca=AUTHORITY.certificate)
    assert certificate.context.verify_mode is ssl.CERT_REQUIRED


def test_a_pair_that_does_not_match_leaves_the_old_one():
    certificate = ServingCertificate()
    other = issue(AUTHORITY, ["localhost"], NOW)
    assert certificate.load(SERVER.certificate, SERVER.key)
    assert not certificate.load(SERVER.certificate, SERVER.key)
    for pair in ((SERVER.certificate, other.key), (b"", b""), (b"x", SERVER.key)):
        with pytest.raises(CertificateError):
            certificate.load(*pair)
    assert certificate.load(other.certificate, other.key)


async def test_a_folder_is_read_periodically(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    metrics, certificate, clock = Metrics(), ServingCertificate(), VirtualClock()
    folder = CertificateFolder(tmp_path, certificate, metrics=metrics, clock=clock)
    value = metrics.registry.get_sample_value
    await folder.reload()
    assert value("certwatcher_read_certificate_errors_total") == 1
    (tmp_path / "tls.crt").write_bytes(SERVER.certificate)
    (tmp_path / "tls.key").write_bytes(SERVER.key)
    for _ in range(2):
        await folder.reload()
    assert value("certwatcher_read_certificate_total") == 1
    expiry = x509.load_pem_x509_certificate(SERVER.certificate).not_valid_after_utc.timestamp()
    assert value("runtime_certificate_expiry_timestamp_seconds", {"source": str(tmp_path)}) == expiry
    before = certificate.mounted_authority
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    await folder.reload()
    assert (before, certificate.mounted_authority) == (None, AUTHORITY.certificate)
    (tmp_path / "tls.key").write_bytes(AUTHORITY.key)
    await folder.reload()
    assert value("certwatcher_read_certificate_errors_total") == 2
    for _ in range(3):
        await folder.reload()
    (tmp_path / "tls.key").write_bytes(SERVER.key)
    await folder.reload()
    (tmp_path / "tls.key").write_bytes(AUTHORITY.key)
    await folder.reload()
    reported = capsys.readouterr().out.count("cannot load serving certificate")
    assert reported == 3, "logged once for each error, and again when it recurs"
    assert not certificate.load(SERVER.certificate, SERVER.key), "the last valid pair is still served"


def nest(levels: int, inner: str = "1") -> str:
    return '{"a":[' * (levels // 2) + inner + "]}" * (levels // 2)


@pytest.mark.parametrize("levels", [300, 980, 5_000, 9_900])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
async def test_an_object_that_is_too_deep_is_refused_unless_it_is_stored_already(levels: int, operation: str):
    deep = json.dumps({"spec": {"a": "@"}}).replace('"@"', nest(levels))
    stored = operation == "DELETE"
    for old_is_deep in (stored, operation == "UPDATE"):
        obj, old = ("null" if stored else deep), (deep if old_is_deep else "null" if operation == "CREATE" else "{}")
        body = json.dumps(review(operation, "@", "#")).replace('"@"', obj).replace('"#"', old)
        async with serving({PATH: validating(check), "/mutate": defaulting(lambda obj: obj | {"b": 1})}) as (_, caller):
            for path in (PATH, "/mutate"):
                response = await caller.respond(path, body.encode())
                assert response["uid"] == "u-1"
                assert response["allowed"] == (old_is_deep or stored), "a stored object can be changed and deleted"
                if not response["allowed"]:
                    assert response["status"]["message"] == "the object must not be nested more than 200 levels deep"


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(review(obj=[])).encode(),
        json.dumps(review(obj="x")).encode(),
        json.dumps(review(obj=5, uid=5)).encode(),
        json.dumps(review() | {"request": []}).encode(),
        json.dumps(review()).replace("CREATE", "@").encode().replace(b"@", b"\xff\xfe"),
        nest(20_000).encode(),
        b"[" * 1_000_000,
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":' + nest(5_000).encode() + b"}",
        b"\xff\xfe",
        b"null",
    ],
)
async def test_a_body_that_is_no_review_gets_a_response(body: bytes):
    async with serving({PATH: validating(check)}) as (_, caller):
        response = await caller.respond(PATH, body)
        assert (response["allowed"], response["status"]["code"]) == (False, 400)
        assert len(response["status"]["message"]) < 2_000


CROWDED: Json = {"spec": [[]] * 50_000}


@pytest.mark.parametrize(
    ("operation", "obj", "old", "allowed"),
    [
        ("CREATE", CROWDED, None, False),
        ("UPDATE", CROWDED, GOOD, False),
        ("UPDATE", CROWDED, CROWDED, True),
        ("UPDATE", GOOD, CROWDED, True),
        ("DELETE", None, CROWDED, True),
        ("UPDATE", {"spec": [[]] * 30_000}, {"spec": [[]] * 30_000}, True),
    ],
)
async def test_an_object_with_too_many_values_is_refused_unless_it_is_stored_already(
    operation: str, obj: Json | None, old: Json | None, allowed: bool
):
    seen = []

    def judge(asked: AdmissionRequest) -> AdmissionResponse:
        seen.append(asked)
        return allow()

    async with serving({PATH: judge}) as (_, caller):
        response = await caller.respond(PATH, review(operation, obj, old, version="v1beta1"))
    assert (response["uid"], response["allowed"]) == ("u-1", allowed)
    if not allowed:
        text = "the object must not have more than 49,152 lists and objects, and has 50,00"
        assert response["status"]["message"].startswith(text)
    assert bool(seen) == (CROWDED not in (obj, old)), "decoding it would take too much memory"


async def test_large_reviews_are_received_a_few_at_a_time():
    """All connections together could otherwise take a gigabyte. Small ones are not held up."""
    waiting, most = 0, 0
    leave = asyncio.Event()

    async def wait(asked: AdmissionRequest) -> AdmissionResponse:
        nonlocal waiting, most
        if asked.name == "small":
            return allow()
        waiting += 1
        most = max(most, waiting)
        await leave.wait()
        waiting -= 1
        return allow()

    async with serving({PATH: wait}) as (_, caller):
        large = review("CREATE", {"spec": "x" * 300_000})
        calls = [asyncio.create_task(caller.respond(PATH, large)) for _ in range(10)]
        while waiting < LARGE_REVIEWS:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)
        assert (await caller.respond(PATH, review(name="small")))["allowed"]
        leave.set()
        assert all(response["allowed"] for response in await asyncio.gather(*calls))
    assert most == LARGE_REVIEWS


@virtual_time
async def test_a_large_review_that_finds_no_room_is_refused():
    payload = StreamReader(mock.create_autospec(BaseProtocol, instance=True), 2**16, loop=asyncio.get_running_loop())
    payload.feed_data(json.dumps(review("CREATE", {"spec": "x" * 300_000})).encode())
    payload.feed_eof()
    headers = {"content-type": "application/json"}
    asked = make_mocked_request("POST", f"{PATH}?timeout=3s", headers, payload=payload)
    answer = await endpoint(lambda _: allow(), large=0).answer(asked)
    assert asyncio.get_running_loop().time() == 2.5, "the API server gets an answer while it waits"
    assert isinstance(answer.body, bytes)
    status = json.loads(answer.body)["response"]["status"]
    assert status == {"metadata": {}, "code": 429, "message": "too many large requests are being served"}


def endpoint(handler: AdmissionHandler, clock: Clock | None = None, *, large: int = LARGE_REVIEWS) -> _Endpoint:
    rooms = _Rooms(Bodies(MAX_BODY), asyncio.Semaphore(large))
    return _Endpoint(PATH, handler, Metrics(), clock or VirtualClock(), rooms)
