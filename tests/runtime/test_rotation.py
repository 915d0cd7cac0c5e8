"""Certificate rotation by replicas that share a Secret on the embedded API server; a TLS client checks that no
handshake ever fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.runtime.authority import NAME, cert_controller_pairs, secret_data, shake_hands
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.local.api.registry.simple_kinds import WebhookStrategy
from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.transport import Request, Response, Stream, Transport
from trainop.runtime.errors import ForbiddenError, NotFoundError, UnhealthyError
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import NAMESPACES, SECRETS, Json, Key
from trainop.runtime.serving.certificate_folder import ServingCertificate
from trainop.runtime.webhook import keyring
from trainop.runtime.webhook.certificates import Pair, make_authority
from trainop.runtime.webhook.contest import CALM, Contest, other_writer
from trainop.runtime.webhook.injection import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Configuration,
    injection,
)
from trainop.runtime.webhook.rotation import SETTLE_TIME, CertificateRotation, RotationOptions

HOUR, MINUTE = 3600.0, 60.0
SECRET = Key("kubeflow", "training-operator-webhook-cert")
VALIDATING = Configuration(VALIDATING_WEBHOOK_CONFIGURATIONS, "validator.training-operator.kubeflow.org")
MUTATING = Configuration(MUTATING_WEBHOOK_CONFIGURATIONS, "defaulter.training-operator.kubeflow.org")
OPTIONS = RotationOptions(SECRET, (NAME,), (VALIDATING, MUTATING))


@pytest.fixture(autouse=True)
def webhook_configurations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the embedded API server store webhook configurations, which it refuses otherwise because it calls none."""
    monkeypatch.setattr(WebhookStrategy, "validate", lambda _strategy, _value: [])


def configuration(which: Configuration, *names: str, **metadata: Any) -> Json:
    def webhook(name: str) -> Json:
        return {
            "name": name,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "training-operator", "namespace": "kubeflow", "path": f"/{name}"}},
        }

    return {
        "apiVersion": which.resource.api_version,
        "kind": which.resource.kind,
        "metadata": {"name": which.name, **metadata},
        "webhooks": [webhook(name) for name in names or ("a.example.com", "b.example.com")],
    }


class Wire:
    """The transport of one replica. `before` may delay or refuse a request; `after` checks the state after each
    response."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.sent: list[tuple[str, str, int]] = []
        self.before: Callable[[Request], Any] | None = None
        self.after: Callable[[], Any] | None = None

    async def send(self, request: Request) -> Response:
        if self.before is not None:
            await self.before(request)
        response = await self._transport.send(request)
        if request.method != "GET":
            self.sent.append((request.method, request.path.rpartition("/")[2], response.status))
        if self.after is not None:
            await self.after()
        return response

    async def open(self, request: Request) -> Stream:
        return await self._transport.open(request)

    async def close(self) -> None: ...


class Replica:
    def __init__(self, lab: Lab, options: RotationOptions, announce: Callable[[str], None] | None = None) -> None:
        self.wire = Wire(lab.api.transport())
        self.metrics = Metrics()
        self.certificate = ServingCertificate(server_name=NAME)
        client = Client(self.wire, clock=lab.clock, rng=random.Random(1))
        self.rotation = CertificateRotation(
            client,
            options,
            self.certificate,
            clock=lab.clock,
            rng=random.Random(2),
            metrics=self.metrics,
            announce=announce,
        )
        self.task: asyncio.Task[None] | None = None

    @property
    def errors(self) -> float:
        labels = {"controller": "certificates"}
        value = self.metrics.registry.get_sample_value("controller_runtime_reconcile_errors_total", labels)
        assert value is not None
        return value


class Lab:
    """An embedded API server, two webhook configurations, and any number of replicas."""

    def __init__(self) -> None:
        self.clock = VirtualClock(datetime.now(UTC))  # OpenSSL uses the real clock
        self.api = ApiServer(clock=self.clock, rng=random.Random(3))
        self.client = Client(self.api.transport(), clock=self.clock)
        self.replicas: list[Replica] = []
        self.handshakes = 0

    def replica(self, options: RotationOptions = OPTIONS, *, announce: Callable[[str], None] | None = None) -> Replica:
        self.replicas.append(Replica(self, options, announce))
        return self.replicas[-1]

    def start(self) -> None:
        for replica in self.replicas:
            replica.task = asyncio.create_task(replica.rotation.run())

    async def secret(self) -> Json:
        return await self.client.get(SECRETS, SECRET.name, SECRET.namespace)

    async def put_secret(self, data: Json, **metadata: Any) -> Json:
        body = {"metadata": {"name": SECRET.name, "namespace": SECRET.namespace, **metadata}, "data": data}
        return await self.client.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", **body})

    async def bundles(self) -> list[bytes]:
        """The caBundle of every webhook of every configuration."""
        found = []
        for which in (VALIDATING, MUTATING):
            with contextlib.suppress(NotFoundError):
                seen = await self.client.get(which.resource, which.name)
                found += [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in seen["webhooks"]]
        return found

    async def publish(self, bundle: bytes) -> None:
        for which in (VALIDATING, MUTATING):
            seen = await self.client.get(which.resource, which.name)
            await self.client.patch(which.resource, which.name, None, injection(seen, bundle), kind=PatchKind.JSON)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)

    async def call_everyone(self) -> None:
        """Make a TLS handshake with every replica for every webhook, trusting the published bundle."""
        for bundle in set(await self.bundles()):
            for replica in self.replicas:
                if bundle and replica.certificate.loaded:
                    shake_hands(replica.certificate.context, bundle)
                    self.handshakes += 1


@contextlib.asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    made = Lab()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SECRET.namespace}}
    await made.client.create(NAMESPACES, namespace)
    for which in (VALIDATING, MUTATING):
        await made.client.create(which.resource, configuration(which))
    try:
        yield made
    finally:
        tasks = [replica.task for replica in made.replicas if replica.task]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


def served(replica: Replica, trusted: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(shake_hands(replica.certificate.context, trusted)).encode()


@pytest.mark.case("runtime-40", "ab")
@virtual_time
async def test_certificates_of_cert_controller_are_served_unchanged():
    authority, server = cert_controller_pairs()
    async with lab() as here:
        before = await here.put_secret(secret_data(authority, server))
        replica = here.replica()
        here.start()
        await asyncio.sleep(25 * HOUR)
        assert await here.secret() == before
        assert await here.bundles() == [authority.certificate] * 4
        assert (await here.bundles())[0] == base64.b64decode(before["data"]["ca.crt"])
        assert served(replica, authority.certificate).split() == server.certificate.split()
        assert replica.wire.sent == [("PATCH", VALIDATING.name, 200), ("PATCH", MUTATING.name, 200)]
        assert replica.metrics.registry.get_sample_value("certwatcher_read_certificate_total") == 1
        assert replica.certificate.authority == authority.certificate, "readiness performs the handshake of a client"
        assert replica.errors == 0


@virtual_time
async def test_a_certificate_is_created_even_without_configurations_to_inject():
    async with lab() as here:
        replica = here.replica(replace(OPTIONS, configurations=()))
        here.start()
        await asyncio.sleep(1)
        assert replica.certificate.loaded
        assert base64.b64decode((await here.secret())["data"]["ca.crt"]) == replica.certificate.authority
        assert set(await here.bundles()) == {b""}


@pytest.mark.case("runtime-40", "c")
@virtual_time
async def test_no_handshake_fails_during_a_change_of_the_authority():
    """Not even at a replica that observes the change an hour late."""
    authority, server = cert_controller_pairs(authority_left=60)
    async with lab() as here:
        await here.put_secret(secret_data(authority, server))
        await here.publish(authority.certificate)
        quick, late = here.replica(), here.replica()
        cut_off = False

        async def hold_up(_: Request) -> None:
            if cut_off:
                await asyncio.sleep(HOUR - here.clock.monotonic())

        late.wire.before = hold_up
        for replica in here.replicas:
            replica.wire.after = here.call_everyone
        late.task = asyncio.create_task(late.rotation.run())
        await here.until(lambda: late.certificate.loaded)
        cut_off = True
        quick.task = asyncio.create_task(quick.rotation.run())
        bundles = set()
        for _ in range(40):
            await here.call_everyone()
            bundles |= set(await here.bundles())
            await asyncio.sleep(15)
        between = await here.secret()
        assert between["data"]["previous-ca.crt"]
        assert served(quick, (await here.bundles())[0]) != served(late, (await here.bundles())[0])
        for _ in range(26 * 6):
            await here.call_everyone()
            bundles |= set(await here.bundles())
            await asyncio.sleep(10 * MINUTE)
        after = await here.secret()
        assert set(after["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
        new = base64.b64decode(after["data"]["ca.crt"])
        assert new != authority.certificate
        assert await here.bundles() == [new] * 4
        assert bundles == {
            authority.certificate + new,
            new + authority.certificate,
            new,
        }
        assert served(quick, new) == served(late, new)
        assert base64.b64decode(after["data"]["tls.crt"]).startswith(served(quick, new))
        assert here.handshakes > 300


@pytest.mark.case("runtime-40", "d")
@pytest.mark.parametrize("exists", [True, False])
@virtual_time
async def test_replicas_that_start_together_agree(exists: bool):
    async with lab() as here:
        if exists:
            await here.put_secret({})
        replicas = [here.replica(), here.replica()]
        gathered = asyncio.Barrier(2)

        async def write_together(request: Request) -> None:
            if request.method in ("PUT", "POST"):
                await gathered.wait()

        for replica in replicas:
            replica.wire.before = write_together
            replica.wire.after = here.call_everyone
        here.start()
        await asyncio.sleep(MINUTE)
        secret = await here.secret()
        authority, certificate = (base64.b64decode(secret["data"][name]) for name in ("ca.crt", "tls.crt"))
        assert await here.bundles() == [authority] * 4
        assert [served(replica, authority) for replica in replicas] == [certificate] * 2
        writes = sorted(sent[2] for replica in replicas for sent in replica.wire.sent if sent[0] in ("PUT", "POST"))
        assert writes == [200 if exists else 201, 409]
        assert [replica.errors for replica in replicas] == [0, 0]


@virtual_time
async def test_unknown_fields_of_the_secret_are_kept():
    async with lab() as here:
        await here.put_secret({"other": "eA==", "ca.crt": "eA=="}, labels={"kept": "yes"})
        here.replica()
        here.start()
        await asyncio.sleep(MINUTE)
        secret = await here.secret()
        assert secret["data"]["other"] == "eA=="
        assert secret["metadata"]["labels"] == {"kept": "yes"}
        assert len(secret["data"]) == 5


@virtual_time
async def test_foreign_changes_are_reverted_at_once():
    async with lab() as here:
        await here.client.delete(MUTATING.resource, MUTATING.name)
        replica = here.replica()
        here.start()
        await asyncio.sleep(MINUTE)
        bundle = (await here.bundles())[0]
        assert len(await here.bundles()) == 2
        await here.client.create(MUTATING.resource, configuration(MUTATING))
        drop = [{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]
        await here.client.patch(VALIDATING.resource, VALIDATING.name, None, drop, kind=PatchKind.JSON)
        await asyncio.sleep(1)
        assert await here.bundles() == [bundle] * 4
        await here.client.delete(SECRETS, SECRET.name, SECRET.namespace)
        await asyncio.sleep(1)
        secret = await here.secret()
        assert await here.bundles() == [base64.b64decode(secret["data"]["ca.crt"])] * 4
        assert served(replica, (await here.bundles())[0]) == base64.b64decode(secret["data"]["tls.crt"])


@virtual_time
async def test_configurations_of_another_injector_are_left_alone():
    async with lab() as here:
        annotation = {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "ns/cert"}}}
        await here.client.patch(VALIDATING.resource, VALIDATING.name, None, annotation)
        here.replica()
        here.start()
        await asyncio.sleep(MINUTE)
        bundles = await here.bundles()
        assert bundles[:2] == [b"", b""]
        assert bundles[2] == bundles[3] != b""


@virtual_time
async def test_a_secret_of_cert_manager_is_served_and_not_written():
    authority, server = cert_controller_pairs(server_left=20)
    async with lab() as here:
        data = secret_data(authority, server)
        del data["ca.key"]
        before = await here.put_secret(data, annotations={"cert-manager.io/certificate-name": "x"})
        replica = here.replica()
        here.start()
        await asyncio.sleep(MINUTE)
        assert await here.secret() == before
        assert served(replica, authority.certificate).split() == server.certificate.split()
        assert await here.bundles() == [authority.certificate] * 4


@virtual_time
async def test_a_configuration_that_changed_meanwhile_is_read_again():
    async with lab() as here:
        replica = here.replica()
        moved = [{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/moved"}]
        patched: list[Request] = []

        async def interfere(request: Request) -> None:
            if request.method == "PATCH" and not patched:
                patched.append(request)
                await here.client.patch(VALIDATING.resource, VALIDATING.name, None, moved, kind=PatchKind.JSON)

        replica.wire.before = interfere
        here.start()
        await asyncio.sleep(MINUTE)
        assert replica.wire.sent[1][2] == 422
        assert replica.errors == 1
        assert len(set(await here.bundles())) == 1
        seen = await here.client.get(VALIDATING.resource, VALIDATING.name)
        assert seen["webhooks"][0]["clientConfig"]["service"]["path"] == "/moved"


@virtual_time
async def test_an_authority_waits_for_configurations_that_cannot_be_read():
    """Steps that do not depend on them are still taken."""
    authority, server = cert_controller_pairs(authority_left=60)
    async with lab() as here:
        await here.put_secret(secret_data(authority, server))
        replica = here.replica()
        away = True

        async def refuse(request: Request) -> None:
            if away and request.method == "GET" and request.path.endswith(MUTATING.name):
                raise ConnectionError("no way")

        replica.wire.before = refuse
        here.start()
        await asyncio.sleep(2 * HOUR)
        waiting = await here.secret()
        assert base64.b64decode(waiting["data"]["ca.crt"]) == authority.certificate
        assert served(replica, authority.certificate).split() == server.certificate.split()
        both = authority.certificate + base64.b64decode(waiting["data"]["next-ca.crt"])
        assert (await here.bundles())[:2] == [both, both]
        assert replica.errors > 5
        away = False
        await asyncio.sleep(HOUR)
        assert "previous-ca.crt" in (await here.secret())["data"]


@virtual_time
async def test_a_certificate_that_cannot_be_served_is_an_error_and_the_last_one_is_kept():
    authority, server = cert_controller_pairs()
    async with lab() as here:
        data, annotations = secret_data(authority, server), {"cert-manager.io/certificate-name": "x"}
        await here.put_secret(data, annotations=annotations)
        replica = here.replica()
        here.start()
        await asyncio.sleep(MINUTE)
        await here.client.patch(SECRETS, SECRET.name, SECRET.namespace, {"data": {"tls.key": data["ca.key"]}})
        await asyncio.sleep(MINUTE)
        assert replica.errors > 0
        assert replica.metrics.registry.get_sample_value("certwatcher_read_certificate_errors_total") == replica.errors
        assert served(replica, authority.certificate).split() == server.certificate.split()


def forbidden(path: str) -> ForbiddenError:
    message = f"{path} is forbidden"
    return ForbiddenError(403, "Forbidden", message, {"code": 403, "reason": "Forbidden", "message": message})


@pytest.mark.parametrize("resource", ["secrets", "validatingwebhookconfigurations"])
@virtual_time
async def test_without_permissions_there_is_one_log_entry_and_a_slow_retry(
    resource: str, capsys: pytest.CaptureFixture[str]
):
    """Readiness does not wait for what may never come; once permitted, it works."""
    async with lab() as here:
        replica = here.replica()
        denied, asked = True, 0

        async def refuse(request: Request) -> None:
            nonlocal asked
            if resource in request.path:
                asked += 1
                if denied:
                    raise forbidden(request.path)

        replica.wire.before = refuse
        with pytest.raises(UnhealthyError, match="certificates are not ready"):
            replica.rotation.check()
        here.start()
        await asyncio.sleep(HOUR)
        replica.rotation.check()
        assert asked <= 7, "not watched either"
        assert capsys.readouterr().out.count("no permission to maintain webhook certificates") == 1
        assert replica.certificate.loaded == (resource != "secrets")
        denied = False
        await asyncio.sleep(11 * MINUTE)
        assert await here.bundles() == [replica.certificate.authority] * 4
        await here.client.delete(SECRETS, SECRET.name, SECRET.namespace)
        await asyncio.sleep(1)
        assert (await here.secret())["data"], "watched"


@virtual_time
async def test_a_namespace_that_does_not_exist_is_retried_with_back_off():
    async with lab() as here:
        replica = here.replica(replace(OPTIONS, secret=Key("elsewhere", "cert")))
        here.start()
        await asyncio.sleep(HOUR)
        creations = [sent for sent in replica.wire.sent if sent[0] == "POST"]
        assert 3 <= len(creations) < 40
        with pytest.raises(UnhealthyError):
            replica.rotation.check()


def test_only_differing_bundles_are_injected():
    seen = configuration(VALIDATING, "a.example.com", "b.example.com")
    wanted = base64.b64encode(b"pem").decode()
    seen["webhooks"][0]["clientConfig"]["caBundle"] = wanted
    client = seen["webhooks"][1]["clientConfig"]
    assert injection(seen, b"pem") == [
        {"op": "test", "path": "/webhooks/1/clientConfig", "value": client},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": wanted},
    ]
    client["caBundle"] = wanted
    assert injection(seen, b"pem") == []
    assert injection({"metadata": {}}, b"pem") == []


def test_logs_contain_no_key():
    assert "secret" not in repr(Pair(b"certificate", b"secret"))


def test_webhooks_of_another_service_keep_their_ca():
    seen = configuration(VALIDATING, "ours.example.com", "theirs.example.com", "outside.example.com")
    seen["webhooks"][1]["clientConfig"] = {"service": {"name": "other", "namespace": "kubeflow"}, "caBundle": "b2xk"}
    seen["webhooks"][2]["clientConfig"] = {"url": "https://outside.example.com"}
    changed = {each["path"] for each in injection(seen, b"pem", (NAME,)) if each["op"] == "add"}
    assert changed == {"/webhooks/0/clientConfig/caBundle", "/webhooks/2/clientConfig/caBundle"}


async def reset(here: Lab, which: Configuration, manager: str) -> None:
    """As a tool that applies its own copy of the configuration."""
    client = Client(here.api.transport(), clock=here.clock, field_manager=manager)
    seen = await client.get(which.resource, which.name)
    operations = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": ""}
        for index, webhook in enumerate(seen["webhooks"])
        if webhook["clientConfig"].get("caBundle")
    ]
    if operations:
        await client.patch(which.resource, which.name, None, operations, kind=PatchKind.JSON)


def writes(replica: Replica, which: Configuration) -> int:
    return sum(sent[:2] == ("PATCH", which.name) for sent in replica.wire.sent)


@virtual_time
async def test_a_tool_that_resets_the_bundle_is_fought_ever_more_slowly_and_named(capsys: pytest.CaptureFixture[str]):
    said: list[str] = []
    async with lab() as here:
        replica = here.replica(announce=said.append)

        async def fight() -> None:
            while True:
                await asyncio.sleep(0.5)
                await reset(here, VALIDATING, "some-tool")

        here.start()
        await asyncio.sleep(MINUTE)
        fighting = asyncio.create_task(fight())
        await asyncio.sleep(HOUR)
        # at once, then after 5, 10, 20, 40, 80, 160 and each further 300 s
        assert 15 <= writes(replica, VALIDATING) <= 25
        assert writes(replica, MUTATING) == 1, "each configuration has its own pause"
        assert len(said) == 1
        assert said[0].startswith(f"some-tool has reset caBundle of {VALIDATING} 3 times")
        assert capsys.readouterr().out.count("CA bundle is reset again and again") == 1
        labels = {"configuration": VALIDATING.name}
        counted = replica.metrics.registry.get_sample_value("runtime_webhook_bundle_resets_total", labels)
        assert counted is not None
        assert abs(counted - writes(replica, VALIDATING)) <= 1
        fighting.cancel()
        await asyncio.sleep(6 * MINUTE)
        assert set(await here.bundles()) == {(await here.bundles())[0]} != {b""}, "it is written when the tool gives up"
        await asyncio.sleep(HOUR)
        before = writes(replica, VALIDATING)
        for _ in range(2):
            await reset(here, VALIDATING, "an-administrator")
            await asyncio.sleep(1)
            assert b"" not in await here.bundles(), "restored at once"
            await asyncio.sleep(HOUR)
        assert writes(replica, VALIDATING) == before + 2


@virtual_time
async def test_resets_are_counted_from_zero():
    """Else the first after a failover would be invisible to the alert."""
    async with lab() as here:
        replica = here.replica()
        for which in (VALIDATING, MUTATING):
            labels = {"configuration": which.name}
            assert replica.metrics.registry.get_sample_value("runtime_webhook_bundle_resets_total", labels) == 0.0


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ([], "an unknown writer"),
        ([("trainop", "3", True)], "an unknown writer"),
        ([("trainop", "3", True), ("kubectl", "1", False), ("argocd", "2", False)], "argocd"),
        ([("trainop", "3", True), ("helm", "1", True), ("label-tool", "2", False)], "helm"),
    ],
)
def test_the_other_writer_is_the_last_one_of_the_bundle(entries: list[tuple[str, str, bool]], wanted: str):
    managed = [
        {
            "manager": manager,
            "time": f"2026-01-0{time}T00:00:00Z",
            "fieldsV1": {"f:webhooks": {'k:{"name":"a"}': {"f:clientConfig": {"f:caBundle": {}} if owns else {}}}},
        }
        for manager, time, owns in entries
    ]
    assert other_writer({"metadata": {"managedFields": managed}}, "trainop") == wanted


def test_a_contest_answers_the_first_reset_at_once_and_forgets_after_a_calm():
    contest, now, pauses = Contest(), 0.0, []
    for _ in range(4):
        contest.is_reset(b"ca", present=True, now=now)
        contest.note_write(now)
        now += 1.0
        assert contest.is_reset(b"ca", present=False, now=now)
        pauses.append(contest.pause(now))
        now += pauses[-1]
    assert pauses == [0.0, 4.0, 9.0, 19.0], "counted from the write before"
    contest.note_write(now)
    now += CALM + 1.0
    assert contest.is_reset(b"ca", present=False, now=now)
    assert (contest.resets, contest.pause(now)) == (1, 0.0)
    contest.note_write(now)
    assert not contest.is_reset(b"new", present=False, now=now), "a new CA is nobody's reset"


@virtual_time
async def test_webhooks_of_other_services_keep_their_bundle():
    async with lab() as here:
        other = {"op": "replace", "path": "/webhooks/1/clientConfig/service/name", "value": "another"}
        await here.client.patch(VALIDATING.resource, VALIDATING.name, None, [other], kind=PatchKind.JSON)
        replica = here.replica(replace(OPTIONS, names=("training-operator.kubeflow.svc",)))
        here.start()
        await asyncio.sleep(MINUTE)
        assert [bool(bundle) for bundle in await here.bundles()] == [True, False, True, True]
        assert writes(replica, VALIDATING) == 1


@pytest.mark.parametrize("resets", [(9.0,), (2.0, 3.0)], ids=["once", "twice"])
@virtual_time
async def test_an_authority_changes_only_after_its_bundle_has_stood_without_a_gap(resets: tuple[float, ...]):
    """Each API server may use the copy without the next CA for `SETTLE_TIME` after it was restored. The answer to the
    second reset waits, and another replica restores the bundle meanwhile."""
    authority, server = cert_controller_pairs(authority_left=60)
    async with lab() as here:
        await here.put_secret(secret_data(authority, server))
        await here.publish(authority.certificate)
        replica = here.replica()
        here.start()
        await here.until(lambda: writes(replica, MUTATING) == 1)
        both, began, complete_since = (await here.bundles())[0], here.clock.monotonic(), 0.0
        assert both.count(b"BEGIN CERTIFICATE") == 2
        steps = [(began + at, reset(here, VALIDATING, "some-tool")) for at in resets]
        if len(resets) > 1:
            steps.append((began + resets[-1] + 1.0, here.publish(both)))
        while "previous-ca.crt" not in (await here.secret())["data"]:
            now = here.clock.monotonic()
            if steps and now >= steps[0][0]:
                await steps.pop(0)[1]
                complete_since = now
            await touch(here)
            await asyncio.sleep(0.25)
        assert steps == []
        assert SETTLE_TIME <= here.clock.monotonic() - complete_since < SETTLE_TIME + 1.0


async def started_to_change(here: Lab, replica: Replica) -> bytes:
    """The CA expires, so that the replica publishes the next one beside it. Returns the bundle with both."""
    authority, server = cert_controller_pairs(authority_left=60)
    await here.put_secret(secret_data(authority, server))
    await here.publish(authority.certificate)
    here.start()
    await here.until(lambda: writes(replica, MUTATING) == 1)
    return (await here.bundles())[0]


async def begin_change(here: Lab) -> bytes:
    """As another replica does. Returns the bundle with both CAs."""
    secret = await here.secret()
    ring = keyring.Keyring.parse(secret["data"])
    ring = replace(ring, successor=make_authority("webhook-ca", "webhook", here.clock.now()))
    await here.client.replace(SECRETS, {**secret, "data": ring.data()})
    await here.publish(ring.bundle)
    return ring.bundle


async def has_changed(here: Lab) -> bool:
    return "previous-ca.crt" in (await here.secret())["data"]


async def touch(here: Lab) -> None:
    """An edit of no meaning, which triggers a reconcile."""
    annotations = {"touched": str(here.clock.monotonic())}
    await here.client.patch(MUTATING.resource, MUTATING.name, None, {"metadata": {"annotations": annotations}})


async def until_changed(here: Lab) -> None:
    while not await has_changed(here):
        await touch(here)
        await asyncio.sleep(0.25)


@virtual_time
async def test_what_happened_while_a_configuration_could_not_be_read_is_not_taken_for_granted():
    async with lab() as here:
        replica = here.replica()
        both = await started_to_change(here, replica)
        away = True

        async def refuse(request: Request) -> None:
            if away and request.method == "GET" and request.path.endswith(MUTATING.name):
                raise ConnectionError("no way")

        await asyncio.sleep(2)
        replica.wire.before = refuse
        await reset(here, MUTATING, "some-tool")
        await asyncio.sleep(3)
        await here.publish(both)
        away = False
        complete_since = here.clock.monotonic()
        await until_changed(here)
        assert here.clock.monotonic() - complete_since >= SETTLE_TIME


@virtual_time
async def test_the_pass_in_which_a_change_is_due_reads_all_configurations():
    async with lab() as here:
        replica = here.replica()
        await started_to_change(here, replica)
        away = True

        async def refuse(request: Request) -> None:
            if away and request.method == "GET" and request.path.endswith(MUTATING.name):
                raise ConnectionError("no way")

        await asyncio.sleep(SETTLE_TIME - 1)
        replica.wire.before = refuse
        await asyncio.sleep(MINUTE)
        assert not await has_changed(here)
        away = False
        await asyncio.sleep(2 * HOUR)
        assert await has_changed(here)


@virtual_time
async def test_the_time_of_another_bundle_does_not_count():
    """Another replica has begun a change while this one did not look."""
    authority, server = cert_controller_pairs()
    async with lab() as here:
        await here.put_secret(secret_data(authority, server))
        replica = here.replica()
        here.start()
        await asyncio.sleep(HOUR)
        looking = asyncio.Event()

        async def hold_up(_: Request) -> None:
            await looking.wait()

        replica.wire.before = hold_up
        await begin_change(here)
        published = here.clock.monotonic()
        await asyncio.sleep(1)
        looking.set()
        await until_changed(here)
        assert here.clock.monotonic() - published >= SETTLE_TIME


@pytest.mark.parametrize("number", [1, 2, 3])
@virtual_time
async def test_a_replica_that_lags_never_reverts_a_bundle(number: int):
    """Whichever of its reads the change of another replica precedes."""
    authority, server = cert_controller_pairs()
    async with lab() as here:
        await here.put_secret(secret_data(authority, server))
        replica = here.replica()
        here.start()
        await asyncio.sleep(HOUR)
        reads, both = 0, b""

        async def interfere(request: Request) -> None:
            nonlocal reads, both
            reads += request.method == "GET" and request.path.endswith((SECRET.name, VALIDATING.name, MUTATING.name))
            if reads == number and not both:
                both = await begin_change(here)

        async def look() -> None:
            assert not both or set(await here.bundles()) == {both}

        replica.wire.before, replica.wire.after = interfere, look
        await touch(here)
        await asyncio.sleep(1)
        assert set(await here.bundles()) == {both} != {b""}
