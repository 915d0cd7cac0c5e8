"""Watches: a reader's place in the history of a table, and the stream that follows it.

A watch has no buffer of its own. It remembers where it stands in the table's history; if it is so slow that the history
is cut off before it, it ends with 410, as a slow watcher does in the API server's watch cache.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.request.lists import ListOptions, Selected, parse_version
from trainop.local.api.request.render import Renderer
from trainop.local.api.status_errors import StatusError
from trainop.local.api.storage.versioned_store import Change, Store, Stored, Table
from trainop.runtime.clock import Clock

_BOOKMARK_EVERY = 60.0
_BOOKMARK_BEFORE_END = 2.0
_BATCH = 500


class Watch:
    """A `Stream` of watch lines; what it shows begins when it is made, not when it is first read."""

    status = 200
    headers: Mapping[str, str] = {"content-type": "application/json", "cache-control": "no-cache, private"}

    def __init__(
        self,
        store: Store,
        table: Table,
        options: ListOptions,
        *,
        selected: Selected,
        renderer: Renderer,
        clock: Clock,
        rng: random.Random,
        forget: Callable[[Watch], None],
    ) -> None:
        self._store = store
        self._table = table
        self._selected = selected
        self._renderer = renderer
        self._clock = clock
        self._forget = forget
        self._bookmarks = options.bookmarks
        self._woken = asyncio.Event()
        self._alarm: asyncio.Task[None] | None = None
        """Rings when a bookmark is due, or the end."""
        self._closed = False
        self._refused: StatusError | None = None
        self._initial: list[Stored] = []
        self._ends_initial = False
        self._seen = store.version
        self._position = table.trimmed + len(table.history)
        self._begin(options)
        seconds = options.timeout_seconds or rng.uniform(1800, 3600)
        self._deadline = clock.monotonic() + seconds
        self._next_bookmark = self._bookmark_after(clock.monotonic())
        table.wakers[self._woken.set] = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Lines as they come about, several in one chunk if they are there at once."""
        try:
            if self._refused is not None:
                raise self._refused
            for chunk in self._first_lines():
                yield chunk
            while not self._closed:
                if lines := self._next_lines():
                    yield lines
                elif self._bookmark_due():
                    yield self._renderer.bookmark(self._store.version)
                elif self._finished():
                    return
                else:
                    await self._pause()
        except StatusError as error:
            yield _error_line(error)
        finally:
            self.end()

    async def close(self) -> None:
        """End the stream; whoever reads it sees it end."""
        self.end()

    def end(self) -> None:
        self._closed = True
        self._forget(self)
        self._table.wakers.pop(self._woken.set, None)
        self._woken.set()
        if self._alarm is not None:
            self._alarm.cancel()

    def _begin(self, options: ListOptions) -> None:
        """Find the place in the history, or the state to begin with."""
        version = _version(options.resource_version)
        initial = options.send_initial_events
        if initial is None:
            initial = version == 0
        if initial:
            if version > self._store.version:
                self._refused = status_errors.too_large(version, self._store.version)
                return
            self._initial = [self._table.objects[key] for key in self._table.keys()]  # noqa: SIM118 - no mapping
            self._ends_initial = options.send_initial_events is True and self._bookmarks
        elif version:
            if version < self._table.compacted_version:
                self._refused = status_errors.expired(
                    f"too old resource version: {version} ({self._table.compacted_version})"
                )
                return
            self._position = self._table.position_after(version)

    def _first_lines(self) -> Iterator[bytes]:
        shown = [stored for stored in self._initial if self._selected(stored)]
        self._initial = []
        for first in range(0, len(shown), _BATCH):
            yield b"".join(self._renderer.event("ADDED", stored) for stored in shown[first : first + _BATCH])
        if self._ends_initial:
            yield self._renderer.bookmark(self._seen, initial_events_end=True)

    def _next_lines(self) -> bytes:
        """What happened since, at most a batch; empty if nothing did that is asked for. Raises what ends the watch."""
        lines: list[bytes] = []
        while not lines:
            changes = self._table.since(self._position, _BATCH)
            if changes is None:
                raise status_errors.expired(f"too old resource version: {self._seen} ({self._table.compacted_version})")
            if not changes:
                return b""
            self._position += len(changes)
            self._seen = changes[-1].version
            lines = [line for line in map(self._line, changes) if line]
        return b"".join(lines)

    def _line(self, change: Change) -> bytes:
        """The change as this watch sees it: entering and leaving the selection are ADDED and DELETED."""
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
        last = self._deadline - _BOOKMARK_BEFORE_END
        return min(now + _BOOKMARK_EVERY, last) if self._bookmarks and now < last else math.inf

    def _bookmark_due(self) -> bool:
        now = self._clock.monotonic()
        if now < self._next_bookmark or now >= self._deadline:
            return False
        self._next_bookmark = self._bookmark_after(now)
        return True

    def _finished(self) -> bool:
        return self._table.closed or self._clock.monotonic() >= self._deadline

    async def _pause(self) -> None:
        self._woken.clear()
        if self._alarm is None or self._alarm.done():
            self._alarm = asyncio.create_task(self._ring())
        await self._woken.wait()

    async def _ring(self) -> None:
        until = min(self._deadline, self._next_bookmark)
        await self._clock.sleep(max(0.0, until - self._clock.monotonic()))
        self._woken.set()


def _version(text: str) -> int:
    """As of a list, but the API server calls a bad one its own error."""
    try:
        return parse_version(text)
    except StatusError as error:
        raise StatusError(500, "", error.message.removeprefix("invalid resource version: ")) from error


def _error_line(error: StatusError) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": error.status}) + b"\n"
