"""What happened to a job before it had pods: in a queue of Kueue, and in the gang's PodGroup."""

from __future__ import annotations

from collections.abc import Iterator

from trainop.engine.fields import as_list, as_object
from trainop.engine.seen import SCHEDULED
from trainop.explain.story.timeline import Step
from trainop.explain.why.evidence import Evidence, as_text, gang_size
from trainop.runtime.lowlevel import read_time

_WORKLOAD = {
    "QuotaReserved": "Kueue has reserved quota",
    "Admitted": "Kueue has admitted it",
    "Evicted": "Kueue has evicted it",
    "Preempted": "Kueue has preempted it",
}
"""Condition of a Workload -> what it says while it is true."""


def waits_of(seen: Evidence) -> Iterator[Step]:
    """The steps of the Workloads and of the PodGroup."""
    for workload in seen.workloads:
        metadata, spec = as_object(workload.get("metadata")), as_object(workload.get("spec"))
        queue = as_text(spec.get("queueName"))
        yield Step(
            read_time(metadata.get("creationTimestamp")), "queued", f"queued by Kueue{f' in {queue}' if queue else ''}"
        )
        yield from _transitions(workload)
    if seen.group:
        yield from _group(seen)


def _transitions(workload: object) -> Iterator[Step]:
    for condition in as_list(as_object(as_object(workload).get("status")).get("conditions")):
        type_ = as_text(condition.get("type"))
        if type_ in _WORKLOAD and condition.get("status") == "True":
            message = as_text(condition.get("message"))
            text = f"{_WORKLOAD[type_]}{f': {message}' if message else ''}"
            yield Step(read_time(condition.get("lastTransitionTime")), type_.lower(), text)


def _group(seen: Evidence) -> Iterator[Step]:
    group = as_object(seen.group)
    spec, status = as_object(group.get("spec")), as_object(group.get("status"))
    members, phase = gang_size(spec), as_text(status.get("phase"))
    count = f" for {members:,} pods" if isinstance(members, int) else ""
    state = f"; its phase is {phase}" if phase else ""
    at = read_time(as_object(group.get("metadata")).get("creationTimestamp"))
    yield Step(at, "gang", f"PodGroup created{count}{state}")
    for condition in as_list(status.get("conditions")):
        if condition.get("type") in ("Scheduled", SCHEDULED) and condition.get("status") == "True":
            yield Step(read_time(condition.get("lastTransitionTime")), "gang_scheduled", "the gang is scheduled")
    begun = read_time(status.get("scheduleStartTime"))
    if begun is not None:
        yield Step(begun, "gang_scheduled", "the gang is being scheduled")
