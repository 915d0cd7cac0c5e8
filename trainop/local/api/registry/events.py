"""`events.k8s.io/v1`: the same events as those of the core group, with newer names for their fields."""

from __future__ import annotations

from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource

EVENTS_V1 = Resource("events.k8s.io", "v1", "events", "Event")

_NEWER = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_OLDER = {newer: older for older, newer in _NEWER.items()}


def to_events_v1(value: Json) -> Json:
    """As the newer group shows a stored event."""
    renamed = {_NEWER.get(name, name): part for name, part in value.items() if part or name == "eventTime"}
    return {**renamed, "apiVersion": EVENTS_V1.api_version}


def to_core_event(value: Json) -> Json:
    """As an event of the newer group is stored."""
    renamed = {_OLDER.get(name, name): part for name, part in value.items()}
    filled = {"involvedObject": {}, "reportingComponent": "", "reportingInstance": "", **renamed}
    return {"kind": "Event", "apiVersion": "v1", **{n: p for n, p in filled.items() if n not in {"kind", "apiVersion"}}}
