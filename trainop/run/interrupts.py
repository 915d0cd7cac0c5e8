"""Signals, as a command that runs pods obeys them: the first ends it in good order, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PIPE_CLOSED = 128 + signal.SIGPIPE
"""What a shell shows for a program whose reader has gone."""


class Interrupts:
    """`code` is what the process ends with once it was interrupted: 128+N for signal N."""

    def __init__(self) -> None:
        self.code = 0
        self.why = ""
        self.on_hurry: Callable[[], None] = lambda: None
        self._count = 0
        self._task: asyncio.Task[int] | None = None

    def watch(self, task: asyncio.Task[int]) -> None:
        """Cancels `task` when a signal comes. Signals that the caller had ignored, as nohup does, stay ignored."""
        self._task = task
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._hear, number)

    def stop(self, code: int, why: str = "") -> None:
        """As the first signal; nothing if one came before."""
        if self._task is not None and not self.code:
            self.code, self.why = code, why
            self._task.cancel()

    def lose_output(self, error: OSError) -> None:
        """Nobody reads what is printed: a program that goes on would run for nothing."""
        if isinstance(error, BrokenPipeError):
            self.stop(PIPE_CLOSED)
        else:
            self.stop(1, f"the output cannot be written: {error.strerror or error}")

    def _hear(self, number: int) -> None:
        self._count += 1
        if self._count > 2:  # not even a quick end came to its end; the kernel ends the pods with this process
            os._exit(128 + number)
        if self._count == 2 or self.code:
            self.on_hurry()
        else:
            self.stop(128 + number)
