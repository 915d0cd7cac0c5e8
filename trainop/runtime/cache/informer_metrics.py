"""Interface for the metrics of informers, which `metrics.Metrics` implements for Prometheus."""

from __future__ import annotations

from typing import Protocol


class InformerMetrics(Protocol):
    """Receives the measurements of informers. `resource` is a name such as `pods` or `pytorchjobs.kubeflow.org`."""

    def stored(self, resource: str, change: int) -> None:
        """The number of objects in a store has changed by this number."""
        ...

    def relisted(self, resource: str, reason: str) -> None:
        """A list failed, or a streamed list and the watch that continued it ended; `reason` is a `watcher.Cause`."""
        ...

    def rewatched(self, resource: str, reason: str) -> None:
        """A watch ended; `reason` is a `watcher.Cause`."""
        ...

    def listed(self, resource: str, seconds: float) -> None:
        """A list was completed."""
        ...

    def received(self, resource: str, events: int, lag: float) -> None:
        """A batch of `events` watch events was delivered to all handlers, `lag` seconds after its arrival."""
        ...

    def dropped(self, resource: str, reason: str) -> None:
        """An object or line was discarded: `stale`, `undecodable`, `oversized` or `unknown` (event type)."""
        ...

    def handler_failed(self, resource: str) -> None:
        """A handler or index raised an exception."""
        ...


class NoInformerMetrics:
    """An `InformerMetrics` that records nothing."""

    def stored(self, resource: str, change: int) -> None: ...
    def relisted(self, resource: str, reason: str) -> None: ...
    def rewatched(self, resource: str, reason: str) -> None: ...
    def listed(self, resource: str, seconds: float) -> None: ...
    def received(self, resource: str, events: int, lag: float) -> None: ...
    def dropped(self, resource: str, reason: str) -> None: ...
    def handler_failed(self, resource: str) -> None: ...
