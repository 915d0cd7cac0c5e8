"""Prints in a thread of its own: a terminal or pipe that nobody reads holds up that thread, never the event loop."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from rich.console import Console, RenderableType
from rich.live import Live

_REFRESH = 0.2  # seconds between two pictures of a table that nothing else moves
_PATIENCE = 1.0  # seconds that a reader gets for the rest when the command was interrupted
THREAD = "output"


class Terminal(Console):
    """A console that reports a reader who is gone as the error that it is."""

    def on_broken_pipe(self) -> NoReturn:
        raise  # noqa: PLE0704  # called while BrokenPipeError is handled


class Output:
    """What was printed before `drained` returns is written; nothing is kept for a reader who is gone.

    `failed` is called in the event loop, once, with the error that made the output useless.
    """

    def __init__(self, console: Console, failed: Callable[[OSError], None] = lambda error: None) -> None:
        self.console = console
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=THREAD, daemon=True)
        self._broken = False
        self._live: Live | None = None

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.drained()
        finally:
            self._queue.put(None)
            self._thread.join(_PATIENCE)

    def print(self, *what: RenderableType) -> None:
        """Lines of rich text; never waits."""
        self._queue.put(lambda: self.console.print(*what, soft_wrap=True))

    def write(self, text: str) -> None:
        """Text as it is; never waits."""
        self._queue.put(lambda: (self.console.file.write(text), self.console.file.flush()))

    def show(self, live: Live) -> None:
        """Keeps `live`, which must not refresh itself, below all that is printed."""
        self._queue.put(lambda: self._start(live))

    def hide(self) -> None:
        """Ends what `show` began."""
        self._queue.put(self._stop)

    async def drained(self) -> None:
        """Returns when all that was printed so far is written, or nobody is there to read it."""
        reached = self._loop.create_future()

        def settle() -> None:
            if not reached.done():
                reached.set_result(None)

        def report() -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                self._loop.call_soon_threadsafe(settle)

        self._queue.put(report)
        await reached

    def _start(self, live: Live) -> None:
        self._live = live
        live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None

    def _work(self) -> None:
        while True:
            try:
                task = self._queue.get(timeout=_REFRESH)
            except queue.Empty:
                task = self._live.refresh if self._live is not None else None
                if task is None:
                    continue
            else:
                if task is None:
                    return
            try:
                task()
            except (OSError, ValueError) as error:  # ValueError: the file is closed
                self._break(error)

    def _break(self, error: OSError | ValueError) -> None:
        """Sends everything else nowhere, also what Python would still write when it ends."""
        self._live = None
        with suppress(OSError, ValueError, AttributeError):
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self.console.file.fileno())
            os.close(null)
        if not self._broken:
            self._broken = True
            told = error if isinstance(error, OSError) else OSError(str(error))
            with suppress(RuntimeError):  # as above
                self._loop.call_soon_threadsafe(self._failed, told)
