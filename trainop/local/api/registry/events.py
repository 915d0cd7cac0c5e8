"""`events.k8s.io/v1`: conversion from and to core `v1` Events, whose table these share."""

from __future__ import annotations

from trainop.runtime import Json, Resource

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
    """A stored core `v1` Event as `events.k8s.io/v1`."""
    renamed = {_NEWER.get(name, name): part for name, part in value.items() if part or name == "eventTime"}
    return {**renamed, "apiVersion": EVENTS_V1.api_version}


def to_core_event(value: Json) -> Json:
    """An `events.k8s.io/v1` Event as core `v1`, the stored form."""
    renamed = {_OLDER.get(name, name): part for name, part in value.items()}
    filled = {"involvedObject": {}, "reportingComponent": "", "reportingInstance": "", **renamed}
    return {"kind": "Event", "apiVersion": "v1", **{n: p for n, p in filled.items() if n not in {"kind", "apiVersion"}}}
