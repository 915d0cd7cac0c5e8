"""The metrics of di-server, in addition to those of `trainop.runtime`."""

from __future__ import annotations

from trainop.runtime import Clock, Metrics

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class DiServerMetrics(Metrics):
    """`path` is one of the served paths, `method` one of the served methods or `other`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock, prefix="trainop")
        prefix = "trainop_di_server"
        self.requests_served = self._counter(
            f"{prefix}_requests_total", "Requests of the API by status", "method", "path", "code"
        )
        self.request_seconds = self._histogram(
            f"{prefix}_request_duration_seconds", "Seconds from headers to answer", _BUCKETS, "method", "path"
        )
        self.pods_created = self._counter(f"{prefix}_pods_created_total", "Pods created by role", "role")
        self.pods_deleted = self._counter(f"{prefix}_pods_deleted_total", "Pods deleted")
        self.pods_undone = self._counter(
            f"{prefix}_pods_undone_total", "Pods deleted because their request failed or its server died"
        )
        self.requests_recovered = self._counter(
            f"{prefix}_requests_recovered_total", "Requests of servers that died, by the state they were in", "state"
        )
        self.answers_repeated = self._counter(
            f"{prefix}_answers_repeated_total", "Repeated requests that got the answer of the first"
        )
        self.callers_refused = self._counter(f"{prefix}_callers_refused_total", "Requests without permission")
