"""A cluster for tests, as envtest is for controller-runtime: an API server without nodes, in the process of the test.

The API server answers as kube-apiserver does (schemas, patches, server-side apply, watches, finalizers) and collects
garbage. No kubelet runs: a test that needs a running pod patches its status.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from trainop.local.api.serving.server import ApiServer
from trainop.runtime import Client, Json, Manager, NotFoundError, Operator, Resource
from trainop.runtime.lowlevel import Request, Transport

V = TypeVar("V")

TIMEOUT = 30.0
"""Seconds that a `wait_…` waits by default; it returns as soon as it can."""

POLL = 0.02

Manifest = Path | str | Json
"""A YAML or JSON file with any number of objects, or one object."""


class TestCluster:
    """Up inside the `async with` block; at its end all operators are stopped, and one that failed fails the test.

    async with TestCluster("crd.yaml") as cluster:
        cluster.start(operator)
        await cluster.create("greeting.yaml")
        await cluster.wait_for(CONFIG_MAPS, "world", until=lambda obj: obj["data"]["text"] == "Hello, world!")
    """

    __test__ = False  # pytest takes it for no test

    def __init__(self, *manifests: Manifest) -> None:
        """`manifests` are created at the start: CustomResourceDefinitions and whatever else the test needs."""
        self._manifests = manifests
        self._api = ApiServer()
        self._ends = AsyncExitStack()
        self._running: dict[Manager, asyncio.Task[int]] = {}
        self.client = Client(self.transport, user_agent="test", field_manager="test")
        """Of an administrator."""

    @property
    def transport(self) -> Transport:
        """Reaches the API server without a socket; for clients of the test's own."""
        return self._api.transport()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as ends:
            ends.push_async_callback(self._api.close)
            collecting = asyncio.create_task(self._api.run(), name="garbage collector of the test cluster")
            ends.push_async_callback(_end, collecting)
            await self.create(*self._manifests)
            self._ends = ends.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        async with self._ends:
            codes = [await self.stop(manager) for manager in tuple(self._running)]
        if error is None and any(codes):
            raise AssertionError("an operator ended with exit code 1; its log says why")

    async def create(self, *manifests: Manifest) -> list[Json]:
        """Creates the objects in order and returns them; those without a namespace are created in `default`."""
        return [await self._create(manifest) for given in manifests for manifest in _objects(given)]

    def start(self, operator: Operator | Manager, **options: Any) -> Manager:
        """Runs the operator until the end of the block or `stop`, without ports and signal handlers; `options` go to
        `Operator.build`. A reconcile that mutates a cached object ends the operator with exit code 1."""
        if isinstance(operator, Operator):
            options = {"signals": False, "serve": False, "guarded": True, **options}
            operator = operator.build(self.transport, **options)
        self._running[operator] = asyncio.create_task(operator.run(), name="operator of the test cluster")
        return operator

    async def stop(self, manager: Manager) -> int:
        """Stops it as SIGTERM does; returns its exit code."""
        task = self._running.pop(manager)
        manager.stop()
        return await task

    async def wait_for(
        self,
        resource: Resource,
        name: str,
        namespace: str = "default",
        *,
        until: Callable[[Json], object] = bool,
        timeout: float = TIMEOUT,  # noqa: ASYNC109  # the message says what was there
    ) -> Json:
        """The object once it exists and `until(obj)` is true; a `KeyError` or `IndexError` there means not yet. Raises
        `AssertionError` with the object as it is after `timeout` seconds, or when an operator has failed."""
        seen: Json | None = None

        async def look() -> Json | None:
            nonlocal seen
            seen = await self._get(resource, name, namespace)
            with suppress(LookupError):
                return seen if seen is not None and until(seen) else None
            return None

        return await self._poll(look, timeout, lambda: f"{resource} {name} is not as expected: {_text(seen)}")

    async def wait_gone(
        self,
        resource: Resource,
        name: str,
        namespace: str = "default",
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> None:
        """Returns once the object does not exist. Raises as `wait_for`."""
        seen: Json | None = None

        async def look() -> bool:
            nonlocal seen
            seen = await self._get(resource, name, namespace)
            return seen is None

        await self._poll(look, timeout, lambda: f"{resource} {name} still exists: {_text(seen)}")

    async def wait_until(
        self,
        condition: Callable[[], Awaitable[V]],
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> V:
        """The first true value of `condition()`, which is called again and again. Raises as `wait_for`."""
        return await self._poll(condition, timeout, lambda: "the condition is not true")

    async def _poll(self, look: Callable[[], Awaitable[V | None]], within: float, complaint: Callable[[], str]) -> V:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while True:
            if found := await look():
                return found
            if any(task.done() for task in self._running.values()):
                raise AssertionError(f"an operator has ended; its log says why; {complaint()}")
            if loop.time() >= deadline:
                raise AssertionError(f"after {within:g} s {complaint()}")
            await asyncio.sleep(POLL)

    async def _get(self, resource: Resource, name: str, namespace: str) -> Json | None:
        with suppress(NotFoundError):
            return await self.client.get(resource, name, namespace)
        return None

    async def _create(self, manifest: Json) -> Json:
        resource = await self._resource_of(manifest)
        return await self.client.create(resource, manifest, namespace=_namespace_of(manifest) or "default")

    async def _resource_of(self, manifest: Json) -> Resource:
        """Asks discovery, as `kubectl` does."""
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        group, _, version = api_version.rpartition("/")
        root = f"/apis/{api_version}" if group else f"/api/{version}"
        served = json.loads((await self.client.request(Request("GET", root))).body)["resources"]
        for each in served:
            if each["kind"] == kind and "/" not in each["name"]:
                return Resource(group, version, each["name"], kind, namespaced=each["namespaced"])
        raise LookupError(f"the test cluster has no {kind} of {api_version}")


def _objects(given: Manifest) -> Iterator[Json]:
    if isinstance(given, dict):
        yield given
        return
    yield from filter(None, yaml.safe_load_all(Path(given).read_text(encoding="utf-8")))


def _namespace_of(manifest: Json) -> str:
    return str((manifest.get("metadata") or {}).get("namespace") or "")


def _text(obj: Json | None) -> str:
    return "it does not exist" if obj is None else json.dumps(obj, indent=1)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
