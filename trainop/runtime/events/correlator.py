"""Event correlation: deduplicates repeated events, aggregates similar ones and rate-limits each object. No I/O.

Semantics and default limits are those of client-go `tools/record/events_cache.go`.
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
    """Limits of event correlation.

    Each object may have `burst` events of a type, and then one per `refill` seconds. From the `combine_from`th distinct
    message with the same object, type and reason on, messages are combined into one event, until `combine_within`
    seconds pass without such an event.
    """

    burst: int = 25
    refill: float = 300.0
    combine_from: int = 10
    combine_within: float = 600.0
    remembered: int = 4096
    """Size of each of the LRU caches: rate limits, message groups and events."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event to be written: created if `count` is 1, otherwise patched with a new count. `name` is its name."""

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
        """The core/v1 Event as JSON."""
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
        """The patch for an Event that exists already."""
        return {"count": self.count, "lastTimestamp": timestamp(self.last), "message": self.message}


class _LruCache(Generic[K, V]):
    """A mapping of at most `size` entries that evicts the least recently used one."""

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
class _MessageGroup:
    """The distinct messages of events with the same object, type and reason, and the time of the last one."""

    last: float
    messages: set[str] = field(default_factory=set)


class Correlator:
    """The state of event correlation, one per recorder.

    `new_uuid` generates names for events about objects whose own name is too long or invalid for an event's name.
    """

    def __init__(self, clock: Clock, new_uuid: Callable[[], str], limits: EventLimits | None = None) -> None:
        self._clock = clock
        self._new_uuid = new_uuid
        self._limits = limits or EventLimits()
        size = self._limits.remembered
        self._similar: _LruCache[Hashable, _MessageGroup] = _LruCache(size)
        self._written: _LruCache[Hashable, EventRecord] = _LruCache(size)
        self._buckets: _LruCache[Hashable, TokenBucket] = _LruCache(size)
        self._last_nanoseconds = 0

    def correlate(self, about: ObjectReference, type_: str, reason: str, message: str) -> EventRecord | None:
        """The event to write; None if the rate limit of the object and type is exceeded."""
        whole, message, reason = message, cut(message), cut(reason, LONGEST_REASON)
        group = (about.identity, type_, reason)
        combined = self._is_combined(group, message)
        key: Hashable = group if combined else (group, about.field_path, message)
        if combined:
            message = cut(COMBINED + whole)
        previous = self._written.find(key)
        now = self._clock.now()
        if previous is None:
            record = EventRecord(self._name(about, now), about, type_, reason, message, 1, now, now, combined)
        else:
            record = replace(previous, message=message, count=previous.count + 1, last=now)
        # Events that exceed the rate limit are counted, too, so that the next write has the total count.
        self._written.put(key, record)
        bucket = self._buckets.get((about.identity, type_), self._new_bucket)
        return record if bucket.take() else None

    def _new_bucket(self) -> TokenBucket:
        return TokenBucket(self._clock, 1 / self._limits.refill, self._limits.burst)

    def _is_combined(self, group: Hashable, message: str) -> bool:
        now = self._clock.monotonic()
        similar = self._similar.get(group, lambda: _MessageGroup(now))
        if now - similar.last > self._limits.combine_within:
            similar.messages.clear()
        similar.last = now
        if message not in similar.messages and len(similar.messages) < self._limits.combine_from:
            similar.messages.add(message)
        return len(similar.messages) >= self._limits.combine_from

    def _name(self, about: ObjectReference, now: datetime) -> str:
        """`<object>.<hex of Unix nanoseconds>`. Unique in this process even if the clock does not advance."""
        nanoseconds = round(now.timestamp() * 1_000_000) * 1000
        self._last_nanoseconds = max(nanoseconds, self._last_nanoseconds + 1)
        name = f"{about.name}.{self._last_nanoseconds:x}"
        return name if len(name) <= 253 and _SUBDOMAIN.fullmatch(name) else self._new_uuid()
