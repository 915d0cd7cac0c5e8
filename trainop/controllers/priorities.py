"""In which order jobs are looked at, and how soon: those nearest their goal first, and not for every pod anew."""

from __future__ import annotations

from typing import Any

from trainop.engine.seen import Pod
from trainop.runtime.controller.enqueue import LOW, NORMAL, Pace, Urgency

CHILD_PRIORITY = 10
"""Above that of jobs that are new: what has begun is brought to its end first, so that of two hundred jobs the median
one runs after half the time of the last."""

SETTLE = 0.2
"""Seconds for which what goes well is gathered: the pods of a job come, start and end together, and one look and one
status are enough for them (kubernetes' job controller has 1 s, `syncJobBatchPeriod`)."""

NOW = Urgency(CHILD_PRIORITY)
SOON = Urgency(CHILD_PRIORITY, SETTLE)


class JobPace(Pace):
    """Of the jobs that are there when the operator starts, those without a status are waiting for their first pods."""

    def add(self, job: Any, initial: bool, /) -> Urgency:
        return LOW if initial and job.raw.get("status") else NORMAL


class ChildPace(Pace):
    """What calls for action is urgent: a pod that failed, is going or gone, is nobody's or changes hands."""

    def add(self, child: Any, initial: bool, /) -> Urgency:
        if initial:
            return LOW
        return NOW if child.metadata.controller is None else SOON

    def update(self, old: Any, new: Any, /) -> Urgency:
        before, after = old.metadata, new.metadata
        if before.resource_version == after.resource_version:
            return LOW
        changed_hands = before.labels != after.labels or before.owner_references != after.owner_references
        if changed_hands or before.terminating != after.terminating or (_failed(new) and not _failed(old)):
            return NOW
        return SOON

    def delete(self, _child: Any, /) -> Urgency:
        return NOW


def _failed(child: object) -> bool:
    return isinstance(child, Pod) and child.status.phase == "Failed"
