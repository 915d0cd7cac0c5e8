"""Pods call the API server as their service account, by the files and variables that clients expect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import lack
from tests.patience import PATIENCE
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.local.node.agent import SandboxError
from trainop.runtime.metrics.authorize import TOKEN_REVIEWS
from trainop.runtime.objects.metadata import PODS, SERVICE_ACCOUNTS, Json

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
CALL = f"""
import json, os, ssl, sys, urllib.request
read = lambda name: open("{FOLDER}/" + name).read()
host = (sys.argv[1:] or ["{{KUBERNETES_SERVICE_HOST}}:{{KUBERNETES_SERVICE_PORT}}".format(**os.environ)])[0]
request = urllib.request.Request(
    f"https://{{host}}/api/v1/namespaces/{{read('namespace')}}/pods",
    headers={{"Authorization": "Bearer " + read("token")}},
)
handlers = [urllib.request.ProxyHandler({{}})]
handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile="{FOLDER}/ca.crt")))
with urllib.request.build_opener(*handlers).open(request, timeout=60) as answer:
    print(*[pod["metadata"]["name"] for pod in json.load(answer)["items"]])
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    try:
        async with LocalCluster(ClusterOptions(tmp_path / "cluster", network="namespaces")) as found:
            await found.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "caller", "namespace": "default"}})
            yield found
    except SandboxError as error:
        lack(str(error))


async def run(cluster: LocalCluster, name: str, *argv: str, **spec: Any) -> str:
    """The log of a pod that succeeds."""
    container = {"name": "main", "image": "none", "command": list(argv)}
    full = {"restartPolicy": "Never", "containers": [container], **spec}
    await cluster.client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": full})
    async with asyncio.timeout(PATIENCE):
        while True:
            pod: Json = await cluster.client.get(PODS, name, "default")
            if pod["status"]["phase"] in {"Succeeded", "Failed"}:
                break
            await asyncio.sleep(0.05)
    path = cluster.node.log_file("default", name, "main")
    log = path.read_text() if path else ""
    assert pod["status"]["phase"] == "Succeeded", (log, pod["status"])
    return log


async def test_a_pod_calls_the_api_as_its_service_account(cluster: LocalCluster):
    account = {"serviceAccountName": "caller"}
    assert await run(cluster, "by-address", "python", "-c", CALL, **account) == "by-address\n"
    assert await run(cluster, "by-name", "python", "-c", CALL, "kubernetes.default.svc", **account) == (
        "by-address by-name\n"
    )
    shows = f"ls {FOLDER} 2>&1; env | grep ^KUBERNETES_ || true"
    without: dict[str, Json] = {
        "none": {},
        "declined": {**account, "automountServiceAccountToken": False},
        "missing": {"serviceAccountName": "no-such-account"},
    }
    for name, spec in without.items():
        log = await run(cluster, name, "sh", "-c", shows, **spec)
        assert "token" not in log, name
        assert "KUBERNETES_" not in log, name


async def test_the_token_of_a_pod_is_its_own_and_ends_with_it(cluster: LocalCluster):
    tokens = [
        await run(cluster, name, "cat", f"{FOLDER}/token", serviceAccountName="caller") for name in ("one", "two")
    ]

    async def review(token: str) -> Json:
        status: Json = (await cluster.client.create(TOKEN_REVIEWS, {"spec": {"token": token}}))["status"]
        return status

    pods = [(await review(token))["user"]["extra"]["authentication.kubernetes.io/pod-name"] for token in tokens]
    assert pods == [["one"], ["two"]]
    await cluster.client.delete(PODS, "one", "default", grace_seconds=0)
    assert "has been invalidated" in (await review(tokens[0]))["error"]
    assert (await review(tokens[1]))["authenticated"] is True
