"""Event handlers that turn changes of objects into keys in a work queue (controller-runtime `pkg/handler`).

Predicates filter the events of an informer, a mapper returns the keys to reconcile, a pace sets priority and delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trainop.runtime.cache.informer import attempt_each
from trainop.runtime.controller.workqueue import LOW_PRIORITY, WorkQueue
from trainop.runtime.objects.metadata import HasMetadata, Key, OwnerReference, Resource

T = TypeVar("T", bound=HasMetadata)
T_contra = TypeVar("T_contra", bound=HasMetadata, contravariant=True)


class Mapper(Protocol[T_contra]):
    """Maps an object to the keys to reconcile when it changes."""

    def keys(self, obj: T_contra, /) -> Iterable[Key]:
        """The keys for an object that was added, updated or deleted."""
        ...

    def keys_of_lost(self, key: Key, /) -> Iterable[Key]:
        """The keys for a deleted object of which only the key is known."""
        ...


class EnqueueObject:
    """Maps an object to its own key (controller-runtime `EnqueueRequestForObject`)."""

    def keys(self, obj: HasMetadata, /) -> Iterable[Key]:
        return (obj.metadata.key,)

    def keys_of_lost(self, key: Key, /) -> Iterable[Key]:
        return (key,)


@dataclass(frozen=True, slots=True)
class EnqueueOwner:
    """Maps an object to its controller, if that has the group and kind of `resource`; with `only_controller=False`, to
    all its owners of that group and kind.

    Version and UID of the owner are not compared: if an owner was recreated under the same name and waits for the name
    of a child, the deletion of its predecessor's child must enqueue it (controller-runtime
    `pkg/handler/enqueue_owner.go`).
    """

    resource: Resource
    only_controller: bool = True

    def keys(self, obj: HasMetadata, /) -> Iterable[Key]:
        namespace = obj.metadata.namespace if self.resource.namespaced else ""
        return [Key(namespace, owner.name) for owner in obj.metadata.owner_references if self._matches(owner)]

    def keys_of_lost(self, _key: Key, /) -> Iterable[Key]:
        return ()  # without the object, its owner is unknown

    def _matches(self, owner: OwnerReference) -> bool:
        return (
            owner.kind == self.resource.kind
            and (bool(owner.controller) or not self.only_controller)
            and _group_of(owner.api_version) == self.resource.group
        )


@dataclass(frozen=True, slots=True)
class EnqueueMapped(Generic[T]):
    """Maps an object to the keys that a function returns (controller-runtime `EnqueueRequestsFromMapFunc`)."""

    names: Callable[[T], Iterable[Key]]

    def keys(self, obj: T, /) -> Iterable[Key]:
        return self.names(obj)

    def keys_of_lost(self, _key: Key, /) -> Iterable[Key]:
        return ()


class Predicate:
    """Filters events; methods that are not overridden accept all. Must have no side effects, because predicates are not
    called for events that an earlier predicate has rejected."""

    def add(self, _obj: Any, /) -> bool:
        return True

    def update(self, _old: Any, _new: Any, /) -> bool:
        return True

    def delete(self, _obj: Any, /) -> bool:
        """Not called if only the key of the deleted object is known."""
        return True


@dataclass(frozen=True, slots=True)
class Changed(Predicate):
    """Accepts updates only if `part(obj)` has changed, such as `lambda job: job.metadata.generation`."""

    part: Callable[[Any], object]

    def update(self, old: Any, new: Any, /) -> bool:
        return self.part(old) != self.part(new)


@dataclass(frozen=True, slots=True)
class Matching(Predicate):
    """Accepts events of objects for which `test` is true; for an update, the new object."""

    test: Callable[[Any], bool]

    def add(self, obj: Any, /) -> bool:
        return self.test(obj)

    def update(self, _old: Any, new: Any, /) -> bool:
        return self.test(new)

    def delete(self, obj: Any, /) -> bool:
        return self.test(obj)


class Urgency(NamedTuple):
    """The priority of the keys of an event, and the delay in seconds before they are due."""

    priority: int = 0
    seconds: float = 0.0


NORMAL = Urgency()
LOW = Urgency(LOW_PRIORITY)


class Pace:
    """Chooses the urgency of events. Default: no delay, and low priority for initial lists and resyncs (controller-
    runtime `handler.WithLowPriorityWhenUnchanged`)."""

    def add(self, _obj: Any, initial: bool, /) -> Urgency:
        return LOW if initial else NORMAL

    def update(self, old: Any, new: Any, /) -> Urgency:
        return LOW if old.metadata.resource_version == new.metadata.resource_version else NORMAL

    def delete(self, _obj: Any, /) -> Urgency:
        """`_obj` is None if only the key of the deleted object is known."""
        return NORMAL


class Enqueue(Generic[T]):
    """Informer event handler that adds keys to a controller's queue."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        mapper: Mapper[T],
        predicates: Iterable[Predicate] = (),
        pace: Pace | None = None,
    ) -> None:
        self._queue = queue
        self._mapper = mapper
        self._predicates = tuple(predicates)
        self._pace = pace or Pace()

    def add(self, obj: T, initial: bool) -> None:
        if all(predicate.add(obj) for predicate in self._predicates):
            self._enqueue(self._mapper.keys(obj), self._pace.add(obj, initial))

    def update(self, old: T, new: T) -> None:
        if all(predicate.update(old, new) for predicate in self._predicates):
            keys: list[Key] = []
            try:
                attempt_each(lambda obj: keys.extend(self._mapper.keys(obj)), (old, new))
            finally:
                if keys:  # most events of a shared informer belong to another controller
                    self._enqueue(keys, self._pace.update(old, new))

    def delete(self, obj: T | None, key: Key, final_state_unknown: bool) -> None:
        if obj is None:
            self._enqueue(self._mapper.keys_of_lost(key), self._pace.delete(None))
        elif all(predicate.delete(obj) for predicate in self._predicates):
            self._enqueue(self._mapper.keys(obj), self._pace.delete(obj))

    def _enqueue(self, keys: Iterable[Key], urgency: Urgency) -> None:
        priority, seconds = urgency
        for key in dict.fromkeys(keys):
            self._queue.add_after(key, seconds, priority)


def _group_of(api_version: str) -> str | None:
    """The group of an apiVersion `group/version` or `version`; None if it is invalid."""
    parts = api_version.split("/")
    return {1: "", 2: parts[0]}.get(len(parts))
