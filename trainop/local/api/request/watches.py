"""WATCH: a position in the history of a table, and the stream of events from there on.

A watch has no buffer. It reads from the table's history at its own speed; if the history has been trimmed past its
position, it ends with 410, like a slow watcher of the watch cache in kube-apiserver.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.request.lists import Filter, ListOptions, parse_version
from trainop.local.api.request.render import Renderer
from trainop.local.api.status_errors import StatusError
from trainop.local.api.storage.versioned_store import Change, Store, Stored, Table
from trainop.runtime import Clock

_BOOKMARK_INTERVAL = 60.0
_LAST_BOOKMARK_BEFORE_TIMEOUT = 2.0
_BATCH_SIZE = 500


class Watch:
    """A `Stream` of watch events. It starts at its construction, not at the first read."""

    status = 200
    headers: Mapping[str, str] = {"content-type": "application/json", "cache-control": "no-cache, private"}

    def __init__(
        self,
        store: Store,
        table: Table,
        options: ListOptions,
        *,
        selected: Filter,
        renderer: Renderer,
        clock: Clock,
        rng: random.Random,
        on_end: Callable[[Watch], None],
    ) -> None:
        self._store = store
        self._table = table
        self._selected = selected
        self._renderer = renderer
        self._clock = clock
        self._on_end = on_end
        self._bookmarks = options.bookmarks
        self._wake_up = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        """Sleeps until the next bookmark or the timeout is due."""
        self._closed = False
        self._start_error: StatusError | None = None
        self._initial: list[Stored] = []
        self._sends_initial_events_end = False
        self._seen = store.version
        self._position = table.trimmed + len(table.history)
        self._set_start(options)
        seconds = options.timeout_seconds or rng.uniform(1800, 3600)
        self._deadline = clock.monotonic() + seconds
        self._next_bookmark = self._bookmark_after(clock.monotonic())
        table.wakers[self._wake_up.set] = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Events as they occur; events that are available together form one chunk."""
        try:
            if self._start_error is not None:
                raise self._start_error
            for chunk in self._initial_events():
                yield chunk
            while not self._closed:
                if lines := self._next_events():
                    yield lines
                elif self._bookmark_due():
                    yield self._renderer.bookmark(self._store.version)
                elif self._has_ended():
                    return
                else:
                    await self._wait()
        except StatusError as error:
            yield _error_line(error)
        finally:
            self.end()

    async def close(self) -> None:
        """End the stream, also for a reader that waits for events."""
        self.end()

    def end(self) -> None:
        """End the stream and release its callbacks; idempotent."""
        self._closed = True
        self._on_end(self)
        self._table.wakers.pop(self._wake_up.set, None)
        self._wake_up.set()
        if self._timer is not None:
            self._timer.cancel()

    def _set_start(self, options: ListOptions) -> None:
        """Set the start: initial events of the current state, a position in the history, or an error."""
        version = _parse_version(options.resource_version)
        initial = options.send_initial_events
        if initial is None:
            initial = version == 0
        if initial:
            if version > self._store.version:
                self._start_error = status_errors.too_large(version, self._store.version)
                return
            self._initial = [self._table.objects[key] for key in self._table.keys()]  # noqa: SIM118 - no mapping
            self._sends_initial_events_end = options.send_initial_events is True and self._bookmarks
        elif version:
            if version < self._table.compacted_version:
                self._start_error = status_errors.expired(
                    f"too old resource version: {version} ({self._table.compacted_version})"
                )
                return
            self._position = self._table.position_after(version)

    def _initial_events(self) -> Iterator[bytes]:
        shown = [stored for stored in self._initial if self._selected(stored)]
        self._initial = []
        for first in range(0, len(shown), _BATCH_SIZE):
            yield b"".join(self._renderer.event("ADDED", stored) for stored in shown[first : first + _BATCH_SIZE])
        if self._sends_initial_events_end:
            yield self._renderer.bookmark(self._seen, initial_events_end=True)

    def _next_events(self) -> bytes:
        """The next batch of selected events; empty if there is none yet. Raises 410 if the history is too short."""
        lines: list[bytes] = []
        while not lines:
            changes = self._table.since(self._position, _BATCH_SIZE)
            if changes is None:
                raise status_errors.expired(f"too old resource version: {self._seen} ({self._table.compacted_version})")
            if not changes:
                return b""
            self._position += len(changes)
            self._seen = changes[-1].version
            lines = [line for line in map(self._event, changes) if line]
        return b"".join(lines)

    def _event(self, change: Change) -> bytes:
        """The event of a change; an object that enters or leaves the selection is ADDED or DELETED."""
        was = change.old is not None and self._selected(change.old)
        if change.new is None:
            assert change.deleted is not None  # noqa: S101 - a deletion has a final state
            return self._renderer.event("DELETED", change.deleted) if was else b""
        now = self._selected(change.new)
        if now:
            return self._renderer.event("MODIFIED" if was else "ADDED", change.new)
        if was and change.old is not None:
            return self._renderer.event("DELETED", change.old.at_version(change.version))
        return b""

    def _bookmark_after(self, now: float) -> float:
        last = self._deadline - _LAST_BOOKMARK_BEFORE_TIMEOUT
        return min(now + _BOOKMARK_INTERVAL, last) if self._bookmarks and now < last else math.inf

    def _bookmark_due(self) -> bool:
        now = self._clock.monotonic()
        if now < self._next_bookmark or now >= self._deadline:
            return False
        self._next_bookmark = self._bookmark_after(now)
        return True

    def _has_ended(self) -> bool:
        return self._table.closed or self._clock.monotonic() >= self._deadline

    async def _wait(self) -> None:
        self._wake_up.clear()
        if self._timer is None or self._timer.done():
            self._timer = asyncio.create_task(self._wake_when_due())
        await self._wake_up.wait()

    async def _wake_when_due(self) -> None:
        until = min(self._deadline, self._next_bookmark)
        await self._clock.sleep(max(0.0, until - self._clock.monotonic()))
        self._wake_up.set()


def _parse_version(text: str) -> int:
    """As `parse_version`, but kube-apiserver answers 500 to an invalid resourceVersion of a watch."""
    try:
        return parse_version(text)
    except StatusError as error:
        raise StatusError(500, "", error.message.removeprefix("invalid resource version: ")) from error


def _error_line(error: StatusError) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": error.status}) + b"\n"
