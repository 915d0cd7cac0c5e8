"""Prints from a separate thread, so that a blocked terminal or pipe never blocks the event loop."""

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

_REFRESH_INTERVAL = 0.2  # seconds between refreshes of the live table while nothing is printed
_EXIT_TIMEOUT = 1.0  # seconds for printing the rest of the output after an interruption
THREAD = "output"


class Terminal(Console):
    """A console that raises `BrokenPipeError` instead of exiting the process."""

    def on_broken_pipe(self) -> NoReturn:
        raise  # noqa: PLE0704  # called while BrokenPipeError is handled


class Output:
    """Queues output and writes it from a thread. All methods must be called on the event loop.

    `failed` is called once, on the event loop, with the first write error. All later output is discarded.
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
            self._thread.join(_EXIT_TIMEOUT)

    def print(self, *what: RenderableType) -> None:
        """Queues lines of rich text. Does not block."""
        self._queue.put(lambda: self.console.print(*what, soft_wrap=True))

    def write(self, text: str) -> None:
        """Queues plain text. Does not block."""
        self._queue.put(lambda: (self.console.file.write(text), self.console.file.flush()))

    def show(self, live: Live) -> None:
        """Displays `live` below the printed lines. Its own refresh must be disabled."""
        self._queue.put(lambda: self._start(live))

    def hide(self) -> None:
        """Removes the display that `show` started."""
        self._queue.put(self._stop)

    async def drained(self) -> None:
        """Returns when all output queued so far has been written or discarded."""
        done = self._loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def report() -> None:
            with suppress(RuntimeError):  # the event loop is closed, so that nothing waits
                self._loop.call_soon_threadsafe(settle)

        self._queue.put(report)
        await done

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
                task = self._queue.get(timeout=_REFRESH_INTERVAL)
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
                self._discard_output(error)

    def _discard_output(self, error: OSError | ValueError) -> None:
        """Redirects all further output to /dev/null, including what Python flushes at exit."""
        self._live = None
        with suppress(OSError, ValueError, AttributeError):
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self.console.file.fileno())
            os.close(null)
        if not self._broken:
            self._broken = True
            reported = error if isinstance(error, OSError) else OSError(str(error))
            with suppress(RuntimeError):  # as above
                self._loop.call_soon_threadsafe(self._failed, reported)
