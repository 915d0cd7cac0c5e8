"""All objects in memory, one counter of versions, and the recent past of every resource.

Objects are JSON values that nobody changes, with their encoding beside them, so that reads and watches never encode.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from trainop.runtime.objects.metadata import Json

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name; sorts as etcd does."""


class Stored:
    """One version of one object, in the storage version of its kind."""

    __slots__ = ("_value", "body", "key", "uid", "version", "views")

    def __init__(self, key: Key, version: int, body: bytes, value: Json | None = None) -> None:
        self.key = key
        self.version = version
        self.body = body
        self.views: dict[str, bytes] = {}
        """Encodings in other API versions, made when first asked for."""
        self._value = value
        self.uid = str(self.value["metadata"].get("uid", ""))

    @property
    def value(self) -> Json:
        """The object; not to be changed. Decoded anew if this version is history."""
        return self._value if self._value is not None else msgspec.json.decode(self.body, type=dict)

    def at_version(self, version: int) -> Stored:
        """The same object as if written at `version`."""
        value = dict(self.value)
        value["metadata"] = value["metadata"] | {"resourceVersion": str(version)}
        return Stored(self.key, version, msgspec.json.encode(value), value)

    def become_history(self) -> None:
        """Keep the bytes only: five times smaller."""
        self._value = None


@dataclass(frozen=True, slots=True)
class Change:
    """One write: created (no `old`), updated, or deleted (no `new`; `old` then is the final state)."""

    version: int
    old: Stored | None
    new: Stored | None
    deleted: Stored | None = None
    """Of a deletion, the last state with the version of the deletion, as watches show it."""

    @property
    def key(self) -> Key:
        stored = self.new or self.old
        assert stored is not None  # noqa: S101 - one of them exists by construction
        return stored.key


@dataclass(slots=True)
class Table:
    """The objects of one resource and their history, oldest first, at most `limit` changes of it."""

    name: str
    limit: int
    objects: dict[Key, Stored] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    forgotten: int = 0
    """Changes up to this version are no longer known."""
    trimmed: int = 0
    """How many changes were cut off the front of `history` so far: positions stay valid across cuts."""
    closed: bool = False
    """No longer served: watches end."""
    wakers: dict[Callable[[], object], None] = field(default_factory=dict)
    """Called after every change, in the order in which they came; watches wait on them."""
    _sorted: list[Key] | None = None

    def keys(self, namespace: str | None = None) -> list[Key]:
        """All keys in order, or those of one namespace."""
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        if namespace is None:
            return self._sorted
        first = bisect.bisect_left(self._sorted, (namespace, ""))
        last = bisect.bisect_left(self._sorted, (namespace + "\0", ""))
        return self._sorted[first:last]

    def position_after(self, version: int) -> int:
        """Where a reader stands that has seen everything up to `version`."""
        index = bisect.bisect_right(self.history, version, key=lambda change: change.version)
        return self.trimmed + index

    def since(self, position: int, limit: int | None = None) -> list[Change] | None:
        """At most `limit` changes from `position` on; None if some of them are forgotten."""
        if position < self.trimmed:
            return None
        first = position - self.trimmed
        return self.history[first : None if limit is None else first + limit]

    def state_at(self, version: int) -> dict[Key, Stored] | None:
        """What the table held at `version`, by undoing what came later; None if that is forgotten."""
        if version < self.forgotten:
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
        """Take the change in, and wake who waits."""
        if change.new is None:
            del self.objects[change.key]
            self._sorted = None
        else:
            if change.old is None:
                self._sorted = None
            self.objects[change.key] = change.new
        if change.old is not None:
            change.old.become_history()
        if change.deleted is not None:
            change.deleted.become_history()
        self.history.append(change)
        if len(self.history) > self.limit + self.limit // 4:
            self._forget(len(self.history) - self.limit)
        for wake in tuple(self.wakers):
            wake()

    def close(self) -> None:
        """End the watches: the resource is no longer served."""
        self.closed = True
        for wake in tuple(self.wakers):
            wake()

    def forget_all(self) -> None:
        self._forget(len(self.history))

    def _forget(self, count: int) -> None:
        if count:
            self.forgotten = self.history[count - 1].version
            del self.history[:count]
            self.trimmed += count


Listener = Callable[["Table", Change], None]


class Store:
    """Tables by name (`pods`, `pytorchjobs.kubeflow.org`) under one version counter; a write is one call, so atomic."""

    def __init__(self, history: int) -> None:
        self.version = 1
        self._history = history
        self._floor = 0
        self._tables: dict[str, Table] = {}
        self._listeners: list[Listener] = []
        self._by_uid: dict[str, tuple[str, Key]] = {}

    def table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(name, self._history, forgotten=self._floor)
        return self._tables[name]

    def tables(self) -> Iterator[Table]:
        yield from tuple(self._tables.values())

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every write, in order, within the write."""
        self._listeners.append(listener)

    def get(self, table: str, key: Key) -> Stored | None:
        return self.table(table).objects.get(key)

    def find_uid(self, uid: str) -> tuple[str, Key] | None:
        """The table and key of the living object with that UID."""
        return self._by_uid.get(uid)

    def put(self, table: str, key: Key, value: Json) -> Stored:
        """Create or replace; sets `metadata.resourceVersion` of `value`, which belongs to the store from now on."""
        held = self.table(table)
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)
        new = Stored(key, self.version, msgspec.json.encode(value), value)
        self._by_uid[new.uid] = (table, key)
        self._record(held, Change(self.version, held.objects.get(key), new))
        return new

    def remove(self, table: str, key: Key) -> Stored:
        """Delete for good; returns the final state, with the version of the deletion."""
        held = self.table(table)
        old = held.objects[key]
        self.version += 1
        final = old.at_version(self.version)
        self._by_uid.pop(old.uid, None)
        self._record(held, Change(self.version, old, None, final))
        return final

    def load(self, table: str, stored: Stored) -> None:
        """Put back what was persisted, without a change that anybody sees."""
        held = self.table(table)
        held.objects[stored.key] = stored
        held._sorted = None  # noqa: SLF001 - the store and its tables are one unit
        self._by_uid[stored.uid] = (table, stored.key)

    def resume(self, version: int) -> None:
        """Continue counting after a restart; what happened before is not known to watches."""
        self.version = max(self.version, version)
        self.compact()

    def compact(self) -> None:
        """Forget all history."""
        self._floor = self.version
        for held in self._tables.values():
            held.forget_all()
            held.forgotten = self.version

    def _record(self, held: Table, change: Change) -> None:
        held.record(change)
        for listen in self._listeners:
            listen(held, change)
