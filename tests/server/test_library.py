"""The runtime as a library on a real kube-apiserver: the example operator, and an admission webhook that manages its
certificates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports, wait_until
from tests.patience import PATIENCE
from tests.server.world import World
from trainop.runtime import (
    CONFIG_MAPS,
    AdmissionResponse,
    ApiError,
    Client,
    HttpTransport,
    Json,
    Key,
    Manager,
    Operator,
    PatchKind,
    RotationOptions,
    allow,
    defaulting,
    deny,
    load_config,
    serve_webhooks,
    validating,
)
from trainop.runtime.lowlevel import Configuration
from trainop.runtime.objects.metadata import SECRETS
from trainop.runtime.webhook.admission import mutating_path, validating_path
from trainop.runtime.webhook.injection import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "runtime"
VALIDATING = Configuration(VALIDATING_WEBHOOK_CONFIGURATIONS, "library-validator")
MUTATING = Configuration(MUTATING_WEBHOOK_CONFIGURATIONS, "library-defaulter")


def test_the_example(control_plane: ControlPlane, tmp_path: Path):
    api = control_plane.api
    crd, greeting = (yaml.safe_load((EXAMPLE / name).read_text()) for name in ("crd.yaml", "greeting.yaml"))
    assert api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).status == 201
    greetings = "/apis/example.com/v1/namespaces/default/greetings"
    assert wait_until(lambda: api("POST", greetings, greeting).status in (201, 409), PATIENCE)
    log = tmp_path / "log"
    with log.open("wb") as out:
        surroundings = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, EXAMPLE / "greetings.py"], stdout=out, stderr=out, env=surroundings)
    try:
        maps = "/api/v1/namespaces/default/configmaps/world"
        assert wait_until(lambda: api("GET", maps).status == 200, PATIENCE), log.read_text()
        assert api("GET", maps).body["data"] == {"text": "Hello, world!"}
        assert wait_until(lambda: "status" in api("GET", f"{greetings}/world").body, PATIENCE), log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def check(obj: Json, old: Json | None) -> AdmissionResponse:
    return deny("the word is forbidden") if "forbidden" in (obj.get("data") or {}) else allow("it was looked at")


def default(obj: Json) -> Json:
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "annotations": {"example.com/looked-at": "yes"}}}


def configuration(which: Configuration, url: str, namespace: str) -> Json:
    webhook = {
        "name": "library.example.com",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
        "clientConfig": {"url": url},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
        ],
    }
    kind, api_version = which.resource.kind, which.resource.api_version
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": which.name}, "webhooks": [webhook]}


@contextlib.asynccontextmanager
async def webhooks(control_plane: ControlPlane, namespace: str) -> AsyncIterator[tuple[Client, Manager]]:
    transport = HttpTransport(load_config(str(control_plane.kubeconfig)))
    client, (port,) = Client(transport), free_ports(1)
    operator = Operator("hooks", metrics="0", health="0", leader_election=False)
    handlers = {validating_path(CONFIG_MAPS): validating(check), mutating_path(CONFIG_MAPS): defaulting(default)}
    options = RotationOptions(Key(namespace, "webhook-cert"), ("localhost",), (VALIDATING, MUTATING))
    operator.setup(lambda parts: serve_webhooks(parts, handlers, options, port=port))
    manager = operator.build(transport, signals=False)
    running = asyncio.create_task(manager.run())
    try:
        for which, path in ((VALIDATING, validating_path(CONFIG_MAPS)), (MUTATING, mutating_path(CONFIG_MAPS))):
            url = f"https://localhost:{port}{path}"
            await client.create(which.resource, configuration(which, url, namespace))
        yield client, manager
        manager.stop()
        assert await running == 0
    finally:
        running.cancel()
        for which in (VALIDATING, MUTATING):
            await client.delete(which.resource, which.name)
        await transport.close()


def config_map(name: str, namespace: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


async def test_a_webhook_with_its_own_certificates(control_plane: ControlPlane, quiet_world: World):
    namespace = quiet_world.namespace
    async with webhooks(control_plane, namespace) as (client, manager), asyncio.timeout(PATIENCE):
        while not await is_answered(client, namespace):  # noqa: ASYNC110  # the cluster is asked
            await asyncio.sleep(0.1)
        assert (await manager.ready.all())[0] == 200
        with pytest.raises(ApiError) as caught:
            await client.create(CONFIG_MAPS, config_map("bad", namespace, forbidden="x"))
        assert caught.value.code == 403
        assert 'admission webhook "library.example.com" denied the request: the word is forbidden' in str(caught.value)
        made = await client.create(CONFIG_MAPS, config_map("good", namespace, a="b"))
        assert (made["data"], made["metadata"]["annotations"]) == ({"a": "b"}, {"example.com/looked-at": "yes"})
        secret = await client.get(SECRETS, "webhook-cert", namespace)
        assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
        for which in (VALIDATING, MUTATING):
            seen = await client.get(which.resource, which.name)
            assert [each["clientConfig"]["caBundle"] for each in seen["webhooks"]] == [secret["data"]["ca.crt"]]
        # another client removes the bundle; the operator restores it without a change to test against
        drop = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        await client.patch(MUTATING.resource, MUTATING.name, None, drop, kind=PatchKind.JSON)
        while not (await client.get(MUTATING.resource, MUTATING.name))["webhooks"][0]["clientConfig"].get("caBundle"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def is_answered(client: Client, namespace: str) -> bool:
    """Whether the API server calls the webhooks and trusts their certificate."""
    try:
        await client.create(CONFIG_MAPS, config_map("probe", namespace))
    except ApiError:
        return False
    probe = await client.get(CONFIG_MAPS, "probe", namespace)
    await client.delete(CONFIG_MAPS, "probe", namespace)
    return "annotations" in probe["metadata"]
