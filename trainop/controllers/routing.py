"""Dispatches events of children to the controller of their kind.

Controllers share the informers of pods and services. Without this, every event would run the handlers of every
kind, most of which would discard it (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from trainop.engine.kind import Kind
from trainop.runtime import HasMetadata, Informer, Key
from trainop.runtime.lowlevel import Handler, attempt_each

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
