"""Reflector: lists and watches one collection and feeds its objects to a sink (client-go `tools/cache/reflector.go`).

`watcher` decides what to do next; this module does the I/O, decodes objects and yields to the event loop.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import Generic, TypeVar

import msgspec
import structlog

from trainop.runtime.cache.informer_metrics import InformerMetrics
from trainop.runtime.cache.scope import Scope
from trainop.runtime.cache.sink import Sink
from trainop.runtime.cache.store import is_older
from trainop.runtime.cache.watcher import (
    FIRST_BACKOFF,
    Action,
    Cause,
    Ended,
    Listed,
    Paged,
    Verb,
    begin,
    cause_of,
    cause_of_close,
    cause_of_silence,
    step,
)
from trainop.runtime.cache.watchevents import WatchEvent, decode_event, decode_partial, decode_status
from trainop.runtime.client.client import JSON, METADATA_OBJECT, Client
from trainop.runtime.client.connection import Connection, OversizedLineError
from trainop.runtime.client.decoding import ObjectDecoder, read
from trainop.runtime.client.paging import PAGE_SIZE, Pages
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError, DecodeError, error_of_status
from trainop.runtime.log_throttle import LogThrottle
from trainop.runtime.objects.metadata import Decoder, HasMetadata, Json, Key, PartialObject, Resource

OPEN_TIMEOUT = 30.0
STREAMED_LIST_IDLE_TIMEOUT = 60.0
WATCH_IDLE_TIMEOUT = 90.0
"""Seconds without a line after which a watch is abandoned. Servers send a bookmark about every minute."""

STREAMED_LIST_GRACE = 10.0
"""Seconds that a streamed list may exceed the requested `timeoutSeconds`."""

MAX_STALL = 0.05
"""Seconds of work after which to yield to the event loop."""

MAX_PAGE = 4 * 1024 * 1024
"""Bytes of a page above which later pages are requested with fewer objects."""

LOG_INTERVAL = 300.0
END_OF_LIST = "k8s.io/initial-events-end"
METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"

T = TypeVar("T", bound=HasMetadata)

log = structlog.get_logger(__name__)


class Reflector(Generic[T]):
    """Keeps `sink` up to date with the objects of one kind that `scope` covers."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Decoder[T],
        sink: Sink[T],
        *,
        scope: Scope,
        metadata_only: bool,
        streamed: bool,
        clock: Clock,
        rng: random.Random,
        metrics: InformerMetrics,
    ) -> None:
        self._client = client
        self._resource = resource
        self._decode = ObjectDecoder(resource, decode)
        self._sink = sink
        self._scope = scope
        self._metadata_only = metadata_only
        self._list_accept = METADATA_LIST if metadata_only else JSON
        self._clock, self._rng = clock, rng
        self._metrics = metrics
        self._name = str(resource)
        self._connection: Connection | None = None
        self._listing = False
        self._seen, self._pages = set[Key](), Pages()
        self._list_began = self._yielded = 0.0
        self._throttle = LogThrottle(clock, LOG_INTERVAL)
        self._initial, self._streams = True, streamed
        self._in_outage = self._retried_early = False
        self._page_size = PAGE_SIZE
        self._until: tuple[Cause, ...] = ()

    @property
    def in_outage(self) -> bool:
        """Whether the server was unavailable, and has not yet confirmed the cached state since then."""
        return self._in_outage

    async def run(self, *until: Cause) -> None:
        """Runs until cancelled, or until a request ends for one of these causes, such as `NOT_FOUND`."""
        self._until = until
        state, action = begin(self._rng, streams=self._streams)
        try:
            while True:
                if action.delay > 0 and await self._wait_to_retry(action.delay):
                    state = replace(state, failures=0)
                outcome = await self._perform(action)
                state, action = step(state, outcome, self._clock.monotonic(), self._rng)
                self._streams = state.streams
                if isinstance(outcome, Ended):
                    self._count_restart(outcome, action)
                    if outcome.cause is Cause.FORBIDDEN:
                        self._sink.denied(self._scope)
                    if outcome.cause in until:
                        self._in_outage = False
                        return
        finally:
            await self._disconnect()

    async def _wait_to_retry(self, delay: float) -> bool:
        """Waits before a retry. Cuts the wait short, and returns true, if the server answers another request during an
        outage; only once until this reflector succeeds, so that a single failing kind keeps its back-off."""
        if not self._in_outage or self._retried_early:
            await self._clock.sleep(delay)
            return False
        if not await self._client.recovery.sleep(delay, self._clock):
            return False
        self._retried_early = True
        await self._clock.sleep(self._rng.uniform(0, FIRST_BACKOFF))  # spreads the informers' requests
        return True

    async def _perform(self, action: Action) -> Paged | Listed | Ended:
        try:
            match action.verb:
                case Verb.PAGE:
                    return await self._page(action.token)
                case Verb.STREAM:
                    self._begin_list()
                    await self._open(action)
                case Verb.WATCH:
                    self._listing = False
                    await self._open(action)
                    if await self._is_rewound(action.version):
                        await self._disconnect()
                        return Ended(Cause.REWOUND)
                    self._sink.watching(self._scope)
        except (ApiError, ConnectionError, TimeoutError) as error:
            await self._disconnect()  # a watch may be open although its version could not be confirmed
            self._log_failure(cause_of(error), str(error) or repr(error), action)
            self._in_outage = self._in_outage or cause_of(error) in (Cause.DISCONNECTED, Cause.UNAVAILABLE)
            return Ended(cause_of(error), retry_after=float(getattr(error, "retry_after", None) or 0))
        return await self._read()

    async def _page(self, token: str) -> Paged:
        if not token:
            self._begin_list()
        where, query = (self._resource, self._scope.namespace), self._scope.query
        page = await self._client.page(*where, query, token, limit=self._page_size, accept=self._list_accept)
        self._page_size = page.limit
        if page.size > MAX_PAGE:
            # Parsing a page blocks the event loop, so that pages must stay small.
            self._page_size = max(1, self._page_size * MAX_PAGE // page.size)
        known = len(self._seen)
        for raw in page.items:
            self._put_listed(raw)
            await self._yield_if_due()
        await asyncio.sleep(0)
        if page.token:
            self._pages.advance(page.token, grew=len(self._seen) > known)
        else:
            self._end_list()
        return Paged(page.token, page.resource_version)

    async def _open(self, action: Action) -> None:
        await self._disconnect()
        query = self._scope.query
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(action.timeout)}
        if action.verb is Verb.STREAM:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = action.version
        accept = METADATA_OBJECT if self._metadata_only else JSON
        path = self._resource.path(self._scope.namespace)
        stream = await self._client.open(Request("GET", path, query, accept=accept, timeout=OPEN_TIMEOUT))
        idle_timeout = STREAMED_LIST_IDLE_TIMEOUT if self._listing else WATCH_IDLE_TIMEOUT
        max_age = action.timeout + STREAMED_LIST_GRACE if self._listing else math.inf
        self._connection = Connection(stream, action.version, idle_timeout, max_age, self._clock)

    async def _is_rewound(self, version: str) -> bool:
        """After an outage, whether the server's resourceVersion is below `version`: etcd was restored from a backup.
        The server would keep a watch from `version` open, but silent until its versions have caught up."""
        if not self._in_outage:
            return False
        page = await self._client.page(
            self._resource, self._scope.namespace, self._scope.query, limit=1, accept=self._list_accept
        )
        rewound = is_older(page.resource_version, version)
        if rewound:
            resource, now = self._name, page.resource_version
            log.warning("resourceVersion went backwards (etcd restored?)", resource=resource, was=version, now=now)
        self._in_outage = rewound
        self._retried_early = False
        return rewound

    async def _read(self) -> Listed | Ended:
        """Delivers events until a streamed list is complete or the stream ends."""
        connection = self._connection
        assert connection is not None, "READ follows only an open stream"  # noqa: S101  # invariant of the state machine
        while True:
            try:
                if not connection.lines and not await connection.wait_for_lines():
                    return await self._closed(connection)
            except TimeoutError:
                return await self._silent(connection)
            except ConnectionError:
                return await self._closed(connection)
            except OversizedLineError as error:
                self._metrics.dropped(self._name, "oversized")
                log.warning("watch line is too long", resource=self._name, error=str(error))
                return await self._end(connection, Cause.UNREADABLE)
            outcome = await self._deliver(connection)
            if outcome is not None:
                return outcome

    async def _deliver(self, connection: Connection) -> Listed | Ended | None:
        """Delivers all lines that have arrived; returns the outcome if one of them ends the list or the watch."""
        arrived, events = self._clock.monotonic(), 0
        outcome: Listed | Ended | None = None
        while connection.lines and outcome is None:
            outcome = await self._receive(connection, connection.lines.popleft())
            events += 1
            await self._yield_if_due()
        self._metrics.received(self._name, events, self._clock.monotonic() - arrived)
        await asyncio.sleep(0)
        if isinstance(outcome, Ended):
            await self._disconnect()
        return outcome

    async def _receive(self, connection: Connection, line: bytes) -> Listed | Ended | None:
        if not line.strip():
            return None
        try:
            event = await read(decode_event, line)
            match event.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    self._apply(connection, event)
                case "BOOKMARK":
                    return self._apply_bookmark(connection, await read(decode_partial, event.object))
                case "ERROR":
                    return self._end_with_status(connection, await read(decode_status, event.object))
                case _:
                    self._metrics.dropped(self._name, "unknown")
                    self._warn("event of unknown type", type=event.type[:64])
        except DecodeError as error:
            self._metrics.dropped(self._name, "undecodable")
            self._warn("watch line cannot be decoded", error=str(error), line=line[:200])
            return self._ended(connection, Cause.UNREADABLE)
        return None

    def _apply(self, connection: Connection, event: WatchEvent) -> None:
        """Applies an event. Raises `DecodeError` if the object's name is unreadable, which makes a relist necessary."""
        connection.made_progress = True
        connection.events += 1
        if self._listing and event.type != "DELETED":
            self._put_listed(event.object)
            return
        try:
            obj = self._decode(event.object)
        except DecodeError as error:
            if error.key is None:
                raise
            self._reject(error, error.key, gone=event.type == "DELETED")
            if error.remains is not None:
                connection.version = error.remains.metadata.resource_version
            return
        if event.type == "DELETED":
            self._seen.discard(obj.metadata.key)
            self._sink.remove(obj)
        else:
            self._sink.put(obj, listing=False, initial=False)
        connection.version = obj.metadata.resource_version or connection.version

    def _reject(self, error: DecodeError, key: Key, *, gone: bool = False, listing: bool = False) -> None:
        self._metrics.dropped(self._name, "undecodable")
        if gone:
            self._seen.discard(key)
            self._sink.forget(key)
            return
        if listing:
            self._seen.add(key)
        self._sink.reject(key, error, listing=listing)

    def _apply_bookmark(self, connection: Connection, bookmark: PartialObject) -> Listed | Ended | None:
        """Applies a bookmark: advances the resourceVersion. An annotated bookmark ends a streamed list."""
        metadata = bookmark.metadata
        version = metadata.resource_version
        connection.made_progress = True
        connection.idle_timeout = STREAMED_LIST_IDLE_TIMEOUT if self._listing else WATCH_IDLE_TIMEOUT
        if self._listing:
            if metadata.annotations.get(END_OF_LIST) != "true":
                return None
            if not version:
                return self._ended(connection, Cause.UNREADABLE)
            connection.version = version
            connection.idle_timeout, connection.max_age = WATCH_IDLE_TIMEOUT, math.inf
            self._end_list()
            return Listed(version)
        if is_older(version, connection.version):
            return self._ended(connection, Cause.REWOUND)
        connection.version = version or connection.version
        return None

    def _end_with_status(self, connection: Connection, status: Json) -> Ended:
        error = error_of_status(status)
        cause = cause_of(error, in_stream=True)
        log.info("watch ended with an error", resource=self._name, cause=cause.value, error=str(error))
        return Ended(cause, connection.version, connection.made_progress, float(error.retry_after or 0))

    def _put_listed(self, raw: msgspec.Raw) -> None:
        """Stores an object of a list, or records it as unreadable. Raises `DecodeError` if its name is unreadable: such
        a list does not show which objects exist, so that nothing may be pruned by it."""
        try:
            obj = self._decode(raw)
        except DecodeError as error:
            if error.key is None:
                raise
            self._reject(error, error.key, listing=True)
            return
        self._seen.add(obj.metadata.key)
        self._sink.put(obj, listing=True, initial=self._initial)

    def _begin_list(self) -> None:
        self._listing = True
        self._seen = set()
        self._pages = Pages()
        self._list_began = self._clock.monotonic()

    def _end_list(self) -> None:
        self._sink.listed(self._seen, self._scope)
        self._metrics.listed(self._name, self._clock.monotonic() - self._list_began)
        self._listing = self._initial = self._in_outage = self._retried_early = False
        self._seen = set()

    async def _closed(self, connection: Connection) -> Ended:
        """The stream ended, cleanly or not. An incomplete last line is dropped: the next watch sends it again."""
        cause = cause_of_close(made_progress=connection.made_progress, seconds=connection.age)
        return await self._end(connection, cause)

    async def _silent(self, connection: Connection) -> Ended:
        cause = cause_of_silence(made_progress=connection.made_progress or self._listing, seconds=connection.age)
        return await self._end(connection, cause)

    async def _end(self, connection: Connection, cause: Cause) -> Ended:
        await self._disconnect()
        return self._ended(connection, cause)

    def _ended(self, connection: Connection, cause: Cause) -> Ended:
        return Ended(cause, connection.version, connection.made_progress, events=connection.events)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _yield_if_due(self) -> None:
        now = self._clock.monotonic()
        if now - self._yielded >= MAX_STALL:
            await asyncio.sleep(0)
            self._yielded = self._clock.monotonic()

    def _count_restart(self, ended: Ended, action: Action) -> None:
        if action.verb is Verb.WATCH:
            self._metrics.rewatched(self._name, ended.cause.value)
        elif not action.token:
            self._metrics.relisted(self._name, ended.cause.value)

    def _log_failure(self, cause: Cause, error: str, action: Action) -> None:
        if action.verb is Verb.STREAM and cause is Cause.REJECTED:
            log.debug("streamed lists are not supported", resource=self._name, error=error)
        elif cause not in self._until:  # of those the informer logs the consequence
            self._warn("list or watch failed", cause.value, verb=action.verb.value, cause=cause.value, error=error)

    def _warn(self, what: str, kind: str = "", **about: object) -> None:
        """Logs a warning, at most once in five minutes for the same `what` and `kind`."""
        left_out = self._throttle.count(what + kind)
        if left_out is not None:
            log.warning(what, resource=self._name, left_out=left_out, **about)
