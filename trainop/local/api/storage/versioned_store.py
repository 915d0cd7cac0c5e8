"""The object store: all objects in memory, one resourceVersion counter, and a bounded history per resource.

Takes the place of etcd and the watch cache. Objects are immutable JSON values, stored together with their encoding, so
that reads and watches never encode. Listeners (garbage collector, CRD registrar, journal) run within each write.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from trainop.runtime import Json

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name; sorts like keys of etcd."""


class Stored:
    """One revision of one object, in the storage version of its kind; `version` is its resourceVersion."""

    __slots__ = ("_value", "body", "key", "uid", "version", "views")

    def __init__(self, key: Key, version: int, body: bytes, value: Json | None = None) -> None:
        self.key = key
        self.version = version
        self.body = body
        self.views: dict[str, bytes] = {}
        """Encodings in other API versions, filled on demand."""
        self._value = value
        self.uid = str(self.value["metadata"].get("uid", ""))

    @property
    def value(self) -> Json:
        """The object; must not be mutated. Decoded on each access after `drop_value`."""
        return self._value if self._value is not None else msgspec.json.decode(self.body, type=dict)

    def at_version(self, version: int) -> Stored:
        """The same object with another resourceVersion."""
        value = dict(self.value)
        value["metadata"] = value["metadata"] | {"resourceVersion": str(version)}
        return Stored(self.key, version, msgspec.json.encode(value), value)

    def drop_value(self) -> None:
        """Keep only the encoding, which takes a fifth of the memory; for superseded revisions."""
        self._value = None


@dataclass(frozen=True, slots=True)
class Change:
    """One write: a creation (`old` is None), an update, or a deletion (`new` is None, `old` is the last state)."""

    version: int
    old: Stored | None
    new: Stored | None
    deleted: Stored | None = None
    """Deletion: the last state with the resourceVersion of the deletion, as DELETED events show it."""

    @property
    def key(self) -> Key:
        """The key of the changed object."""
        stored = self.new or self.old
        assert stored is not None  # noqa: S101 - one of them exists by construction
        return stored.key


@dataclass(slots=True)
class Table:
    """The objects of one resource and their history, oldest first, of about `limit` changes."""

    name: str
    limit: int
    objects: dict[Key, Stored] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    compacted_version: int = 0
    """Changes up to this resourceVersion are no longer in the history; older watches and lists get 410."""
    trimmed: int = 0
    """The number of changes removed from the front of `history`; positions count from the first change ever."""
    closed: bool = False
    """The resource is no longer served; watches end."""
    wakers: dict[Callable[[], object], None] = field(default_factory=dict)
    """Callbacks of watches, called after every change in the order of registration (a dict used as ordered set)."""
    _sorted: list[Key] | None = None

    def keys(self, namespace: str | None = None) -> list[Key]:
        """All keys in order, or those of one namespace; must not be mutated."""
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        if namespace is None:
            return self._sorted
        first = bisect.bisect_left(self._sorted, (namespace, ""))
        last = bisect.bisect_left(self._sorted, (namespace + "\0", ""))
        return self._sorted[first:last]

    def position_after(self, version: int) -> int:
        """The position of the first change after `version`."""
        index = bisect.bisect_right(self.history, version, key=lambda change: change.version)
        return self.trimmed + index

    def since(self, position: int, limit: int | None = None) -> list[Change] | None:
        """At most `limit` changes from `position` on; None if the history no longer reaches back to it."""
        if position < self.trimmed:
            return None
        first = position - self.trimmed
        return self.history[first : None if limit is None else first + limit]

    def state_at(self, version: int) -> dict[Key, Stored] | None:
        """The objects at `version`, computed by undoing later changes; None if the history is too short."""
        if version < self.compacted_version:
            return None
        later = self.since(self.position_after(version)) or []
        if not later:
            return self.objects
        objects = dict(self.objects)
        for change in reversed(later):
            if change.old is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.old
        return objects

    def record(self, change: Change) -> None:
        """Apply the change, append it to the history and wake the watches."""
        if change.new is None:
            del self.objects[change.key]
            self._sorted = None
        else:
            if change.old is None:
                self._sorted = None
            self.objects[change.key] = change.new
        if change.old is not None:
            change.old.drop_value()
        if change.deleted is not None:
            change.deleted.drop_value()
        self.history.append(change)
        if len(self.history) > self.limit + self.limit // 4:
            self._trim_history(len(self.history) - self.limit)
        for wake in tuple(self.wakers):
            wake()

    def close(self) -> None:
        """End all watches, because the resource is no longer served."""
        self.closed = True
        for wake in tuple(self.wakers):
            wake()

    def clear_history(self) -> None:
        """Drop the whole history."""
        self._trim_history(len(self.history))

    def _trim_history(self, count: int) -> None:
        if count:
            self.compacted_version = self.history[count - 1].version
            del self.history[:count]
            self.trimmed += count


Listener = Callable[["Table", Change], None]


class Store:
    """Tables by resource (`pods`, `pytorchjobs.kubeflow.org`) with one resourceVersion counter.

    Writes are synchronous, so they are atomic on the event loop. `version` is the resourceVersion of the last write.
    """

    def __init__(self, history: int) -> None:
        self.version = 1
        self._history = history
        self._compacted_version = 0
        self._tables: dict[str, Table] = {}
        self._listeners: list[Listener] = []
        self._by_uid: dict[str, tuple[str, Key]] = {}

    def table(self, name: str) -> Table:
        """The table of a resource, created on first use."""
        if name not in self._tables:
            self._tables[name] = Table(name, self._history, compacted_version=self._compacted_version)
        return self._tables[name]

    def tables(self) -> Iterator[Table]:
        """All tables; a snapshot, so that writes are allowed during the iteration."""
        yield from tuple(self._tables.values())

    def listen(self, listener: Listener) -> None:
        """Call `listener` synchronously after every write, in the order of registration."""
        self._listeners.append(listener)

    def get(self, table: str, key: Key) -> Stored | None:
        """The current revision of an object; None if it does not exist."""
        return self.table(table).objects.get(key)

    def find_by_uid(self, uid: str) -> tuple[str, Key] | None:
        """The table and key of the existing object with this UID."""
        return self._by_uid.get(uid)

    def put(self, table: str, key: Key, value: Json) -> Stored:
        """Create or replace an object. Takes ownership of `value` and sets its `metadata.resourceVersion`."""
        held = self.table(table)
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)
        new = Stored(key, self.version, msgspec.json.encode(value), value)
        self._by_uid[new.uid] = (table, key)
        self._record(held, Change(self.version, held.objects.get(key), new))
        return new

    def remove(self, table: str, key: Key) -> Stored:
        """Remove an object; returns its last state with the resourceVersion of the deletion."""
        held = self.table(table)
        old = held.objects[key]
        self.version += 1
        final = old.at_version(self.version)
        self._by_uid.pop(old.uid, None)
        self._record(held, Change(self.version, old, None, final))
        return final

    def load(self, table: str, stored: Stored) -> None:
        """Restore a persisted object without recording a change."""
        held = self.table(table)
        held.objects[stored.key] = stored
        held._sorted = None  # noqa: SLF001 - the store and its tables are one unit
        self._by_uid[stored.uid] = (table, stored.key)

    def resume(self, version: int) -> None:
        """Continue the counter after a restart, without history: watches from older versions get 410."""
        self.version = max(self.version, version)
        self.compact()

    def compact(self) -> None:
        """Drop all history, like a compaction of etcd."""
        self._compacted_version = self.version
        for held in self._tables.values():
            held.clear_history()
            held.compacted_version = self.version

    def _record(self, held: Table, change: Change) -> None:
        held.record(change)
        for listen in self._listeners:
            listen(held, change)
