"""Reports periodically what jobs wait for before they start, and enforces the start timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat

from trainop.local.scheduler.filters import AWAITED
from trainop.run.screen import JobView, Replica
from trainop.runtime import Clock

_NOTE_INTERVALS = (10.0, 10.0, 10.0, 15.0, 30.0)
_LAST_INTERVAL = 60.0
_UNSTARTED_PHASES = ("Pending", "Unknown")
DEFAULT_TIMEOUT = 300.0
"""Seconds."""


class StartWatch:
    """Monitors jobs until their first container starts. `timeout` in seconds; 0 disables it."""

    def __init__(self, clock: Clock, timeout: float, note: Callable[[str], None]) -> None:
        self._clock = clock
        self._timeout = timeout
        self._note = note

    async def run(self, jobs: Callable[[], Sequence[JobView]], on_timeout: Callable[[JobView, str], None]) -> None:
        """Checks the unfinished `jobs` until cancelled. Calls `on_timeout` with each job that did not start in time,
        and the reason, unless its pods wait for the end of others."""
        started_at = self._clock.monotonic()
        for pause in chain(_NOTE_INTERVALS, repeat(_LAST_INTERVAL)):
            waited = self._clock.monotonic() - started_at
            left = self._timeout - waited
            await self._clock.sleep(min(pause, left) if left > 0 else pause)
            waited = self._clock.monotonic() - started_at
            over = bool(self._timeout) and waited >= self._timeout
            for job in jobs():
                reasons = list(describe_waiting(job))
                if over and not job.started and not _is_queued(job):
                    why = "; ".join(reasons) or "no reason is known"
                    on_timeout(job, f"{job.kind} {job.name} has not started within {self._timeout:g} s: {why}")
                else:
                    for reason in reasons:
                        self._note(f"{reason} ({waited:.0f} s)")


def describe_waiting(job: JobView) -> Iterator[str]:
    """One sentence for each distinct reason for which replicas wait."""
    if "Suspended" in job.conditions:
        yield f"{job.kind} {job.name} is suspended (spec.runPolicy.suspend)"
        return
    if not job.replicas and not job.started:
        yield f"{job.kind} {job.name} has no pod yet"
    waiting: dict[str, list[str]] = {}
    for replica in _unstarted(job.replicas.values()):
        waiting.setdefault(replica.warning or replica.detail or "container is starting", []).append(replica.name)
    for reason, names in waiting.items():
        others = f" and {len(names) - 1} more wait" if len(names) > 1 else " waits"
        yield f"{names[0]}{others}: {reason}"


def _is_queued(job: JobView) -> bool:
    """Whether its pods wait for room that other pods have."""
    return any(AWAITED in replica.warning for replica in _unstarted(job.replicas.values()))


def _unstarted(replicas: Iterable[Replica]) -> Iterator[Replica]:
    return (replica for replica in replicas if replica.phase in _UNSTARTED_PHASES)
