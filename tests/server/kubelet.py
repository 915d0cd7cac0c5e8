"""A node whose kubelet has nothing but logs: the real kube-apiserver asks it for them, after it has decided who may."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from e2e.cluster.certificates import Authority
from tests.server.world import CORE, World

NODE = "logs"


class Kubelet:
    """Answers `/containerLogs` as a kubelet does (kubernetes/pkg/kubelet/server/server.go, getContainerLogs)."""

    def __init__(self) -> None:
        self.following: list[str] = []
        """The pods whose logs are followed at this moment."""
        self._lines: dict[str, list[bytes]] = {}
        self._restarts = 0
        self._news = asyncio.Condition()

    async def say(self, pod: str, *texts: str) -> None:
        """Adds lines to the log of a pod, NAMESPACE/NAME."""
        async with self._news:
            lines = self._lines.setdefault(pod, [])
            for text in texts:
                lines.append(f"2026-11-27T10:00:00.{len(lines):09}Z {text}\n".encode())
            self._news.notify_all()

    async def restart(self) -> None:
        """All connections break; logs stay."""
        async with self._news:
            self._restarts += 1
            self._news.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        pod = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        assert request.query.get("timestamps") == "true"
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        follow = request.query.get("follow") == "true"
        self.following += [pod] if follow else []
        try:
            sent, begun = 0, self._restarts
            while self._restarts == begun:
                lines = self._lines.get(pod, [])
                await response.write(b"".join(lines[sent:]))
                sent = len(lines)
                if not follow:
                    return response
                async with self._news:
                    await self._news.wait_for(
                        lambda: len(self._lines.get(pod, [])) > sent or self._restarts != begun  # noqa: B023  # awaited here
                    )
            assert request.transport is not None
            request.transport.abort()
            return response
        finally:
            if follow:
                self.following.remove(pod)


def add_pod(world: World, job: str) -> str:
    """The running master of a job on the node, as operator, scheduler and kubelet leave it. Returns NAMESPACE/NAME."""
    labels = {
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
    }
    spec = {"nodeName": NODE, "containers": [{"name": "pytorch", "image": "none"}]}
    world.ask("POST", f"{CORE}/pods", {"metadata": {"name": f"{job}-master-0", "labels": labels}, "spec": spec})
    world.run_pod(f"{job}-master-0")
    return f"{world.namespace}/{job}-master-0"


@asynccontextmanager
async def kubelet_of(world: World, folder: Path) -> AsyncIterator[Kubelet]:
    """A Node at 127.0.0.1, and its kubelet in this process, within the context."""
    kubelet = Kubelet()
    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", kubelet.answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*Authority(folder / "pki").issue("kubelet", "system:node:logs", hosts=["127.0.0.1"]))
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    world.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": runner.addresses[0][1]}},
    }
    try:
        world.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, "application/merge-patch+json")
        yield kubelet
    finally:
        world.ask("DELETE", f"/api/v1/nodes/{NODE}")
        await _close(runner)


async def _close(runner: web.AppRunner) -> None:
    """At once, as a TLS connection that ends in order waits for its other end."""
    server = runner.server
    assert server is not None
    while server.connections:
        for each in [*server.connections]:
            if each.transport is not None:
                each.transport.abort()
        await asyncio.sleep(0.01)
    await runner.cleanup()
