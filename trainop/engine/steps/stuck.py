"""Pods stuck terminating, usually because their node is gone: a Warning event, and forced deletion if enabled.

`plan` and kinds with their own plan call `find_stuck`, then take over its results.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trainop.engine.actions import Event, Notice, Remove
from trainop.engine.seen import Options, Pod, Snapshot
from trainop.runtime import PODS
from trainop.runtime.lowlevel import read_time

STUCK_AFTER = 300.0
"""Seconds after the end of its grace period from which a terminating pod counts as stuck."""
FORCE_DELETE_REQUEUE_DELAY = 60.0
"""Seconds until a forced deletion is checked and repeated."""


def find_stuck(seen: Snapshot, owned: Iterable[Pod], others: Iterable[Pod] = ()) -> StuckPods:
    """Checks all pods of the job, and `others` that hold it up, such as those of a predecessor."""
    stuck = StuckPods(seen.wall or seen.now, seen.options)
    for pod in owned:
        stuck.check(pod, owned=True)
    for pod in others:
        stuck.check(pod, owned=False)
    return stuck


class StuckPods:
    """Collects `notices` and `actions` for stuck pods, and `requeue_after`, the seconds until the next check is due."""

    def __init__(self, now: datetime, options: Options) -> None:
        self._now = now
        self._force_after = options.force_delete_after
        self.notices: list[Notice] = []
        self.actions: list[Remove] = []
        self.requeue_after: float | None = None

    def check(self, pod: Pod, *, owned: bool) -> None:
        """Checks one pod. Its `deletionTimestamp` is the end of the grace period. Only pods of the job are
        force-deleted."""
        due = read_time(pod.metadata.deletion_timestamp)
        if due is None:
            return
        late = (self._now - due).total_seconds()
        if late < STUCK_AFTER:
            self._requeue_after(STUCK_AFTER - late)
        else:
            text = f"Pod {pod.metadata.name} is still terminating long after its grace period: is its node gone?"
            self.notices.append(Notice(f"stuck/{pod.metadata.uid}", Event("Warning", "StuckTerminating", text)))
        if owned and self._force_after is not None:
            if late < self._force_after:
                self._requeue_after(self._force_after - late)
            else:
                self.actions.append(Remove(PODS, pod.metadata.name, pod.metadata.uid, force=True))
                self._requeue_after(FORCE_DELETE_REQUEUE_DELAY)

    def _requeue_after(self, seconds: float) -> None:
        self.requeue_after = seconds if self.requeue_after is None else min(self.requeue_after, seconds)
