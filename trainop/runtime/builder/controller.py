"""What one controller of an `Operator` reconciles, and what triggers it.

`ControllerBuilder` collects declarations while the program is loaded; nothing of it touches a cluster. `open` turns
them into a `Controller` once there are a client and a cache.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeAlias, TypedDict, TypeVar, cast, overload

from trainop.runtime.builder.context import Context, Watch
from trainop.runtime.cache.informer import Informer
from trainop.runtime.cache.store import Store
from trainop.runtime.controller.controller import Controller
from trainop.runtime.controller.enqueue import EnqueueMapped, EnqueueObject, EnqueueOwner, Mapper, Predicate
from trainop.runtime.controller.finalizers import finalizing
from trainop.runtime.controller.ratelimit import RateLimiter
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.objects.metadata import HasMetadata, Key, Resource, Unstructured

T = TypeVar("T", bound=HasMetadata)
C = TypeVar("C", bound=HasMetadata)


Reconcile: TypeAlias = Callable[[Context, T], Awaitable[Result | None]]
"""Brings the world nearer to what the object asks for. None means `DONE`; raises to be retried with back-off."""

ReconcileKey: TypeAlias = Callable[[Context, Key], Awaitable[Result | None]]
_Step: TypeAlias = Callable[[Context, Key, T | None], Awaitable[Result | None]]
_Open: TypeAlias = Callable[[Context], Mapper[Any]]


class ControllerOptions(TypedDict, total=False):
    """Of one controller: `name` labels metrics and logs (by default the kind in lower case; two controllers of one kind
    need two names); `workers` is how many objects are reconciled at once (1); `reconcile_timeout` in seconds (120);
    `limiter` makes the back-off of its queue."""

    name: str
    workers: int
    reconcile_timeout: float
    limiter: Callable[[], RateLimiter[Key]]


class ControllerBuilder(Generic[T]):
    """One controller of an `Operator`; see `Operator.for_`."""

    def __init__(
        self, watched: Resource | Watch[T], predicates: tuple[Predicate, ...], options: ControllerOptions
    ) -> None:
        self._watched = watched
        self._options = options
        self._finalizer: tuple[str, Reconcile[T]] | None = None
        self._step: _Step[T] | None = None
        self._sources: list[tuple[Resource | Watch[Any], _Open, tuple[Predicate, ...]]] = []
        self._sources.append((watched, lambda _: EnqueueObject(), predicates))

    @property
    def name(self) -> str:
        return self._options.get("name") or self.resource.kind.lower()

    @property
    def resource(self) -> Resource:
        return self._watched.resource if isinstance(self._watched, Watch) else self._watched

    def owns(self, children: Resource | Watch[Any], *predicates: Predicate, only_controller: bool = True) -> Self:
        """An event of a child triggers its owner of this kind: the controlling one, or any with
        `only_controller=False`."""
        mapper = EnqueueOwner(self.resource, only_controller)
        self._sources.append((children, lambda _: mapper, predicates))
        return self

    @overload
    def watches(
        self, objects: Resource, keys: Callable[[Context, Unstructured], Iterable[Key]], *predicates: Predicate
    ) -> Self: ...
    @overload
    def watches(
        self, objects: Watch[C], keys: Callable[[Context, C], Iterable[Key]], *predicates: Predicate
    ) -> Self: ...
    def watches(
        self, objects: Resource | Watch[Any], keys: Callable[[Context, Any], Iterable[Key]], *predicates: Predicate
    ) -> Self:
        """An event of such an object triggers the keys that `keys(ctx, obj)` names; of an update those of the old
        and of the new object. `keys` is a plain function and must not block."""
        self._sources.append((objects, lambda ctx: EnqueueMapped(functools.partial(keys, ctx)), predicates))
        return self

    def reads(self, objects: Resource | Watch[Any]) -> Self:
        """Makes these objects available in `Context.store`. Their events trigger nothing."""
        self._sources.append((objects, lambda _: EnqueueMapped(_no_keys), ()))
        return self

    def finalizes(self, finalizer: str, clean_up: Reconcile[T]) -> Self:
        """Objects get this finalizer before they are reconciled; `clean_up(ctx, obj)` runs when one is deleted, and the
        reconcile function never sees a deleted object. The rules are those of `finalizing`. A deletion triggers the
        controller also if the predicates of `for_` would not let it pass."""
        self._finalizer = (finalizer, clean_up)
        return self

    def reconcile(self, function: Reconcile[T]) -> Reconcile[T]:
        """The function that reconciles one object, given as the cache has it; a decorator. It is not called for an
        object that is gone: its children go with it (owner references), for all else there is `finalizes`."""

        async def step(ctx: Context, _key: Key, obj: T | None) -> Result | None:
            return None if obj is None else await function(ctx, obj)

        self._step = step
        return function

    def reconcile_key(self, function: ReconcileKey) -> ReconcileKey:
        """The same for a function that gets the key, and is called for objects that are gone, too; a decorator."""

        async def step(ctx: Context, key: Key, _obj: T | None) -> Result | None:
            return await function(ctx, key)

        self._step = step
        return function

    def open(self, ctx: Context, rng: random.Random) -> Controller:
        """The controller, with its sources. Raises `ValueError` without a reconcile function."""
        if self._step is None:
            raise ValueError(f"controller {self.name} has no reconcile function")
        objects = cast("Informer[T]", ctx.informer(self._watched))
        limiter = self._options.get("limiter")
        controller = Controller(
            self.name,
            _Reconciler(ctx, objects.store, self._step, self._finalizer),
            workers=self._options.get("workers", 1),
            reconcile_timeout=self._options.get("reconcile_timeout", 120.0),
            limiter=limiter() if limiter is not None else None,
            group=self.resource.group,
            kind=self.resource.kind,
            recovery=ctx.client.recovery,
            clock=ctx.clock,
            rng=rng,
            metrics=ctx.metrics,
        )
        for watched, mapper, predicates in self._sources:
            controller.watch(ctx.informer(watched), mapper(ctx), *predicates)
        if self._finalizer is not None:
            controller.watch(objects, EnqueueObject(), _Deletion(self._finalizer[0]))
        return controller


@dataclass(frozen=True, slots=True)
class _Deletion(Predicate):
    """The deletion of an object that has the finalizer. Kinds without `metadata.generation` show it by no change that
    `Changed(generation)` sees, and an object may have ceased to match."""

    finalizer: str

    def add(self, obj: HasMetadata, /) -> bool:
        return obj.metadata.terminating and self.finalizer in obj.metadata.finalizers

    def update(self, old: HasMetadata, new: HasMetadata, /) -> bool:
        return not old.metadata.terminating and self.add(new)

    def delete(self, _obj: HasMetadata, /) -> bool:
        return False


class _Reconciler(Generic[T]):
    """Looks the object up, sees to its finalizer, and calls the function."""

    def __init__(
        self, ctx: Context, store: Store[T], step: _Step[T], finalizer: tuple[str, Reconcile[T]] | None
    ) -> None:
        self._ctx = ctx
        self._store = store
        self._step = step
        self._finalizer = finalizer

    async def reconcile(self, key: Key) -> Result:
        obj = self._store.get(key)
        if obj is not None and self._finalizer is not None:
            name, clean_up = self._finalizer
            undo = functools.partial(clean_up, self._ctx, obj)
            ended = await finalizing(self._ctx.client, self._ctx.resource, obj, name, undo)
            if ended is not None:
                return ended
        return await self._step(self._ctx, key, obj) or DONE


def _no_keys(_obj: HasMetadata) -> tuple[Key, ...]:
    return ()
