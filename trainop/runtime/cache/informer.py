"""Shared informer of one kind: a store kept up to date by reflectors, and handlers notified of every change.

Handlers run synchronously on the event loop, in the order of changes, after the store has been updated.
An exception in one of them does not prevent the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import structlog

from trainop.runtime.cache.informer_metrics import InformerMetrics, NoInformerMetrics
from trainop.runtime.cache.mutation_detector import GuardedStore
from trainop.runtime.cache.reflector import Reflector
from trainop.runtime.cache.scope import Namespaces, Scope, scopes_of
from trainop.runtime.cache.store import Change, Index, Store
from trainop.runtime.cache.watcher import Cause
from trainop.runtime.client.client import Client
from trainop.runtime.client.discovery import Discovery
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.metadata import Decoder, HasMetadata, Key, Resource

__all__ = ["Handler", "HandlerFunctions", "Informer", "InformerMetrics"]

T = TypeVar("T", bound=HasMetadata)
T_contra = TypeVar("T_contra", bound=HasMetadata, contravariant=True)

SLOW_HANDLER = 0.1
"""Seconds from which the handlers of one change are logged as slow."""

DISCOVERY_INTERVAL = 30.0
DISCOVERY_RETRY = 2.0
PERMISSION_RETRY = 60.0
"""Seconds until a kind of which the permission is optional is tried again."""
RESYNC = 36_000.0
"""Mean seconds between two resyncs; ten hours, as in controller-runtime."""

RESYNC_JITTER = 0.1
RESYNC_SLICE = 500
"""Objects per slice of a resync; the event loop runs other tasks in between."""

log = structlog.get_logger(__name__)


class Handler(Protocol[T_contra]):
    """Event handler of an informer (client-go `cache.ResourceEventHandler`). Must return quickly: it maps objects to
    keys and enqueues them."""

    def add(self, obj: T_contra, initial: bool) -> None:
        """The object was added. `initial`: it existed before, and is part of the first list for this handler."""
        ...

    def update(self, old: T_contra, new: T_contra) -> None:
        """The object was updated. In a resync, every ten hours, `old` and `new` are the same object."""
        ...

    def delete(self, obj: T_contra | None, key: Key, final_state_unknown: bool) -> None:
        """The object was deleted; `obj` is its last known state, None if only the key is known. `final_state_unknown`:
        the deletion itself was missed, or the object exists but cannot be decoded (`Store.unreadable`)."""
        ...


@dataclass(frozen=True)
class HandlerFunctions(Generic[T]):
    """A handler made of functions, each of which may be left out (client-go `cache.ResourceEventHandlerFuncs`)."""

    on_add: Callable[[T], None] | None = None
    on_update: Callable[[T, T], None] | None = None
    """Called with the old and the new object."""
    on_delete: Callable[[T | None, Key], None] | None = None
    """Called with the last known state, None if only the key is known."""

    def add(self, obj: T, initial: bool) -> None:
        if self.on_add:
            self.on_add(obj)

    def update(self, old: T, new: T) -> None:
        if self.on_update:
            self.on_update(old, new)

    def delete(self, obj: T | None, key: Key, final_state_unknown: bool) -> None:
        if self.on_delete:
            self.on_delete(obj, key)


class Informer(Generic[T]):
    """Keeps `store` equal to the objects on the API server; complete once `synced`. All failures of the server are
    retried with back-off."""

    may_be_forbidden = False
    """Set before `run`: it also counts as synced if the server refuses the first list for lack of permission, which is
    then retried."""
    _served: bool | None = None
    _stored = 0
    """The number of objects that the metrics know of."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Decoder[T],
        *,
        namespaces: Namespaces = (),
        label_selector: str = "",
        field_selector: str = "",
        indices: Mapping[str, Index[T]] | None = None,
        optional: bool = False,
        permission_optional: bool = False,
        metadata_only: bool = False,
        streamed: bool = True,
        discovery: Discovery | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: InformerMetrics | None = None,
        guarded: bool = False,
    ) -> None:
        """`optional`: the kind may be absent, such as a CRD that is not installed; the informer then counts as synced,
        and polls discovery until the kind is served. `permission_optional`: a kind that may not be listed is treated in
        the same way. `metadata_only`: the server sends only metadata, which saves memory. `streamed`: ask for streamed
        lists, else only for pages. `guarded`: detect mutations of cached objects, for tests."""
        self.resource = resource
        self.optional = optional
        self._permission_optional = permission_optional
        self._clock = clock or SystemClock()
        self._metrics = metrics or NoInformerMetrics()
        self.store: Store[T] = (GuardedStore if guarded else Store)(indices, index_failed=self._count_failure)
        self._discovery = discovery or Discovery(client, self._clock)
        self._handlers: list[Handler[T]] = []
        self._recovered: list[Callable[[], None]] = []
        # The scopes whose first list is complete, that are forbidden, and whose return is still to be reported.
        self._listed, self._forbidden, self._unavailable = set[Scope](), set[Scope](), set[Scope]()
        self._synced = asyncio.Event()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._scopes = scopes_of(resource, namespaces, label_selector, field_selector)
        reflect = partial(self._reflector, client, decode, metadata_only=metadata_only, streamed=streamed)
        self._reflectors = [reflect(scope) for scope in self._scopes]

    def _reflector(
        self, client: Client, decode: Decoder[T], scope: Scope, *, metadata_only: bool, streamed: bool
    ) -> Reflector[T]:
        return Reflector(
            client,
            self.resource,
            decode,
            self,
            scope=scope,
            metadata_only=metadata_only,
            streamed=streamed,
            clock=self._clock,
            rng=self._rng,
            metrics=self._metrics,
        )

    def add_handler(self, handler: Handler[T]) -> None:
        """Adds a handler, and calls its `add` for every object that is already cached."""
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, Change(obj.metadata.key, None, obj), initial=True)
        for key in tuple(self.store.unreadable):
            self._call(handler, Change(key, None, None, final_state_unknown=True), initial=True)

    def on_recovery(self, call: Callable[[], None]) -> None:
        """Calls `call` whenever the store is complete again after the kind was not served, or was forbidden in a
        namespace. Reconciles that wait for that, and not for an object, get no event otherwise."""
        self._recovered.append(call)

    def covers(self, namespace: str) -> bool:
        """Whether the informer watches `namespace`, which is empty for cluster-scoped kinds."""
        return any(scope.covers(namespace) for scope in self._scopes)

    @property
    def synced(self) -> bool:
        """Whether the first list is complete and all handlers have seen it, or the optional kind is not served. Of
        several namespaces, those in which the list is forbidden are left out, if there is another (`permitted_in`)."""
        return self._synced.is_set()

    @property
    def current(self) -> bool:
        """False from the start of an outage until a watch has resumed at a confirmed resourceVersion, or a new list is
        complete. After a restore of etcd, informers notice at different times that the server's state has moved back;
        until then their stores must not be combined."""
        return not any(reflector.in_outage for reflector in self._reflectors)

    @property
    def served(self) -> bool:
        """False only for an optional kind that, at the last check, the server did not serve."""
        return self._served is not False

    @property
    def forbidden(self) -> bool:
        """Whether the last list or watch of a namespace was refused for lack of permission. The store then is empty or
        no longer kept up to date there."""
        return bool(self._forbidden)

    def permitted_in(self, namespace: str) -> bool:
        """False if the last list or watch of `namespace` was refused for lack of permission."""
        return not any(scope.covers(namespace) for scope in self._forbidden)

    async def wait_synced(self) -> None:
        """Waits until `synced`."""
        await self._synced.wait()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync(), name=f"resync {self.resource}")
            await self._list_and_watch()

    async def _resync(self) -> None:
        """Periodically calls `update` for every object, as a safety net for handlers that missed one."""
        interval = RESYNC * self._rng.uniform(1 - RESYNC_JITTER, 1 + RESYNC_JITTER)
        while True:
            await self._clock.sleep(interval)
            for count, key in enumerate(tuple(self.store.keys())):
                obj = self.store.get(key)
                if obj is not None:
                    self._publish([Change(key, obj, obj)], initial=False)
                if count % RESYNC_SLICE == 0:
                    await asyncio.sleep(0)

    async def _list_and_watch(self) -> None:
        """Runs the reflectors; if the optional kind disappears, or the permission for it is missing, empties the store
        and waits for it to return."""
        while True:
            if self.optional:
                await self._wait_served()
            await self._reflect()
            self._served = False
            self._unavailable.update(self._scopes)
            if self._forbidden:
                log.debug("permission for an optional kind is missing", resource=str(self.resource))
            else:
                log.info("kind is no longer served", resource=str(self.resource))
            self._publish(self.store.prune(()), initial=False)
            self._synced.set()
            await self._clock.sleep(PERMISSION_RETRY if self._permission_optional else DISCOVERY_RETRY)

    async def _reflect(self) -> None:
        until = [Cause.NOT_FOUND] if self.optional else []
        if self._permission_optional and len(self._scopes) == 1:  # of several namespaces, the others go on
            until.append(Cause.FORBIDDEN)
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(*until), name=f"reflector {self.resource}")

    async def _wait_served(self) -> None:
        """Polls discovery until the kind is served. A missing kind counts as synced; a failed discovery does not."""
        wait = DISCOVERY_RETRY
        while True:
            try:
                self._served = await self._discovery.serves(self.resource)
            except (ConnectionError, TimeoutError) as error:
                log.info("discovery failed", resource=str(self.resource), error=str(error))
                await self._clock.sleep(DISCOVERY_RETRY)
                continue
            if self._served:
                return
            if not self._synced.is_set():
                log.warning("kind is not installed, waiting for it", resource=str(self.resource))
            self._synced.set()
            self._unavailable.update(self._scopes)
            await self._clock.sleep(wait)  # short at first: a starting server has not loaded its CRDs
            wait = min(2 * wait, DISCOVERY_INTERVAL)

    # The `Sink` interface, called by the reflectors.

    def put(self, obj: T, *, listing: bool, initial: bool) -> None:
        changes = self.store.put(obj, any_version=listing)
        if changes is None:
            self._metrics.dropped(str(self.resource), "stale")
            return
        self._publish(changes, initial)

    def reject(self, key: Key, error: DecodeError, *, listing: bool) -> None:
        before = self.store.unreadable.get(key)
        changes = self.store.reject(key, error, any_version=listing)
        if changes and (before is None or str(before) != str(error)):
            log.warning("object cannot be decoded", resource=str(self.resource), key=str(key), error=str(error))
        self._publish(changes or (), initial=False)

    def remove(self, obj: T) -> None:
        self._publish(self.store.remove(obj), initial=False)

    def forget(self, key: Key) -> None:
        self._publish(self.store.forget(key), initial=False)

    def listed(self, keep: Collection[Key], scope: Scope) -> None:
        self._publish(self.store.prune(keep, scope.covers), initial=False)
        self._count_stored()
        self._listed.add(scope)
        self._forbidden.discard(scope)
        self._check_synced()
        self._report_recovery(scope)

    def watching(self, scope: Scope) -> None:
        self._forbidden.discard(scope)
        self._report_recovery(scope)

    def denied(self, scope: Scope) -> None:
        self._forbidden.add(scope)
        self._unavailable.add(scope)
        self._check_synced()

    def _check_synced(self) -> None:
        """Synced once each scope has been listed or refused. If all are refused, only where that is allowed."""
        if self._synced.is_set() or len(self._listed | self._forbidden) < len(self._scopes):
            return
        several = len(self._scopes) > 1
        if not self._listed and not (self.may_be_forbidden or (several and self._permission_optional)):
            return
        for scope in self._forbidden if several else ():
            log.warning(
                "no permission in a namespace, which is left out",
                resource=str(self.resource),
                namespace=scope.namespace,
            )
        log.debug("informer synced", resource=str(self.resource), objects=len(self.store))
        self._synced.set()

    def _report_recovery(self, scope: Scope) -> None:
        if scope not in self._unavailable or scope not in self._listed:
            return
        self._unavailable.discard(scope)
        for call in self._recovered:
            if error := attempt(lambda target: target(), call):
                self._count_failure()
                log.error("handler failed", resource=str(self.resource), exc_info=error)

    def _publish(self, changes: Sequence[Change[T]], initial: bool) -> None:
        for change in changes:
            began = self._clock.monotonic()
            for handler in self._handlers:
                self._call(handler, change, initial)
            took = self._clock.monotonic() - began
            if took > SLOW_HANDLER:
                resource, key = str(self.resource), str(change.key)
                log.warning("handlers are slow", resource=resource, key=key, seconds=round(took, 3))
            if change.old is None or change.new is None:
                self._count_stored()

    def _count_stored(self) -> None:
        """Reports the difference: several informers of one resource share a series."""
        change = len(self.store) - self._stored
        self._stored += change
        self._metrics.stored(str(self.resource), change)

    def _call(self, handler: Handler[T], change: Change[T], initial: bool) -> None:
        error = attempt(lambda target: _notify(target, change, initial), handler)
        if error is not None:
            self._count_failure()
            log.error("handler failed", resource=str(self.resource), key=str(change.key), exc_info=error)

    def _count_failure(self) -> None:
        self._metrics.handler_failed(str(self.resource))


def _notify(handler: Handler[T], change: Change[T], initial: bool) -> None:
    key, old, new, final_state_unknown = change
    if new is None:
        handler.delete(old, key, final_state_unknown)
    elif old is None:
        handler.add(new, initial)
    else:
        handler.update(old, new)


Subject = TypeVar("Subject")


def attempt(call: Callable[[Subject], None], subject: Subject) -> Exception | None:
    """Calls `call(subject)` and returns the exception that it raised, if any."""
    try:
        call(subject)
    # A mapper or predicate that fails for one object must not block other objects or other handlers.
    except Exception as error:  # noqa: BLE001
        return error
    return None


def attempt_each(call: Callable[[Subject], None], subjects: Iterable[Subject]) -> None:
    """Calls `call` for every subject, and then raises: one exception as it is, several as an `ExceptionGroup`."""
    errors = [error for subject in subjects if (error := attempt(call, subject)) is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several handlers failed", errors)
