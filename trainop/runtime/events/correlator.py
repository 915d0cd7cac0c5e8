"""Which events are written and under which name: repeats are counted, floods combined, spammers silenced. No I/O.

Semantics and numbers of client-go `tools/record/events_cache.go`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar

from trainop.runtime.clock import Clock, timestamp
from trainop.runtime.controller.ratelimit import TokenBucket
from trainop.runtime.objects.metadata import Json, ObjectReference
from trainop.runtime.texts import LONGEST_REASON, cut

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

COMBINED = "(combined from similar events): "
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class EventLimits:
    """`burst` events per object and type, then one per `refill` seconds; from the `combine_from`th different message
    of one reason within `combine_within` seconds on, messages are combined."""

    burst: int = 25
    refill: float = 300.0
    combine_from: int = 10
    combine_within: float = 600.0
    remembered: int = 4096
    """Objects, groups and events that are kept in mind, each."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One event as it is to be written: a new object if `count` is 1, else a new count of the object `name`."""

    name: str
    about: ObjectReference
    type: str
    reason: str
    message: str
    count: int
    first: datetime
    last: datetime
    combined: bool = False

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"

    def body(self, component: str) -> Json:
        """The core/v1 Event."""
        about = {
            "apiVersion": self.about.api_version,
            "kind": self.about.kind,
            "namespace": self.about.namespace,
            "name": self.about.name,
            "uid": self.about.uid,
            "resourceVersion": self.about.resource_version,
            "fieldPath": self.about.field_path,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "involvedObject": {name: value for name, value in about.items() if value},
            "type": self.type,
            "reason": self.reason,
            "message": self.message,
            "count": self.count,
            "firstTimestamp": timestamp(self.first),
            "lastTimestamp": timestamp(self.last),
            "source": {"component": component},
            "reportingComponent": "" if self.combined else component,
            "reportingInstance": "",
        }

    def patch(self) -> Json:
        """What changes in an Event that was written before."""
        return {"count": self.count, "lastTimestamp": timestamp(self.last), "message": self.message}


class _Recent(Generic[K, V]):
    """A dictionary that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, default: Callable[[], V]) -> V:
        value = self._values.pop(key) if key in self._values else default()
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def find(self, key: K) -> V | None:
        return self._values.get(key)


@dataclass(slots=True)
class _Similar:
    """Events about one object that differ only in the message."""

    last: float
    messages: set[str] = field(default_factory=set)


class Correlator:
    """Of one recorder. `new_uuid` names events about objects whose name does not fit into an event's."""

    def __init__(self, clock: Clock, new_uuid: Callable[[], str], limits: EventLimits | None = None) -> None:
        self._clock = clock
        self._new_uuid = new_uuid
        self._limits = limits or EventLimits()
        size = self._limits.remembered
        self._similar: _Recent[Hashable, _Similar] = _Recent(size)
        self._written: _Recent[Hashable, Occurrence] = _Recent(size)
        self._buckets: _Recent[Hashable, TokenBucket] = _Recent(size)
        self._last_nanoseconds = 0

    def correlate(self, about: ObjectReference, type_: str, reason: str, message: str) -> Occurrence | None:
        """What to write for one more event; None if its object has had too many of its type."""
        whole, message, reason = message, cut(message), cut(reason, LONGEST_REASON)
        group = (about.identity, type_, reason)
        combined = self._is_flood(group, message)
        key: Hashable = group if combined else (group, about.field_path, message)
        if combined:
            message = cut(COMBINED + whole)
        before = self._written.find(key)
        now = self._clock.now()
        if before is None:
            occurrence = Occurrence(self._name(about, now), about, type_, reason, message, 1, now, now, combined)
        else:
            occurrence = replace(before, message=message, count=before.count + 1, last=now)
        # Also what is not written counts, so that the next write tells the whole number.
        self._written.put(key, occurrence)
        bucket = self._buckets.get((about.identity, type_), self._new_bucket)
        return occurrence if bucket.take() else None

    def _new_bucket(self) -> TokenBucket:
        return TokenBucket(self._clock, 1 / self._limits.refill, self._limits.burst)

    def _is_flood(self, group: Hashable, message: str) -> bool:
        now = self._clock.monotonic()
        similar = self._similar.get(group, lambda: _Similar(now))
        if now - similar.last > self._limits.combine_within:
            similar.messages.clear()
        similar.last = now
        if message not in similar.messages and len(similar.messages) < self._limits.combine_from:
            similar.messages.add(message)
        return len(similar.messages) >= self._limits.combine_from

    def _name(self, about: ObjectReference, now: datetime) -> str:
        """`<object>.<hex of unix nanoseconds>`, unique in this process even if the clock stands still."""
        nanoseconds = round(now.timestamp() * 1_000_000) * 1000
        self._last_nanoseconds = max(nanoseconds, self._last_nanoseconds + 1)
        name = f"{about.name}.{self._last_nanoseconds:x}"
        return name if len(name) <= 253 and _SUBDOMAIN.fullmatch(name) else self._new_uuid()
