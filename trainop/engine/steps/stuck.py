"""Pods stuck terminating, usually because their node is gone: a Warning event, and forced deletion if enabled.

`plan` and kinds with their own plan pass every terminating pod to `StuckPods.check`, then take over its results.
"""

from __future__ import annotations

from datetime import datetime

from trainop.engine.actions import DeletePod, Event, Notice
from trainop.engine.seen import Options, Pod
from trainop.runtime.clock import read_time

STUCK_AFTER = 300.0
"""Seconds after the end of its grace period from which a terminating pod counts as stuck."""
FORCE_DELETE_REQUEUE_DELAY = 60.0
"""Seconds until a forced deletion is checked and repeated."""


class StuckPods:
    """Collects `notices` and `actions` for stuck pods, and `requeue_after`, the seconds until the next check is due."""

    def __init__(self, now: datetime, options: Options) -> None:
        self._now = now
        self._force_after = options.force_delete_after
        self.notices: list[Notice] = []
        self.actions: list[DeletePod] = []
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
                self.actions.append(DeletePod(pod.metadata.name, pod.metadata.uid, force=True))
                self._requeue_after(FORCE_DELETE_REQUEUE_DELAY)

    def _requeue_after(self, seconds: float) -> None:
        self.requeue_after = seconds if self.requeue_after is None else min(self.requeue_after, seconds)
