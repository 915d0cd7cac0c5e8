"""An API server under a manual clock, with short methods for requests and watches."""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.transport import Request, Response, Stream

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
TASKS = "/apis/example.com/v1/namespaces/default/tasks"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class StillClock:
    """A clock that only `advance` moves."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self._passed

    def now(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(seconds=self._passed)

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._passed + seconds, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking sleepers in order."""
        until = self._passed + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._passed, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await settle()
        self._passed = until


async def settle() -> None:
    """Let all ready tasks run."""
    for _ in range(50):
        await asyncio.sleep(0)


class Answer:
    """A response with its decoded JSON."""

    def __init__(self, response: Response) -> None:
        self.code = response.status
        self.headers = response.headers
        self.raw = response.body

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def items(self) -> list[str]:
        """The names in a list."""
        return [item["metadata"]["name"] for item in self.json["items"]]


class Api:
    """In-process requests to `server`, which uses `clock`."""

    def __init__(self, **options: Any) -> None:
        self.clock = StillClock()
        self.server = ApiServer(clock=self.clock, rng=random.Random(7), **options)
        self.transport = self.server.transport()

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Answer:
        path, _, text = path.partition("?")
        query |= dict(pair.partition("=")[::2] for pair in text.split("&")) if text else {}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {"user-agent": "tester/1"}
        request = Request(method, path, query, data, content_type, accept, headers=headers)
        return Answer(await self.transport.send(request))

    async def create(self, path: str, body: Any, **query: str) -> Any:
        """The object of a response that must be successful."""
        answer = await self("POST", path, body, **query)
        assert answer.code == 201, answer.raw
        return answer.json

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **query: str) -> Answer:
        return await self("PATCH", path, body, content_type, **query)

    async def watch(self, path: str, **query: str) -> Watching:
        request = Request("GET", path, {"watch": "1", **query})
        return Watching(await self.transport.open(request))


class Watching:
    """The events of a watch, one by one."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._chunks: AsyncIterator[bytes] = stream.chunks()
        self._lines: list[bytes] = []

    async def next(self) -> Any:
        """The next event; None when the stream has ended."""
        while not self._lines:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return None
            self._lines = chunk.splitlines()
        return json.loads(self._lines.pop(0))

    async def next_events(self, count: int) -> list[tuple[str, str]]:
        """The type and object name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


def pod(name: str = "p", /, *, node: str = "", labels: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
    if node:
        spec["nodeName"] = node
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def config_map(name: str = "c", /, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "b"}}


def task(name: str = "t", /, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Task",
        "metadata": {"name": name},
        "spec": {"command": "x", **spec},
    }


def definition(*more_versions: str) -> dict[str, Any]:
    """A CRD `tasks.example.com` with status and scale; the first version, v1, is stored."""
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["command"],
                "properties": {
                    "replicas": {"type": "integer", "minimum": 0, "default": 1},
                    "command": {"type": "string"},
                },
            },
            "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
        },
    }
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    versions = [
        {
            "name": name,
            "served": True,
            "storage": name == "v1",
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": scale},
            "additionalPrinterColumns": [{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}],
        }
        for name in ("v1", *more_versions)
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "tasks.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "tasks", "kind": "Task", "shortNames": ["tk"]},
            "scope": "Namespaced",
            "versions": versions,
        },
    }
