"""From an object's change to the keys it concerns: predicates choose the events, a mapper names the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trainop.runtime.controller.workqueue import LOW_PRIORITY, WorkQueue
from trainop.runtime.handling import attempt_each
from trainop.runtime.objects.metadata import HasMetadata, Key, OwnerReference
from trainop.runtime.objects.resource import Resource

T = TypeVar("T", bound=HasMetadata)
T_contra = TypeVar("T_contra", bound=HasMetadata, contravariant=True)


class Mapper(Protocol[T_contra]):
    """Names the keys that an object concerns."""

    def keys(self, obj: T_contra, /) -> Iterable[Key]: ...

    def keys_of_lost(self, key: Key, /) -> Iterable[Key]:
        """The same for a deleted object of which only the key is known."""
        ...


class EnqueueObject:
    """The object itself."""

    def keys(self, obj: HasMetadata, /) -> Iterable[Key]:
        return (obj.metadata.key,)

    def keys_of_lost(self, key: Key, /) -> Iterable[Key]:
        return (key,)


@dataclass(frozen=True, slots=True)
class EnqueueOwner:
    """The controlling owner, if it is of this resource's group and kind; each owner of it with `only_controller=False`.

    The owner of a namespaced resource is in the object's namespace. Neither version nor UID is compared: the end of a
    same-named predecessor's child has to wake the new owner that waits for that name (controller-runtime
    `pkg/handler/enqueue_owner.go`).
    """

    resource: Resource
    only_controller: bool = True

    def keys(self, obj: HasMetadata, /) -> Iterable[Key]:
        namespace = obj.metadata.namespace if self.resource.namespaced else ""
        return [Key(namespace, owner.name) for owner in obj.metadata.owner_references if self._is_meant(owner)]

    def keys_of_lost(self, _key: Key, /) -> Iterable[Key]:
        return ()  # the owner of an object that is gone is not known

    def _is_meant(self, owner: OwnerReference) -> bool:
        return (
            owner.kind == self.resource.kind
            and (bool(owner.controller) or not self.only_controller)
            and _group_of(owner.api_version) == self.resource.group
        )


@dataclass(frozen=True, slots=True)
class EnqueueMapped(Generic[T]):
    """Whatever a function of the object names."""

    names: Callable[[T], Iterable[Key]]

    def keys(self, obj: T, /) -> Iterable[Key]:
        return self.names(obj)

    def keys_of_lost(self, _key: Key, /) -> Iterable[Key]:
        return ()


class Predicate:
    """Chooses the events that matter; every method that is not overridden lets all pass. Without side effects: an event
    that one predicate refuses was never seen by the next."""

    def add(self, _obj: Any, /) -> bool:
        return True

    def update(self, _old: Any, _new: Any, /) -> bool:
        return True

    def delete(self, _obj: Any, /) -> bool:
        """Not asked if only the key of the deleted object is known."""
        return True


@dataclass(frozen=True, slots=True)
class Changed(Predicate):
    """Of the updates only those that change this part, such as `lambda job: job.metadata.generation`."""

    part: Callable[[Any], object]

    def update(self, old: Any, new: Any, /) -> bool:
        return self.part(old) != self.part(new)


@dataclass(frozen=True, slots=True)
class Matching(Predicate):
    """Only events of objects that pass; of an update the new object is asked."""

    test: Callable[[Any], bool]

    def add(self, obj: Any, /) -> bool:
        return self.test(obj)

    def update(self, _old: Any, new: Any, /) -> bool:
        return self.test(new)

    def delete(self, obj: Any, /) -> bool:
        return self.test(obj)


class Urgency(NamedTuple):
    """Which priority the keys of an event get, and after how many seconds they are due."""

    priority: int = 0
    seconds: float = 0.0


NEWS = Urgency()
NO_NEWS = Urgency(LOW_PRIORITY)


class Pace:
    """How urgent an event is: by default at once, but last in the queue if it is no news."""

    def add(self, _obj: Any, initial: bool, /) -> Urgency:
        return NO_NEWS if initial else NEWS

    def update(self, old: Any, new: Any, /) -> Urgency:
        return NO_NEWS if old.metadata.resource_version == new.metadata.resource_version else NEWS

    def delete(self, _obj: Any, /) -> Urgency:
        """`_obj` is None if only its key is known."""
        return NEWS


class Enqueue(Generic[T]):
    """The informer's handler that adds keys to a controller's queue, as soon and as urgently as `pace` says."""

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
                if keys:  # most events of shared informers concern another controller
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
    """The group of `group/version` or `version`; None if it is neither."""
    parts = api_version.split("/")
    return {1: "", 2: parts[0]}.get(len(parts))
