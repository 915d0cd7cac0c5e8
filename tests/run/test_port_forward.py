"""`kubectl port-forward` on a local cluster, from the command line to a program in a pod."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.needs import KUBECTLS, need_program
from tests.patience import PATIENCE
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.runtime.objects.metadata import PODS

SERVED = os.urandom(3_000_000)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """A cluster with the pod `p`, whose program serves the file `served` on port 8000."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "served").write_bytes(SERVED)
    async with LocalCluster(ClusterOptions(directory=tmp_path / "cluster")) as found:
        host = "127.0.0.1" if found.node.network == "namespaces" else "$(IP)"
        container = {
            "name": "main",
            "image": "none",
            "command": [sys.executable, "-m", "http.server", "8000", "--bind", host, "-d", str(tmp_path / "site")],
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        }
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        await found.client.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
        async with asyncio.timeout(PATIENCE):
            while True:
                log = found.node.log_file("default", "p", "main")
                if log is not None and log.exists() and "Serving HTTP" in log.read_text():
                    break
                await asyncio.sleep(0.05)
        yield found


@dataclass
class Forwarding:
    """A running `kubectl port-forward`."""

    process: asyncio.subprocess.Process
    ports: dict[int, int]
    """The local port by the port of the pod."""

    async def get(self, port: int) -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.ports[port]}/served") as answer,
        ):
            return await answer.read()


@asynccontextmanager
async def forward(kubectl: str, cluster: LocalCluster, *ports: int) -> AsyncIterator[Forwarding]:
    environment = {**os.environ, "HOME": str(cluster.directory.parent), "KUBECONFIG": str(cluster.kubeconfig)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        need_program(kubectl),
        *("port-forward", "--address=127.0.0.1", "pod/p", *(f":{port}" for port in ports)),
        stdout=pipe,
        stderr=pipe,
        env=environment,
    )
    try:
        assert process.stdout is not None
        forwarding = Forwarding(process, {})
        async with asyncio.timeout(PATIENCE):
            while len(forwarding.ports) < len(ports):
                line = (await process.stdout.readline()).decode()
                found = re.fullmatch(r"Forwarding from 127.0.0.1:(\d+) -> (\d+)\n", line)
                assert found, (line, process.stderr and await process.stderr.read())
                forwarding.ports[int(found[2])] = int(found[1])
        yield forwarding
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def sessions_ended(cluster: LocalCluster) -> None:
    async with asyncio.timeout(PATIENCE):
        while cluster.api._http._sessions:  # noqa: ASYNC110  # nothing reports it
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kubectl", KUBECTLS)
async def test_port_forward(kubectl: str, cluster: LocalCluster):
    async with forward(kubectl, cluster, 8000) as forwarding, asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*(forwarding.get(8000) for _ in range(8))) == [SERVED] * 8
        assert await forwarding.get(8000) == SERVED
        forwarding.process.kill()
        await sessions_ended(cluster)

    async with forward(kubectl, cluster, 8000, 9) as forwarding, asyncio.timeout(PATIENCE):
        assert await forwarding.get(8000) == SERVED
        with pytest.raises(aiohttp.ClientError):
            await forwarding.get(9)
        # after an error, kubectl itself ends the session
        _, errors = await forwarding.process.communicate()
        assert re.search(rb"error forwarding port 9 to pod p, uid", errors)
        assert b"connection refused" in errors
        await sessions_ended(cluster)


async def test_the_protocol_before_websockets_is_refused(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
    with pytest.raises(AssertionError, match="KUBECTL_PORT_FORWARD_WEBSOCKETS=true"):
        async with forward("kubectl", cluster, 8000):
            pass
