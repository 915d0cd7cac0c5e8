"""The objects of one kind in memory, with indices; every write tells what changed.

An object is known by its key. The version that is cached already changes nothing, an older one is refused, and another
UID under the same key is a deletion followed by an addition.

An object that cannot be decoded is not in the store, and neither is its last version that could be: that is no longer
true, and would pass for the truth until the object changes. What is wrong with it is in `unreadable`. To handlers it
has gone, with an unknown final state, so that whatever depends on it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import structlog

from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.metadata import HasMetadata, Key
from trainop.runtime.texts import cut

T = TypeVar("T", bound=HasMetadata)

Index: TypeAlias = Callable[[T], Iterable[str]]
"""The values under which an object is found: a pure function, called again to take the object out."""

log = structlog.get_logger(__name__)


class Change(NamedTuple, Generic[T]):
    """`old` is None for an addition, `new` for a deletion; a deletion that nobody saw has `final_state_unknown`. Both
    are None for an object that cannot be read, and was not readable before."""

    key: Key
    old: T | None
    new: T | None
    final_state_unknown: bool = False


def by_namespace(obj: HasMetadata) -> tuple[str, ...]:
    """Index: the namespace of the object."""
    return (obj.metadata.namespace,)


def by_controller(obj: HasMetadata) -> tuple[str, ...]:
    """Index: the UID of the owner that controls the object."""
    owner = obj.metadata.controller
    return (owner.uid,) if owner else ()


def by_label(label: str) -> Callable[[HasMetadata], tuple[str, ...]]:
    """Index: the value of one label."""

    def values(obj: HasMetadata) -> tuple[str, ...]:
        value = obj.metadata.labels.get(label)
        return () if value is None else (value,)

    return values


def is_older(version: str, than: str) -> bool:
    """Whether resourceVersion `version` precedes `than`: decimals by length, then by digits; anything else never
    (apimachinery `pkg/util/resourceversion`)."""
    if not (version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


class Store(Generic[T]):
    """Read it freely, never mutate what it returns; only its informer writes."""

    def __init__(
        self, indices: Mapping[str, Index[T]] | None = None, *, index_failed: Callable[[], None] = lambda: None
    ) -> None:
        """`index_failed` is called for each object that an index raises an exception for."""
        self._index_failed = index_failed
        self._objects: dict[Key, T] = {}
        self._unreadable: dict[Key, DecodeError] = {}
        self._indices: dict[str, Index[T]] = {}
        self._buckets: dict[str, dict[str, dict[Key, None]]] = {}
        for name, index in (indices or {}).items():
            self.add_index(name, index)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def list(self, namespace: str | None = None) -> Sequence[T]:
        """All objects, or those of one namespace, oldest in the store first."""
        if namespace is None:
            return list(self._objects.values())
        return [obj for key, obj in self._objects.items() if key.namespace == namespace]

    @property
    def unreadable(self) -> Mapping[Key, DecodeError]:
        """The objects that exist and cannot be decoded as they are now."""
        return self._unreadable

    def keys(self) -> Collection[Key]:
        return self._objects.keys()

    def by_index(self, name: str, value: str) -> Sequence[T]:
        """The objects that index `name` puts under `value`; raises `KeyError` if there is no such index."""
        return [self._objects[key] for key in self._buckets[name].get(value, ())]

    def add_index(self, name: str, index: Index[T]) -> None:
        """Indexes what is there and what comes; raises `ValueError` if `name` is taken by another function."""
        if name in self._indices:
            if self._indices[name] != index:
                raise ValueError(f"index {name!r} exists with another function")
            return
        self._indices[name] = index
        self._buckets[name] = {}
        for key, obj in self._objects.items():
            self._enter(name, key, self._values(name, obj))

    def put(self, obj: T, *, any_version: bool = False) -> Sequence[Change[T]] | None:
        """Stores `obj` and tells what changed; None if it is older than what is cached.

        `any_version` takes older versions too: what a list says is true, even after a restored backup.
        """
        key, after = obj.metadata.key, obj.metadata
        old = self._objects.get(key)
        same = old is not None and old.metadata.uid == after.uid
        if old is not None and same and old.metadata.resource_version == after.resource_version:
            return []
        if not any_version and is_older(after.resource_version, self._version(key)):
            return None
        self._unreadable.pop(key, None)
        self._set(key, old, obj)
        if old is None or same:
            return [Change(key, old, obj)]
        return [Change(key, old, None, final_state_unknown=True), Change(key, None, obj)]

    def remove(self, final: T) -> Sequence[Change[T]]:
        """Takes out the object whose last state is `final`; nothing happens if another UID has its place."""
        key = final.metadata.key
        if key in self._unreadable:
            return self.forget(key)
        old = self._objects.get(key)
        if old is None or old.metadata.uid != final.metadata.uid:
            return []
        self._set(key, old, None)
        return [Change(key, final, None)]

    def prune(self, keep: Collection[Key], covers: Callable[[str], bool] | None = None) -> Sequence[Change[T]]:
        """Takes out all but `keep`, of the namespaces that `covers` names or of all: their final states are unknown."""
        gone = [
            (key, obj)
            for key, obj in self._objects.items()
            if key not in keep and (covers is None or covers(key.namespace))
        ]
        for key, obj in gone:
            self._set(key, obj, None)
        lost = [key for key in self._unreadable if key not in keep and (covers is None or covers(key.namespace))]
        changes: list[Change[T]] = [Change(key, obj, None, final_state_unknown=True) for key, obj in gone]
        return changes + [change for key in lost for change in self.forget(key)]

    def reject(self, key: Key, error: DecodeError, *, any_version: bool = False) -> Sequence[Change[T]] | None:
        """Notes that the object of this key cannot be decoded; None if what is known of it is newer."""
        known, version = self._version(key), _version_of(error)
        if key in self._unreadable and version and version == known:
            return []
        if not any_version and is_older(version, known):
            return None
        error.__traceback__ = error.__context__ = error.__cause__ = None  # they hold the bytes
        self._unreadable[key] = error
        old = self._objects.get(key)
        if old is not None:
            self._set(key, old, None)
        return [Change(key, old, None, final_state_unknown=True)]

    def forget(self, key: Key) -> Sequence[Change[T]]:
        """The object of this key has gone; nothing happens if it could be read."""
        if self._unreadable.pop(key, None) is None:
            return []
        return [Change(key, None, None, final_state_unknown=True)]

    def _version(self, key: Key) -> str:
        """The resourceVersion that is known of this object; empty if none is."""
        obj = self._objects.get(key)
        return obj.metadata.resource_version if obj is not None else _version_of(self._unreadable.get(key))

    def _set(self, key: Key, old: T | None, new: T | None) -> None:
        for name in self._indices:
            before = () if old is None else self._values(name, old)
            after = () if new is None else self._values(name, new)
            if before != after:  # an update hardly ever moves an object
                self._leave(name, key, before)
                self._enter(name, key, after)
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new

    def _enter(self, name: str, key: Key, values: Iterable[str]) -> None:
        for value in values:
            self._buckets[name].setdefault(value, {})[key] = None

    def _leave(self, name: str, key: Key, values: Iterable[str]) -> None:
        for value in values:
            bucket = self._buckets[name].get(value)
            if bucket is not None:
                bucket.pop(key, None)
                if not bucket:
                    del self._buckets[name][value]

    def _values(self, name: str, obj: T) -> tuple[str, ...]:
        try:
            return tuple(self._indices[name](obj))
        # An index that fails for one object must not keep it, or any other, out of the store.
        except Exception as error:  # noqa: BLE001
            self._index_failed()
            log.warning("index failed", index=name, key=str(obj.metadata.key), error=cut(repr(error)))
            return ()


def _version_of(error: DecodeError | None) -> str:
    return error.remains.metadata.resource_version if error is not None and error.remains is not None else ""
