"""The objects of one kind in memory, with indices; every write tells what changed.

An object is known by its key. The version that is cached already changes nothing, an older one is refused, and another
UID under the same key is a deletion followed by an addition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import structlog

from trainop.runtime.objects import HasMetadata, Key

T = TypeVar("T", bound=HasMetadata)

Index: TypeAlias = Callable[[T], Iterable[str]]
"""The values under which an object is found: a pure function, called again to take the object out."""

INDEX_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""How a function meets an object of a shape that it did not expect."""

log = structlog.get_logger(__name__)


class Change(NamedTuple, Generic[T]):
    """`old` is None for an addition, `new` for a deletion; a deletion that nobody saw has `final_state_unknown`."""

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

    def __init__(self, indices: Mapping[str, Index[T]] | None = None) -> None:
        self._objects: dict[Key, T] = {}
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
        key = obj.metadata.key
        old = self._objects.get(key)
        if old is None:
            self._set(key, None, obj)
            return [Change(key, None, obj)]
        before, after = old.metadata, obj.metadata
        if before.uid == after.uid:
            if before.resource_version == after.resource_version:
                return []
            if not any_version and is_older(after.resource_version, before.resource_version):
                return None
            self._set(key, old, obj)
            return [Change(key, old, obj)]
        if not any_version and is_older(after.resource_version, before.resource_version):
            return None
        self._set(key, old, obj)
        return [Change(key, old, None, final_state_unknown=True), Change(key, None, obj)]

    def remove(self, final: T) -> Sequence[Change[T]]:
        """Takes out the object whose last state is `final`; nothing happens if another UID has its place."""
        key = final.metadata.key
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
        return [Change(key, obj, None, final_state_unknown=True) for key, obj in gone]

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
        except INDEX_FAULTS as error:
            log.warning("index failed", index=name, key=str(obj.metadata.key), error=repr(error))
            return ()
