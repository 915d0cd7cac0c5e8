"""A node on the embedded API server, with methods for the actions of tests."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer
from trainop.local.node.agent import NetworkMode, Node, NodeOptions, Timing
from trainop.runtime.client.client import Client
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import AlreadyExistsError
from trainop.runtime.objects.metadata import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    Json,
    Key,
    Resource,
    Unstructured,
)

QUICK = Timing(backoff_initial=0.05, backoff_limit=0.2, retry_initial=0.02, retry_limit=0.1, status_batch_delay=0.001)


class HurriedClock(SystemClock):
    """A clock whose sleeps, as between two probes, take a fiftieth of the requested time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 50)


class FakeHostNetwork:
    """The external network: `web.example` is at 192.0.2.80, where port 443 answers with the reversed request."""

    async def resolve(self, name: str) -> list[str] | None:
        return ["192.0.2.80"] if name == "web.example" else None

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if (address, port) != ("192.0.2.80", 443):
            raise ConnectionRefusedError(f"nobody at {address}:{port}")
        local, remote = socket.socketpair()
        self._far = asyncio.ensure_future(self._reply(remote))
        return await asyncio.open_connection(sock=local)

    async def _reply(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write((await reader.read())[::-1])
        writer.close()


class World:
    """A node with its API server, started by `run`; all pods are in namespace `team`."""

    def __init__(
        self,
        directory: Path,
        network: NetworkMode,
        api: ApiServer | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self.api = api or ApiServer()
        self.client = Client(self.api.transport())
        self.directory = directory
        self.node = Node(
            self.client,
            "local",
            directory,
            clock=clock or HurriedClock(),
            options=NodeOptions(network, QUICK, FakeHostNetwork(), **options),
        )
        self.seen: dict[str, list[Json]] = {}
        """Every state of every pod that was observed, by name."""
        self._waiters: list[asyncio.Event] = []
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        with suppress(AlreadyExistsError):
            await self.client.create(NAMESPACES, {"metadata": {"name": "team"}})
        self.node._pods.add_handler(_Observer(self.note))
        await self.node.run()

    def note(self, pod: Json) -> None:
        self.seen.setdefault(pod["metadata"]["name"], []).append(pod)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()

    # What tests do.

    async def start(self, *argv: str, name: str = "", **spec: Any) -> str:
        """Creates a pod with one container `main`; returns its name."""
        container = {"name": "main", "image": "example.com/image:1", "command": list(argv), **spec.pop("main", {})}
        return await self.create({"containers": [container], **spec}, name=name)

    async def create(self, spec: Json, *, name: str = "", **metadata: Any) -> str:
        name = name or f"pod-{next(self._numbers)}"
        full = {"restartPolicy": "Never", **spec}
        await self.client.create(PODS, {"metadata": {"name": name, "namespace": "team", **metadata}, "spec": full})
        return name

    async def make(self, resource: Resource, name: str, **content: Any) -> None:
        await self.client.create(resource, {"metadata": {"name": name, "namespace": "team"}, **content})

    async def until(self, name: str, holds: Callable[[Json], bool]) -> Json:
        """The latest state of the pod for which `holds` is true."""

        def latest() -> Json:
            return (self.seen.get(name) or [{"metadata": {"name": name}, "status": {}}])[-1]

        try:
            async with asyncio.timeout(PATIENCE):
                while not holds(latest()):
                    self._waiters.append(changed := asyncio.Event())
                    await changed.wait()
        except TimeoutError:
            raise AssertionError(f"{name} is at {latest().get('status')}") from None
        return latest()

    async def finish(self, name: str) -> Json:
        return await self.until(name, lambda pod: pod.get("status", {}).get("phase") in {"Succeeded", "Failed"})

    async def running(self, name: str) -> Json:
        return await self.until(name, lambda pod: pod.get("status", {}).get("phase") == "Running")

    async def gone(self, name: str) -> None:
        await self.until(name, lambda pod: pod.get("gone", False))

    async def delete(self, name: str, grace: int | None = None) -> None:
        await self.client.delete(PODS, name, "team", grace_seconds=grace)

    async def log(self, name: str, container: str = "main", **options: Any) -> str:
        chunks = self.node.open_log("team", name, container, **options)
        return b"".join([chunk async for chunk in chunks]).decode()

    async def log_with(self, name: str, text: str, container: str = "main") -> str:
        """Follows a log until it holds `text`."""
        await self.until(name, lambda pod: bool(container_status(pod).get("containerID")))
        found = ""
        async with asyncio.timeout(PATIENCE):
            async for chunk in self.node.open_log("team", name, container, follow=True):
                found += chunk.decode()
                if text in found:
                    return found
        raise AssertionError(f"{text!r} is not in {found!r}")

    async def events(self, name: str, reason: str) -> list[Json]:
        """Events with this reason; waits for the first."""
        async with asyncio.timeout(PATIENCE):
            while True:
                everything = (await self.client.list(EVENTS, "team")).items
                found = [one for one in everything if one["involvedObject"]["name"] == name and one["reason"] == reason]
                if found:
                    return found
                await asyncio.sleep(0.01)


class _Observer:
    """The handler of an informer of pods."""

    def __init__(self, note: Callable[[Json], None]) -> None:
        self._note = note

    def add(self, obj: Unstructured, initial: bool) -> None:
        self._note(obj.raw)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._note(new.raw)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        self._note({"metadata": {"name": key.name}, "gone": True})


def terminated(pod: Json, container: str = "main") -> Json:
    """How a container of the pod ended."""
    statuses = [*pod["status"]["containerStatuses"], *pod["status"].get("initContainerStatuses", [])]
    (state,) = [one["state"] for one in statuses if one["name"] == container]
    found: Json = state["terminated"]
    return found


def container_status(pod: Json) -> Json:
    """Of the first container; empty before the node has written it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    found: Json = statuses[0]
    return found


def waiting(pod: Json, container: str = "main") -> str:
    """The reason for which a container waits, if it does."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    reasons = [(one["state"].get("waiting") or {}).get("reason", "") for one in statuses if one["name"] == container]
    return str(reasons[0]) if reasons else ""


__all__ = ["CONFIG_MAPS", "SECRETS", "SERVICES", "World", "container_status", "terminated", "waiting"]
