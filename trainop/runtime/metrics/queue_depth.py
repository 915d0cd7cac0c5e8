"""The depth of work queues, as dashboards know it or by priority."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

MAX_PRIORITIES = 25
"""Values of the label per queue; what is beyond them is counted together (controller-runtime
`pkg/internal/metrics/workqueue.go`)."""

BEYOND = "exceeded_cardinality_limit"


class LayeredQueue(Protocol):
    """Keys that are due, counted by priority."""

    def depths(self) -> Mapping[int, int]: ...


class DepthCollector(Collector):
    """`workqueue_depth`, computed when it is scraped; with `by_priority` in one more label, else summed up."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._queues: dict[str, LayeredQueue | None] = {}
        self._priorities: dict[str, set[int]] = {}

    def declare(self, name: str) -> None:
        """A queue of this name has the depth 0."""
        self._queues.setdefault(name, None)
        self._priorities.setdefault(name, {0})

    def observe(self, name: str, queue: LayeredQueue) -> None:
        """From now on the depth is read from this queue."""
        self.declare(name)
        self._queues[name] = queue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["name", "controller", *(["priority"] if self._by_priority else [])]
        family = GaugeMetricFamily("workqueue_depth", "Keys that are due", labels=labels)
        for name, queue in self._queues.items():
            depths = queue.depths() if queue is not None else {}
            if self._by_priority:
                for priority, depth in self._layers(name, depths).items():
                    family.add_metric([name, name, priority], depth)
            else:
                family.add_metric([name, name], sum(depths.values()))
        yield family

    def _layers(self, name: str, depths: Mapping[int, int]) -> dict[str, int]:
        """A priority that was seen once keeps its series, also while no keys have it."""
        known = self._priorities[name]
        known.update(sorted(depths.keys() - known, reverse=True)[: MAX_PRIORITIES - len(known)])
        layers = {str(priority): depths.get(priority, 0) for priority in sorted(known, reverse=True)}
        beyond = sum(depth for priority, depth in depths.items() if priority not in known)
        return layers | ({BEYOND: beyond} if beyond else {})
