"""Keeps a sink up to date with one collection of the API server: does what `watcher` decides."""

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
from trainop.runtime.client.client import JSON, METADATA_OBJECT, PAGE_SIZE, Client
from trainop.runtime.client.connection import Connection, OversizedLineError
from trainop.runtime.client.decoding import ObjectDecoder, read
from trainop.runtime.client.paging import Pages
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError, DecodeError, error_of_status
from trainop.runtime.log_throttle import LogThrottle
from trainop.runtime.objects.metadata import Decoder, HasMetadata, Json, Key, PartialObject
from trainop.runtime.objects.resource import Resource

OPEN_TIMEOUT = 30.0
STREAMED_LIST_PATIENCE = 60.0
BOOKMARK_PATIENCE = 90.0
"""Seconds of silence, also before the first bookmark; servers send one about every minute."""

GRACE = 10.0
"""Seconds that a streamed list may take beyond the time after which the server should end it."""

MAX_STALL = 0.05
"""Seconds after which the event loop gets its turn."""

MAX_PAGE = 4 * 1024 * 1024
"""Bytes of a page above which the following ones are asked to be shorter."""

LOG_INTERVAL = 300.0
END_OF_LIST = "k8s.io/initial-events-end"
METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"

T = TypeVar("T", bound=HasMetadata)

log = structlog.get_logger(__name__)


class Reflector(Generic[T]):
    """One collection: what `scope` covers of a kind."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Decoder[T],
        sink: Sink[T],
        *,
        scope: Scope,
        metadata_only: bool,
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
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._name = str(resource)
        self._connection: Connection | None = None
        self._listing = False
        self._seen: set[Key] = set()
        self._pages = Pages()
        self._initial = True
        self._list_began = 0.0
        self._yielded = 0.0
        self._throttle = LogThrottle(clock, LOG_INTERVAL)
        self._streams = True
        self._outage = False
        self._hurried = False
        self._page_size = PAGE_SIZE

    @property
    def in_outage(self) -> bool:
        """The server was away, and has not shown since then that what is stored still holds."""
        return self._outage

    async def run(self, *, until_not_found: bool) -> None:
        """For ever, or until the server says that there is no such kind."""
        state, action = begin(self._rng, streams=self._streams)
        try:
            while True:
                if action.delay > 0 and await self._pause(action.delay):
                    state = replace(state, failures=0)
                outcome = await self._perform(action)
                state, action = step(state, outcome, self._clock.monotonic(), self._rng)
                self._streams = state.streams
                if isinstance(outcome, Ended):
                    self._record(outcome, action)
                    if until_not_found and outcome.cause is Cause.NOT_FOUND:
                        self._outage = False
                        return
        finally:
            await self._disconnect()

    async def _pause(self, delay: float) -> bool:
        """Waits before the next try; less long, and true, if in an outage the server answers somebody else. That is
        believed once until it answers us, too: an informer that fails alone backs off alone."""
        if not self._outage or self._hurried:
            await self._clock.sleep(delay)
            return False
        if not await self._client.recovery.sleep(delay, self._clock):
            return False
        self._hurried = True
        await self._clock.sleep(self._rng.uniform(0, FIRST_BACKOFF))  # not all informers at once
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
                case Verb.READ:
                    pass
        except (ApiError, ConnectionError, TimeoutError) as error:
            await self._disconnect()  # a watch that was opened, but not found to go on where it was, is not kept
            self._tell(cause_of(error), str(error) or repr(error), action)
            self._outage = self._outage or cause_of(error) in (Cause.DISCONNECTED, Cause.UNAVAILABLE)
            return Ended(cause_of(error), retry_after=float(getattr(error, "retry_after", None) or 0))
        return await self._read()

    async def _page(self, token: str) -> Paged:
        if not token:
            self._begin_list()
        where, query = (self._resource, self._scope.namespace), self._scope.query
        page = await self._client.page(*where, query, token, limit=self._page_size, accept=self._list_accept)
        self._page_size = page.limit
        if page.size > MAX_PAGE:
            # Large objects: what cannot be interrupted, a page being split, must stay short.
            self._page_size = max(1, self._page_size * MAX_PAGE // page.size)
        known = len(self._seen)
        for raw in page.items:
            self._put_listed(raw)
            await self._breathe()
        await asyncio.sleep(0)
        if page.token:
            self._pages.advance(page.token, grew=len(self._seen) > known)
        else:
            self._end_list()
        return Paged(page.token, page.resource_version)

    async def _open(self, action: Action) -> None:
        await self._disconnect()
        query = {
            **self._scope.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(action.timeout),
        }
        if action.verb is Verb.STREAM:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = action.version
        accept = METADATA_OBJECT if self._metadata_only else JSON
        path = self._resource.path(self._scope.namespace)
        stream = await self._client.open(Request("GET", path, query, accept=accept, timeout=OPEN_TIMEOUT))
        idle_timeout = STREAMED_LIST_PATIENCE if self._listing else BOOKMARK_PATIENCE
        max_age = action.timeout + GRACE if self._listing else math.inf
        self._connection = Connection(stream, action.version, idle_timeout, max_age, self._clock)

    async def _is_rewound(self, version: str) -> bool:
        """Whether the server came back from an outage with a past before `version`, restored from a backup. It would
        keep such a watch open and silent until its versions have caught up, so it is asked for the one it is at."""
        if not self._outage:
            return False
        page = await self._client.page(
            self._resource, self._scope.namespace, self._scope.query, limit=1, accept=self._list_accept
        )
        rewound = is_older(page.resource_version, version)
        if rewound:
            log.warning("server is before what it was", resource=self._name, was=version, now=page.resource_version)
        self._outage = rewound
        self._hurried = False
        return rewound

    async def _read(self) -> Listed | Ended:
        """Delivers events until the list in the stream is complete or the stream ends."""
        connection = self._connection
        assert connection is not None, "READ follows only an open stream"  # noqa: S101  # invariant of the machine
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
        """All lines that have arrived; what they ask for, if anything."""
        arrived, events = self._clock.monotonic(), 0
        outcome: Listed | Ended | None = None
        while connection.lines and outcome is None:
            outcome = await self._take(connection, connection.lines.popleft())
            events += 1
            await self._breathe()
        self._metrics.received(self._name, events, self._clock.monotonic() - arrived)
        await asyncio.sleep(0)
        if isinstance(outcome, Ended):
            await self._disconnect()
        return outcome

    async def _take(self, connection: Connection, line: bytes) -> Listed | Ended | None:
        if not line.strip():
            return None
        try:
            event = await read(decode_event, line)
            match event.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    self._apply(connection, event)
                case "BOOKMARK":
                    return self._mark(connection, await read(decode_partial, event.object))
                case "ERROR":
                    return self._refused(connection, await read(decode_status, event.object))
                case _:
                    self._metrics.dropped(self._name, "unknown")
                    self._warn("event of unknown type", type=event.type[:64])
        except DecodeError as error:
            self._metrics.dropped(self._name, "undecodable")
            self._warn("watch line cannot be decoded", error=str(error), line=line[:200])
            return self._ended(connection, Cause.UNREADABLE)
        return None

    def _apply(self, connection: Connection, event: WatchEvent) -> None:
        """Raises `DecodeError` for an object of which not even the name can be read: only a new list tells which."""
        connection.made_progress = True
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

    def _mark(self, connection: Connection, mark: PartialObject) -> Listed | Ended | None:
        """A bookmark: the version advances; one of them ends a streamed list."""
        metadata = mark.metadata
        version = metadata.resource_version
        connection.made_progress = True
        connection.idle_timeout = STREAMED_LIST_PATIENCE if self._listing else BOOKMARK_PATIENCE
        if self._listing:
            if metadata.annotations.get(END_OF_LIST) != "true":
                return None
            if not version:
                return self._ended(connection, Cause.UNREADABLE)
            connection.version = version
            connection.idle_timeout, connection.max_age = BOOKMARK_PATIENCE, math.inf
            self._end_list()
            return Listed(version)
        if is_older(version, connection.version):
            return self._ended(connection, Cause.REWOUND)
        connection.version = version or connection.version
        return None

    def _refused(self, connection: Connection, status: Json) -> Ended:
        error = error_of_status(status)
        cause = cause_of(error, in_stream=True)
        log.info("watch ended with an error", resource=self._name, cause=cause.value, error=str(error))
        return Ended(cause, connection.version, connection.made_progress, float(error.retry_after or 0))

    def _put_listed(self, raw: msgspec.Raw) -> None:
        """An object of a list; one that cannot be decoded keeps no other from being stored. Raises `DecodeError` for
        one without an identity: such a list does not say which objects there are, so nothing may be pruned by it."""
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
        self._listing = self._initial = self._outage = self._hurried = False
        self._seen = set()

    async def _closed(self, connection: Connection) -> Ended:
        """The stream ended, cleanly or not; a line cut short is forgotten, the next watch brings it again."""
        cause = cause_of_close(made_progress=connection.made_progress, seconds=connection.age)
        return await self._end(connection, cause)

    async def _silent(self, connection: Connection) -> Ended:
        cause = cause_of_silence(made_progress=connection.made_progress or self._listing, seconds=connection.age)
        return await self._end(connection, cause)

    async def _end(self, connection: Connection, cause: Cause) -> Ended:
        await self._disconnect()
        return self._ended(connection, cause)

    def _ended(self, connection: Connection, cause: Cause) -> Ended:
        return Ended(cause, connection.version, connection.made_progress)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _breathe(self) -> None:
        now = self._clock.monotonic()
        if now - self._yielded >= MAX_STALL:
            await asyncio.sleep(0)
            self._yielded = self._clock.monotonic()

    def _record(self, ended: Ended, action: Action) -> None:
        if action.verb is Verb.WATCH:
            self._metrics.rewatched(self._name, ended.cause.value)
        elif not action.token:
            self._metrics.relisted(self._name, ended.cause.value)

    def _tell(self, cause: Cause, error: str, action: Action) -> None:
        if action.verb is Verb.STREAM and cause is Cause.REJECTED:
            log.debug("server has no streamed lists", resource=self._name, error=error)
            return
        self._warn("list or watch failed", cause.value, verb=action.verb.value, cause=cause.value, error=error)

    def _warn(self, what: str, kind: str = "", **about: object) -> None:
        """Logs the same `what` and `kind` once in five minutes."""
        left_out = self._throttle.count(what + kind)
        if left_out is not None:
            log.warning(what, resource=self._name, left_out=left_out, **about)
