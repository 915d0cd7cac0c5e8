"""A shared view of one kind: a store kept up to date by list and watch, and handlers told of every change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import structlog

from trainop.runtime.cache.informer_metrics import InformerMetrics, NoInformerMetrics
from trainop.runtime.cache.mutation_detector import GuardedStore
from trainop.runtime.cache.reflector import Reflector
from trainop.runtime.cache.scope import Namespaces, Scope, scopes_of
from trainop.runtime.cache.store import Change, Index, Store
from trainop.runtime.client.client import Client
from trainop.runtime.client.discovery import Discovery
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import DecodeError
from trainop.runtime.handling import attempt
from trainop.runtime.objects.metadata import Decoder, HasMetadata, Key
from trainop.runtime.objects.resource import Resource

__all__ = ["Handler", "Informer", "InformerMetrics"]

T = TypeVar("T", bound=HasMetadata)
T_contra = TypeVar("T_contra", bound=HasMetadata, contravariant=True)

SLOW_HANDLER = 0.1
DISCOVERY_INTERVAL = 30.0
DISCOVERY_RETRY = 2.0
RESYNC = 36_000.0
RESYNC_JITTER = 0.1
RESYNC_SLICE = 500
"""Objects that handlers are told of before the event loop gets its turn."""

log = structlog.get_logger(__name__)


class Handler(Protocol[T_contra]):
    """Told of changes, in order, after the store has them. Synchronous and quick: it maps and enqueues."""

    def add(self, obj: T_contra, initial: bool) -> None:
        """`initial`: part of the first list that this handler is shown."""
        ...

    def update(self, old: T_contra, new: T_contra) -> None:
        """Both are the same object when nothing has changed and all are gone through, every ten hours."""
        ...

    def delete(self, obj: T_contra | None, key: Key, final_state_unknown: bool) -> None:
        """`obj` is the last state known; `final_state_unknown` tells that the deletion itself was not seen, or that the
        object is there and cannot be read (`Store.unreadable`)."""
        ...


class Informer(Generic[T]):
    """`store` is valid once `synced`. Runs until cancelled; all trouble with the server is retried with back-off."""

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
        metadata_only: bool = False,
        discovery: Discovery | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: InformerMetrics | None = None,
        guarded: bool = False,
    ) -> None:
        """`optional`: the kind may not be served; then the informer counts as synced and waits for it to appear.
        `metadata_only`: `decode` gets objects without spec and status, which saves memory. `guarded`: for tests, a
        mutated object ends the process."""
        self.resource = resource
        self.optional = optional
        self._clock = clock or SystemClock()
        self._metrics = metrics or NoInformerMetrics()
        self.store: Store[T] = (GuardedStore if guarded else Store)(indices, index_failed=self._count_failure)
        self._discovery = discovery or Discovery(client, self._clock)
        self._handlers: list[Handler[T]] = []
        self._served: bool | None = None
        self._synced = asyncio.Event()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._scopes = scopes_of(resource, namespaces, label_selector, field_selector)
        self._reflectors = [
            self._reflector(scope, client, decode, metadata_only=metadata_only) for scope in self._scopes
        ]
        self._unlisted = len(self._reflectors)

    def _reflector(self, scope: Scope, client: Client, decode: Decoder[T], *, metadata_only: bool) -> Reflector[T]:
        return Reflector(
            client,
            self.resource,
            decode,
            self,
            scope=scope,
            metadata_only=metadata_only,
            clock=self._clock,
            rng=self._rng,
            metrics=self._metrics,
        )

    def add_handler(self, handler: Handler[T]) -> None:
        """Adds a handler; one that comes late is told at once of everything that is cached."""
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, Change(obj.metadata.key, None, obj), initial=True)
        for key in tuple(self.store.unreadable):
            self._call(handler, Change(key, None, None, final_state_unknown=True), initial=True)

    def covers(self, namespace: str) -> bool:
        """Whether objects of this namespace would be in the store; of cluster-scoped kinds the namespace is empty."""
        return any(scope.covers(namespace) for scope in self._scopes)

    @property
    def synced(self) -> bool:
        """Every handler has returned for every object of the first list, or the optional kind was not served."""
        return self._synced.is_set()

    @property
    def current(self) -> bool:
        """False from the beginning of an outage until the server has shown that it is where it was, or all that it has.
        Different kinds find that out at different times, and must not be looked at together before."""
        return not any(reflector.in_outage for reflector in self._reflectors)

    @property
    def served(self) -> bool:
        """False only for an optional kind that the server does not have, as far as is known."""
        return self._served is not False

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync(), name=f"resync {self.resource}")
            await self._keep_up()

    async def _resync(self) -> None:
        """Every ten hours handlers are told of every object as if it had changed: whoever forgot one is reminded."""
        interval = RESYNC * self._rng.uniform(1 - RESYNC_JITTER, 1 + RESYNC_JITTER)
        while True:
            await self._clock.sleep(interval)
            for told, key in enumerate(tuple(self.store.keys())):
                obj = self.store.get(key)
                if obj is not None:
                    self._publish([Change(key, obj, obj)], initial=False)
                if told % RESYNC_SLICE == 0:
                    await asyncio.sleep(0)

    async def _keep_up(self) -> None:
        while True:
            if self.optional:
                await self._wait_served()
            await self._reflect()
            self._served = False
            log.info("kind is not served any more", resource=str(self.resource))
            self._publish(self.store.prune(()), initial=False)
            await self._clock.sleep(DISCOVERY_INTERVAL)

    async def _reflect(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(until_not_found=self.optional), name=f"reflector {self.resource}")

    async def _wait_served(self) -> None:
        """Polls discovery; that a kind is missing counts as synced, that nobody can tell does not."""
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
            await self._clock.sleep(wait)  # short at first: a server that starts does not know its CRDs yet
            wait = min(2 * wait, DISCOVERY_INTERVAL)

    # The sink of the reflectors.

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
        self._metrics.stored(str(self.resource), len(self.store))
        self._unlisted -= 1
        if self._unlisted <= 0 and not self._synced.is_set():
            log.debug("informer is synced", resource=str(self.resource), objects=len(self.store))
            self._synced.set()

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
                self._metrics.stored(str(self.resource), len(self.store))

    def _call(self, handler: Handler[T], change: Change[T], initial: bool) -> None:
        error = attempt(lambda told: _tell(told, change, initial), handler)
        if error is not None:
            self._count_failure()
            log.error("handler failed", resource=str(self.resource), key=str(change.key), exc_info=error)

    def _count_failure(self) -> None:
        self._metrics.handler_failed(str(self.resource))


def _tell(handler: Handler[T], change: Change[T], initial: bool) -> None:
    key, old, new, final_state_unknown = change
    if new is None:
        handler.delete(old, key, final_state_unknown)
    elif old is None:
        handler.add(new, initial)
    else:
        handler.update(old, new)
