"""What is read for viewers: once for all of them, while there are any, and a moment longer for one that comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager

import msgspec
import structlog

from trainop.commands.logs import Positions
from trainop.errors import TrainopError
from trainop.runtime import ApiError, Json
from trainop.ui.feed import MAX_BYTES, Feed
from trainop.ui.source import JobId, Source

INTERVAL = 2.0
"""Seconds between two looks at the jobs, or at one."""
AGAIN = 1.0
"""Seconds between two attempts to stop what is read."""
LINGER = 30.0
"""Seconds for which a job that nobody looks at is followed, so that a viewer who returns misses nothing."""
MAX_JOBS = 16
"""That are followed at once; beyond it, viewers of further jobs are refused."""

FAILURES = (ApiError, ConnectionError, TimeoutError, TrainopError, OSError)
"""Of a read. The page shows the words, and the next look may succeed."""

log = structlog.get_logger(__name__)


class TooManyError(Exception):
    """No more jobs are followed at once."""


class Topic:
    """A value that viewers look at, as a server-sent event, with a version."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self.version = 0
        self.event = b""

    def set(self, value: object) -> bool:
        """Whether it has changed."""
        event = b"event: %s\ndata: %s\n\n" % (self._name, msgspec.json.encode(value))
        if event == self.event:
            return False
        self.event, self.version = event, self.version + 1
        return True


class Watched:
    """Something that is read as long as it has viewers. `bells` are theirs: each is set when there is news."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.bells: set[asyncio.Event] = set()
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self.left_at = 0.0

    def ring(self) -> None:
        for bell in self.bells:
            bell.set()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Cancels again and again: before Python 3.13, a group of tasks of which one fails meanwhile forgets it (see
        `_pause`)."""
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=AGAIN)  # one that has failed must not keep others from being stopped


class JobBoard(Watched):
    """One job: its state, the plots and the log."""

    def __init__(self, source: Source, wanted: JobId, log_bytes: int) -> None:
        super().__init__(self._follow)
        self._source, self._wanted = source, wanted
        self.job, self.plots, self.feed = Topic("job"), Topic("plots"), Feed(self.ring, max_bytes=log_bytes)
        self._positions: Positions = {}

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look())
            tasks.create_task(self._read_logs())
            tasks.create_task(self.feed.run())

    async def _look(self) -> None:
        plots = self._source.plots(self._wanted)
        while True:
            try:
                view, raw = await self._source.job(self._wanted)
                if not self._source.has_ended:
                    plots.take(raw.get("status") or {}, time.time())
                changed = self.plots.set(plots.as_json())
            except FAILURES as error:
                view, changed = {"error": _words(error)}, False
            if self.job.set(view) or changed:
                self.ring()
            if self._source.has_ended:
                return
            await _pause()

    async def _read_logs(self) -> None:
        """A cluster that does not answer is asked again, and a run that has just ended is read from its folder."""
        while True:
            try:
                return await self._source.logs(self._wanted, self.feed, self._positions)
            except FAILURES as error:
                problem = f"the logs cannot be read: {_words(error)}"
            is_run = self._source.run is not None  # whose server is gone a moment before it is known to have ended
            if not is_run:
                self.feed.note(problem)
            await _pause()
            if is_run and not self._source.has_ended:
                self.feed.note(problem)


class Board:
    """All that is read of one source, with `log_bytes` of the log of each job."""

    def __init__(self, source: Source, *, log_bytes: int = MAX_BYTES) -> None:
        self._source, self._log_bytes = source, log_bytes
        self.jobs = Topic("jobs")
        self._list = Watched(self._look)
        self._followed: dict[JobId, JobBoard] = {}

    @property
    def followed(self) -> Collection[JobId]:
        """The jobs that are read, because somebody looks at them or has just done so."""
        return self._followed.keys()

    async def _look(self) -> None:
        while True:
            try:
                value: Json = await self._source.jobs()
            except FAILURES as error:
                value = {"error": _words(error)}
            if self.jobs.set(value):
                self._list.ring()
            await _pause()

    @contextmanager
    def viewer(self, bell: asyncio.Event, wanted: JobId | None) -> Iterator[JobBoard | None]:
        """One that looks at the jobs, and at one of them. Raises `TooManyError`."""
        followed = self._follow(wanted) if wanted is not None else None
        watched: list[Watched] = [self._list, *([followed] if followed is not None else [])]
        for each in watched:
            each.bells.add(bell)
            each.start()
        try:
            yield followed
        finally:
            for each in watched:
                each.bells.discard(bell)
                each.left_at = time.monotonic()

    def _follow(self, wanted: JobId) -> JobBoard:
        found = self._followed.get(wanted)
        if found is None:
            if len(self._followed) >= MAX_JOBS:
                raise TooManyError(f"at most {MAX_JOBS} jobs are followed at once; close a tab")
            found = self._followed[wanted] = JobBoard(self._source, wanted, self._log_bytes)
        return found

    async def run(self) -> None:
        """Stops what has lost its last viewer, until cancelled; then all."""
        try:
            while True:
                await asyncio.sleep(1)
                await self._sweep(time.monotonic() - LINGER)
        finally:
            await self._list.stop()
            for each in self._followed.values():
                await each.stop()

    async def _sweep(self, before: float) -> None:
        if not self._list.bells and self._list.left_at < before:
            await self._list.stop()
        for wanted, each in [*self._followed.items()]:
            if not each.bells and each.left_at < before:
                del self._followed[wanted]
                await each.stop()


async def _pause() -> None:
    """Between two looks. Before Python 3.13, a group of tasks of which one fails while it is cancelled raises only the
    failure, and a group around it cancels no task twice: who goes on after a failure has to ask."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(INTERVAL)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
