"""The simulated user: creates jobs, watches them, and records when each condition first became true."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from e2e.bench.kinds import JobKind
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client
from trainop.runtime.objects.metadata import Key, Unstructured, decode_unstructured

CONCURRENCY = 32


class Jobs:
    """The jobs of one kind in one namespace. Times are monotonic seconds."""

    def __init__(self, client: Client, kind: JobKind, namespace: str) -> None:
        self.client, self.kind, self.namespace = client, kind, namespace
        self.posted: dict[str, float] = {}
        """When the API server had answered, by job name."""
        self.creation: dict[str, float] = {}
        """Seconds until then from the start of the request."""
        self.seen: dict[str, dict[str, float]] = defaultdict(dict)
        self.active: dict[str, int] = {}
        """Number of active pods in the job's status, by job name."""
        self.totals: Counter[str] = Counter()
        """Number of jobs by condition that has become true."""

    async def run(self) -> None:
        """Watches the jobs until cancelled."""
        jobs = Informer(self.client, self.kind.resource, decode_unstructured, namespaces=(self.namespace,))
        jobs.add_handler(self)
        await jobs.run()

    async def post(self, names: Sequence[str], workers: int, policy: str = "") -> None:
        todo = iter(names)

        async def work() -> None:
            for name in todo:
                body = self.kind.make(name, workers, policy)
                began = time.monotonic()
                await self.client.create(self.kind.resource, body, namespace=self.namespace)
                self.posted[name] = time.monotonic()
                self.creation[name] = self.posted[name] - began
                await asyncio.sleep(0)  # an API server in the same process may respond without suspending

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(CONCURRENCY, len(names))):
                tasks.create_task(work())

    def latencies(self, names: Sequence[str], condition: str) -> list[float]:
        """Seconds from the response to the POST until the condition was observed, per job."""
        return [self.seen[name][condition] - self.posted[name] for name in names if condition in self.seen[name]]

    def all_counted(self, names: Sequence[str], pods: int) -> bool:
        """Whether the status of each of these jobs counts `pods` active pods."""
        return all(self.active.get(name, 0) == pods for name in names)

    # Informer handler

    def add(self, obj: Unstructured, initial: bool) -> None:
        self._observe(obj)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._observe(new)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        self.active.pop(key.name, None)

    def _observe(self, job: Unstructured) -> None:
        name, status = job.metadata.name, job.raw.get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["status"] == "True" and condition["type"] not in self.seen[name]:
                self.seen[name][condition["type"]] = time.monotonic()
                self.totals[condition["type"]] += 1
        self.active[name] = sum(role.get("active", 0) for role in (status.get("replicaStatuses") or {}).values())
