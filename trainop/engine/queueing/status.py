"""What the operator writes into the status of a Workload: that its pods are ready, which of them are no longer needed,
that it has lost its quota, and that it has finished.

Each write is a merge patch with the resourceVersion as precondition, since conditions are one list there. The words are
those of Kueue's own integrations (kubernetes-sigs/kueue 0.19, `pkg/controller/jobframework/reconciler.go`,
`pkg/workload/workload.go`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from trainop.engine.actions import Need, Patch
from trainop.engine.kueue import (
    ADMITTED,
    EVICTED,
    FINISHED,
    PODS_READY,
    REQUEUED,
    RESERVED,
    WORKLOADS,
    Workload,
    as_counts,
)
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, read_time, timestamp

_STARTED, _RECOVERED = "Started", "Recovered"
_WAIT_FOR_START, _WAIT_FOR_RECOVERY = "WaitForStart", "WaitForRecovery"
_REQUEUED_BY = ("Preempted", "NodeFailures")
"""Reasons of an eviction after which the Workload is queued again by itself."""


class _Condition(NamedTuple):
    type: str
    status: str
    reason: str
    message: str

    def differs(self, found: Json) -> bool:
        return (found.get("status"), found.get("reason")) != (self.status, self.reason)


def _patch(workload: Workload, now: datetime, conditions: Sequence[_Condition], **fields: object) -> Patch:
    """Sets these conditions, and fields; None removes one."""
    found = {str(each.get("type")): each for each in workload.status.conditions}
    for each in conditions:
        old = found.get(each.type, {})
        since = old.get("lastTransitionTime") if old.get("status") == each.status else None
        found[each.type] = {
            **each._asdict(),
            "message": cut(each.message),
            "lastTransitionTime": since or timestamp(now),
            "observedGeneration": workload.metadata.generation,
        }
    body = {"status": {**fields, **({"conditions": list(found.values())} if conditions else {})}}
    metadata = workload.metadata
    return Patch(
        WORKLOADS,
        metadata.name,
        metadata.uid,
        body,
        subresource="status",
        version=metadata.resource_version,
        need=Need.NONE,
    )


def report(workload: Workload, now: datetime, *, ready: bool, done: Mapping[str, int]) -> Patch | None:
    """Reports about an admitted Workload whether its pods are `ready`, and how many of each set are `done`; None if it
    says so already."""
    condition = _pods_ready(workload, ready=ready)
    told = [condition] if condition.differs(workload.find(PODS_READY)) else []
    fields = {}
    if reclaimable := _reclaimable(workload, done):
        fields["reclaimablePods"] = reclaimable
    return _patch(workload, now, told, **fields) if told or fields else None


def _pods_ready(workload: Workload, *, ready: bool) -> _Condition:
    found = workload.find(PODS_READY)
    if ready:
        again = found.get("reason") in (_WAIT_FOR_RECOVERY, _RECOVERED)
        text = "All pods reached readiness and the workload is running"
        return _Condition(PODS_READY, "True", _RECOVERED if again else _STARTED, text)
    if found.get("status") == "True" or found.get("reason") == _WAIT_FOR_RECOVERY:
        text = "At least one pod has failed, waiting for recovery"
        return _Condition(PODS_READY, "False", _WAIT_FOR_RECOVERY, text)
    return _Condition(PODS_READY, "False", _WAIT_FOR_START, "Not all pods are ready or succeeded")


def _reclaimable(workload: Workload, done: Mapping[str, int]) -> list[Json]:
    """The new list; empty if it would say the same. Kueue refuses a number that falls."""
    old = {str(each.get("name")): as_counts(each.get("count")) for each in workload.status.reclaimable_pods}
    counts = workload.counts
    new = {name: max(old.get(name, 0), min(done.get(name, 0), count)) for name, count in counts.items()}
    new = {name: count for name, count in new.items() if count or name in old}
    return [{"name": name, "count": count} for name, count in new.items()] if new != old else []


def release(workload: Workload, now: datetime) -> Patch:
    """Returns the quota of an evicted Workload whose pods have ended: nobody else does."""
    evicted = workload.find(EVICTED)
    reason, text = str(evicted.get("reason")), str(evicted.get("message", ""))
    again = "True" if reason in _REQUEUED_BY else "False"
    conditions = [
        _Condition(REQUEUED, again, reason, text),
        _Condition(RESERVED, "False", "Pending", text),
        _Condition(ADMITTED, "False", "NoReservation", "The workload has no reservation"),
        _Condition(PODS_READY, "False", _WAIT_FOR_START, "Not all pods are ready or succeeded"),
    ]
    fields: Json = {"admission": None, "reclaimablePods": None}
    since = read_time(workload.find(ADMITTED).get("lastTransitionTime"))
    if workload.spec.maximum_execution_time_seconds and since is not None and workload.is_true(ADMITTED):
        passed = max(0, int((now - since).total_seconds()))
        fields["accumulatedPastExecutionTimeSeconds"] = workload.status.accumulated + passed
    return _patch(workload, now, conditions, **fields)


def finish(workload: Workload, now: datetime, *, succeeded: bool, message: str) -> Patch:
    """Says that the job has ended, which returns the quota."""
    reason = "Succeeded" if succeeded else "Failed"
    return _patch(workload, now, [_Condition(FINISHED, "True", reason, message)])
