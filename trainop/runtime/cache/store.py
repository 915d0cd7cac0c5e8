"""In-memory store of the objects of one kind, with indices (client-go `cache.Indexer`). Each write returns the changes.

A write of the cached version is a no-op, an older version is ignored, and a new UID under the same key counts as a
deletion followed by an addition.

An object that cannot be decoded is removed from the store, because its last readable version is outdated; the error
is in `unreadable`. Handlers see a deletion with unknown final state, so that dependent objects are reconciled.
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
"""The index values of an object. Must be a pure function: it is called again to remove the object from the index."""

log = structlog.get_logger(__name__)


class Change(NamedTuple, Generic[T]):
    """One change of the store. `old` is None for an addition, `new` for a deletion; both are None if neither the old
    nor the new version could be decoded. `final_state_unknown` marks a deletion whose event was missed."""

    key: Key
    old: T | None
    new: T | None
    final_state_unknown: bool = False


def by_namespace(obj: HasMetadata) -> tuple[str, ...]:
    """Index: the namespace of the object."""
    return (obj.metadata.namespace,)


def by_controller(obj: HasMetadata) -> tuple[str, ...]:
    """Index: the UID of the controller owner reference."""
    owner = obj.metadata.controller
    return (owner.uid,) if owner else ()


def by_label(label: str) -> Callable[[HasMetadata], tuple[str, ...]]:
    """Index: the value of one label."""

    def values(obj: HasMetadata) -> tuple[str, ...]:
        value = obj.metadata.labels.get(label)
        return () if value is None else (value,)

    return values


def is_older(version: str, than: str) -> bool:
    """Whether resourceVersion `version` is older than `than`. Decimal numbers are compared by value; anything else is
    never older (apimachinery `pkg/util/resourceversion`)."""
    if not (version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


class Store(Generic[T]):
    """The objects of one kind by key. Only the informer writes; readers must not mutate the objects."""

    def __init__(
        self, indices: Mapping[str, Index[T]] | None = None, *, index_failed: Callable[[], None] = lambda: None
    ) -> None:
        """`index_failed` is called whenever an index function raises an exception."""
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
        """The object, None if it does not exist or cannot be decoded."""
        return self._objects.get(key)

    def list(self, namespace: str | None = None) -> Sequence[T]:
        """All objects, or those of one namespace, in the order in which they were added."""
        if namespace is None:
            return list(self._objects.values())
        return [obj for key, obj in self._objects.items() if key.namespace == namespace]

    @property
    def unreadable(self) -> Mapping[Key, DecodeError]:
        """The objects whose current version cannot be decoded, with the error of each."""
        return self._unreadable

    def keys(self) -> Collection[Key]:
        """The keys of all objects, as a live view."""
        return self._objects.keys()

    def by_index(self, name: str, value: str) -> Sequence[T]:
        """The objects for which index `name` yields `value`. Raises `KeyError` if there is no such index."""
        return [self._objects[key] for key in self._buckets[name].get(value, ())]

    def add_index(self, name: str, index: Index[T]) -> None:
        """Adds an index over present and future objects. Raises `ValueError` if `name` exists with another function."""
        if name in self._indices:
            if self._indices[name] != index:
                raise ValueError(f"index {name!r} exists with another function")
            return
        self._indices[name] = index
        self._buckets[name] = {}
        for key, obj in self._objects.items():
            self._enter(name, key, self._values(name, obj))

    def put(self, obj: T, *, any_version: bool = False) -> Sequence[Change[T]] | None:
        """Stores `obj` and returns the changes; None if it is older than the cached version.

        `any_version` also accepts older versions: a list is authoritative, even after a restore of etcd.
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
        """Removes the object whose final state is `final`, unless the key now belongs to another UID."""
        key = final.metadata.key
        if key in self._unreadable:
            return self.forget(key)
        old = self._objects.get(key)
        if old is None or old.metadata.uid != final.metadata.uid:
            return []
        self._set(key, old, None)
        return [Change(key, final, None)]

    def prune(self, keep: Collection[Key], covers: Callable[[str], bool] | None = None) -> Sequence[Change[T]]:
        """Removes all objects not in `keep`, with unknown final state; only in namespaces that `covers` accepts."""
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
        """Records that the object of this key cannot be decoded; None if `error` is older than the cached version."""
        known, version = self._version(key), _version_of(error)
        if key in self._unreadable and version and version == known:
            return []
        if not any_version and is_older(version, known):
            return None
        error.__traceback__ = error.__context__ = error.__cause__ = None  # these keep the undecoded bytes alive
        self._unreadable[key] = error
        old = self._objects.get(key)
        if old is not None:
            self._set(key, old, None)
        return [Change(key, old, None, final_state_unknown=True)]

    def forget(self, key: Key) -> Sequence[Change[T]]:
        """Removes the object of this key from `unreadable`; no-op if it is not there."""
        if self._unreadable.pop(key, None) is None:
            return []
        return [Change(key, None, None, final_state_unknown=True)]

    def _version(self, key: Key) -> str:
        """The last known resourceVersion of the object; empty if there is none."""
        obj = self._objects.get(key)
        return obj.metadata.resource_version if obj is not None else _version_of(self._unreadable.get(key))

    def _set(self, key: Key, old: T | None, new: T | None) -> None:
        for name in self._indices:
            before = () if old is None else self._values(name, old)
            after = () if new is None else self._values(name, new)
            if before != after:  # few updates change an index value
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
        # An index that fails for one object must not keep this or any other object out of the store.
        except Exception as error:  # noqa: BLE001
            self._index_failed()
            log.warning("index failed", index=name, key=str(obj.metadata.key), error=cut(repr(error)))
            return ()


def _version_of(error: DecodeError | None) -> str:
    return error.remains.metadata.resource_version if error is not None and error.remains is not None else ""
