"""The `workqueue_depth` metric, in total or by priority."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

MAX_PRIORITIES = 25
"""Limit of values of the label `priority` per queue; keys of further priorities are counted under OVERFLOW
(controller-runtime `pkg/internal/metrics/workqueue.go`)."""

OVERFLOW = "exceeded_cardinality_limit"


class PriorityQueue(Protocol):
    """The part of `WorkQueue` that is read."""

    def depths(self) -> Mapping[int, int]:
        """The number of keys that are due, by priority."""
        ...


class DepthCollector(Collector):
    """Collector of `workqueue_depth`, computed when scraped. `by_priority` adds the label `priority`."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._queues: dict[str, PriorityQueue | None] = {}
        self._priorities: dict[str, set[int]] = {}

    def declare(self, name: str) -> None:
        """Exports depth 0 for a queue until `observe` is called for it."""
        self._queues.setdefault(name, None)
        self._priorities.setdefault(name, {0})

    def observe(self, name: str, queue: PriorityQueue) -> None:
        """Exports the depth of `queue` under this name, replacing a previous queue."""
        self.declare(name)
        self._queues[name] = queue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["name", "controller", *(["priority"] if self._by_priority else [])]
        family = GaugeMetricFamily("workqueue_depth", "Keys that are due", labels=labels)
        for name, queue in self._queues.items():
            depths = queue.depths() if queue is not None else {}
            if self._by_priority:
                for priority, depth in self._by_known_priority(name, depths).items():
                    family.add_metric([name, name, priority], depth)
            else:
                family.add_metric([name, name], sum(depths.values()))
        yield family

    def _by_known_priority(self, name: str, depths: Mapping[int, int]) -> dict[str, int]:
        """Depths by label value. A priority that was seen keeps its series while no keys have it."""
        known = self._priorities[name]
        known.update(sorted(depths.keys() - known, reverse=True)[: MAX_PRIORITIES - len(known)])
        counts = {str(priority): depths.get(priority, 0) for priority in sorted(known, reverse=True)}
        others = sum(depth for priority, depth in depths.items() if priority not in known)
        return counts | ({OVERFLOW: others} if others else {})
