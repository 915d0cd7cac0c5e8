"""Priorities and delays of the work queue for events of jobs and their children.

Running jobs come before new ones, and events that need no immediate reaction are delayed, so that one pass covers
many of them.
"""

from __future__ import annotations

from typing import Any

from trainop.engine.seen import Pod
from trainop.runtime.lowlevel import LOW, NORMAL, Pace, Urgency

CHILD_PRIORITY = 10
"""Above the priority of new jobs. Jobs that have begun are completed first, so that of two hundred new jobs the median
one runs after half the time of the last, and not all at the end."""

BATCH_DELAY = 0.2
"""Seconds by which events without urgency are delayed. The pods of a job are created, start and end together, so one
pass and one status update cover them (kubernetes' job controller waits 1 s, `syncJobBatchPeriod`)."""

NOW = Urgency(CHILD_PRIORITY)
SOON = Urgency(CHILD_PRIORITY, BATCH_DELAY)


class JobPace(Pace):
    """Low priority for jobs that had a status when the operator started: the others wait for their first pods."""

    def add(self, job: Any, initial: bool, /) -> Urgency:
        return LOW if initial and job.raw.get("status") else NORMAL


class ChildPace(Pace):
    """No delay for a child that requires an action: an orphan, a failed or terminating pod, a deletion, or a change of
    labels or owner. Low priority for the initial list and for resyncs."""

    def add(self, child: Any, initial: bool, /) -> Urgency:
        if initial:
            return LOW
        return NOW if child.metadata.controller is None else SOON

    def update(self, old: Any, new: Any, /) -> Urgency:
        before, after = old.metadata, new.metadata
        if before.resource_version == after.resource_version:
            return LOW
        reassigned = before.labels != after.labels or before.owner_references != after.owner_references
        if reassigned or before.terminating != after.terminating or (_failed(new) and not _failed(old)):
            return NOW
        return SOON

    def delete(self, _child: Any, /) -> Urgency:
        return NOW


def _failed(child: object) -> bool:
    return isinstance(child, Pod) and child.status.phase == "Failed"
