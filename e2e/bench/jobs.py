"""The user: posts jobs, watches them, and notes when each condition was first true."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from e2e.bench.kinds import JobKind
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client
from trainop.runtime.objects.metadata import Key, Unstructured, decode_unstructured

AT_ONCE = 32


class Jobs:
    """Of one kind in one namespace. Times are monotonic."""

    def __init__(self, client: Client, kind: JobKind, namespace: str) -> None:
        self.client, self.kind, self.namespace = client, kind, namespace
        self.posted: dict[str, float] = {}
        self.seen: dict[str, dict[str, float]] = defaultdict(dict)
        self.active: dict[str, int] = {}
        """Pods that the status counts as active."""
        self.totals: Counter[str] = Counter()
        """Jobs for which a condition has been true."""

    async def run(self) -> None:
        """Until cancelled."""
        jobs = Informer(self.client, self.kind.resource, decode_unstructured, namespaces=(self.namespace,))
        jobs.add_handler(self)
        await jobs.run()

    async def post(self, names: Sequence[str], workers: int, policy: str = "") -> None:
        todo = iter(names)

        async def work() -> None:
            for name in todo:
                body = self.kind.make(name, workers, policy)
                await self.client.create(self.kind.resource, body, namespace=self.namespace)
                self.posted[name] = time.monotonic()
                await asyncio.sleep(0)  # an API server in this process has not made us wait

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(names))):
                tasks.create_task(work())

    def latencies(self, names: Sequence[str], condition: str) -> list[float]:
        """Seconds from the answer to the POST until the condition was seen."""
        return [self.seen[name][condition] - self.posted[name] for name in names if condition in self.seen[name]]

    def whole(self, names: Sequence[str], pods: int) -> bool:
        """Every one of these jobs counts so many pods as active."""
        return all(self.active.get(name, 0) == pods for name in names)

    # What the watch shows

    def add(self, obj: Unstructured, initial: bool) -> None:
        self._look(obj)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._look(new)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        self.active.pop(key.name, None)

    def _look(self, job: Unstructured) -> None:
        name, status = job.metadata.name, job.raw.get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["status"] == "True" and condition["type"] not in self.seen[name]:
                self.seen[name][condition["type"]] = time.monotonic()
                self.totals[condition["type"]] += 1
        self.active[name] = sum(role.get("active", 0) for role in (status.get("replicaStatuses") or {}).values())
