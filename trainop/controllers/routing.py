"""From an event of a job or a child to the key of a job in the work queue: which controller gets it, and how soon.

Controllers share the informers of pods and services. Without dispatchers, every event would run the handlers of every
kind, most of which would discard it (docs/performance.md). Running jobs come before new ones, and events that need no
immediate reaction are delayed, so that one pass covers many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainop.controllers.silence import Silences
from trainop.engine.kind import Kind
from trainop.engine.progress import TRAINER_STATUS
from trainop.engine.seen import Pod
from trainop.engine.stalls import STALLED_AFTER
from trainop.runtime import EnqueueOwner, HasMetadata, Informer, Key, Predicate, Unstructured
from trainop.runtime.lowlevel import LOW, NORMAL, Handler, HandlerFunctions, Pace, Urgency, attempt_each

T = TypeVar("T", bound=HasMetadata)


class ChildDispatcher(Generic[T]):
    """The only handler of an informer. A child is of the kind that controls it, otherwise of the kind that its
    label names: an orphan, or the pod of a child such as a batch Job. If two kinds share the resource of the owner, the
    label decides, and without a valid one both get the event.

    An exception in one handler does not keep the others from running."""

    def __init__(self, children: Informer[T], label: str) -> None:
        """`label` is the label that names the controller."""
        self.children = children
        self._label = label
        self._by_owner: dict[str, list[Handler[T]]] = {}
        """Kind of the owner -> the handlers of all kinds of that resource."""
        self._by_label: dict[str, list[Handler[T]]] = {}
        self._owner_of: dict[str, str] = {}
        """Value of the label -> kind of the owner."""
        children.add_handler(self)

    def of(self, kind: Kind) -> KindChildren[T]:
        """The source of one kind. Add its handlers before the informer runs."""
        owner = kind.resource.kind
        self._owner_of[kind.controller] = owner
        handlers = self._by_label.setdefault(kind.controller, [])
        return KindChildren(self.children, handlers, self._by_owner.setdefault(owner, []))

    def _handlers_for(self, child: T) -> Sequence[Handler[T]]:
        metadata = child.metadata
        owner, label = metadata.controller, metadata.labels.get(self._label, "")
        if owner and owner.kind in self._by_owner and self._owner_of.get(label) != owner.kind:
            return self._by_owner[owner.kind]
        return self._by_label.get(label, ())

    def add(self, obj: T, initial: bool) -> None:
        attempt_each(lambda handler: handler.add(obj, initial), self._handlers_for(obj))

    def update(self, old: T, new: T) -> None:
        """If the child changes hands, the handlers of its former kind are called too."""
        before, after = self._handlers_for(old), self._handlers_for(new)
        concerned = after if before is after else (*after, *before)
        attempt_each(lambda handler: handler.update(old, new), concerned)

    def delete(self, obj: T | None, key: Key, final_state_unknown: bool) -> None:
        """A deletion of which only the key is known cannot be attributed to a kind, and is dropped."""
        if obj is not None:
            attempt_each(lambda handler: handler.delete(obj, key, final_state_unknown), self._handlers_for(obj))


class KindChildren(Generic[T]):
    """The children of one kind: a source for `Controller.watch`."""

    def __init__(self, children: Informer[T], *handlers: list[Handler[T]]) -> None:
        """`handlers` are the lists that a handler of this kind is added to."""
        self._children = children
        self._handlers = handlers

    def add_handler(self, handler: Handler[T]) -> None:
        for handlers in self._handlers:
            handlers.append(handler)

    async def wait_synced(self) -> None:
        await self._children.wait_synced()

    @property
    def current(self) -> bool:
        return self._children.current


class ChildDispatchers:
    """The dispatchers of a process, one per informer of children."""

    def __init__(self) -> None:
        self._dispatchers: dict[Informer[Any], ChildDispatcher[Any]] = {}

    def children_of(self, kind: Kind, children: Informer[T]) -> KindChildren[T]:
        """The children of one kind in the given informer, whose dispatcher is made on first use."""
        dispatcher = self._dispatchers.get(children)
        if dispatcher is None:
            dispatcher = self._dispatchers[children] = ChildDispatcher(children, kind.children.controller_label)
        return dispatcher.of(kind)


CHILD_PRIORITY = 10
"""Above the priority of new jobs. Jobs that have begun are completed first, so that of two hundred new jobs the median
one runs after half the time of the last, and not all at the end."""

BATCH_DELAY = 0.2
"""Seconds by which events without urgency are delayed. The pods of a job are created, start and end together, so one
pass and one status update cover them (kubernetes' job controller waits 1 s, `syncJobBatchPeriod`)."""

NOW = Urgency(CHILD_PRIORITY)
SOON = Urgency(CHILD_PRIORITY, BATCH_DELAY)


class JobPace(Pace):
    """Low priority for jobs that had a status when the operator started: the others wait for their first pods."""

    def add(self, job: Any, initial: bool, /) -> Urgency:
        return LOW if initial and job.raw.get("status") else NORMAL


class ChildPace(Pace):
    """No delay for a child that requires an action: an orphan, a failed or terminating pod, a deletion, or a change of
    labels or owner. Low priority for the initial list and for resyncs."""

    def add(self, child: Any, initial: bool, /) -> Urgency:
        if initial:
            return LOW
        return NOW if child.metadata.controller is None else SOON

    def update(self, old: Any, new: Any, /) -> Urgency:
        before, after = old.metadata, new.metadata
        if before.resource_version == after.resource_version:
            return LOW
        reassigned = before.labels != after.labels or before.owner_references != after.owner_references
        if reassigned or before.terminating != after.terminating or (_failed(new) and not _failed(old)):
            return NOW
        return SOON

    def delete(self, _child: Any, /) -> Urgency:
        return NOW


def _failed(child: object) -> bool:
    return isinstance(child, Pod) and child.status.phase == "Failed"


def hear_reports(silences: Silences) -> Handler[Unstructured]:
    """The handler that hears reports which the cache shows. It ignores the first report of an old job, which tells
    nothing about when it was sent."""

    def update(old: Unstructured, new: Unstructured) -> None:
        if STALLED_AFTER in new.metadata.annotations:
            silences.see(new)
        before, after = ((job.raw.get("status") or {}).get(TRAINER_STATUS) for job in (old, new))
        if before != after:
            silences.hear(new)

    return HandlerFunctions(on_update=update)


@dataclass(frozen=True, slots=True)
class Concerned(Predicate):
    """Drops events of jobs that are of another kind, both before and after an update."""

    concerns: Callable[[Unstructured], bool]

    def add(self, job: Any, /) -> bool:
        return self.concerns(job)

    def update(self, old: Any, new: Any, /) -> bool:
        return self.concerns(new) or self.concerns(old)


@dataclass(frozen=True, slots=True)
class EnqueueJob:
    """The job that controls a child. For an orphan, and for the pod of a child such as a batch Job, the job that its
    labels name."""

    kind: Kind
    owner: EnqueueOwner

    def keys(self, child: HasMetadata, /) -> Iterable[Key]:
        metadata = child.metadata
        if metadata.controller is not None and (keys := [*self.owner.keys(child)]):
            return keys
        selection = self.kind.children
        if not selection.is_of(self.kind.controller, metadata) or selection.job_label not in metadata.labels:
            return ()
        return (Key(metadata.namespace, metadata.labels[selection.job_label]),)

    def keys_of_lost(self, _key: Key, /) -> Iterable[Key]:
        return ()
