"""Signal handling of commands that run pods: the first signal shuts down gracefully, the second kills the pods.

SIGHUP never counts as the second."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PIPE_CLOSED = 128 + signal.SIGPIPE
"""Exit code after the reader of the output pipe has closed it, as shells report it."""


class Interrupts:
    """Cancels the session on signals or output errors.

    `code` is the exit code after an interruption (128+N for signal N), 0 before. `message` explains it to the user.
    """

    def __init__(self) -> None:
        self.code = 0
        self.message = ""
        self.on_second_signal: Callable[[], None] = lambda: None
        self._count = 0
        self._task: asyncio.Task[int] | None = None

    def watch(self, task: asyncio.Task[int]) -> None:
        """Cancels `task` on the first signal. Signals that the parent process ignores (nohup) stay ignored."""
        self._task = task
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def stop(self, code: int, message: str = "") -> None:
        """Cancels the task as the first signal does; no effect after an interruption."""
        if self._task is not None and not self.code:
            self.code, self.message = code, message
            self._task.cancel()

    def on_output_error(self, error: OSError) -> None:
        """Stops the session, because its output cannot be written any more."""
        if isinstance(error, BrokenPipeError):
            self.stop(PIPE_CLOSED)
        else:
            self.stop(1, f"the output cannot be written: {error.strerror or error}")

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._hang_up()
            return
        self._count += 1
        if self._count > 2:  # killing the pods hangs; the kernel kills them when this process exits
            os._exit(128 + number)
        if self._count == 2 or self.code:
            self.on_second_signal()
        else:
            self.stop(128 + number)

    def _hang_up(self) -> None:
        """A closed terminal sends SIGHUP once or, by the shell in it, several times, and writes to it fail before or
        after. All of that is one interruption, in which nobody asks to kill the pods."""
        if self.message:  # a write failed first
            self.code, self.message = 128 + signal.SIGHUP, ""
        else:
            self.stop(128 + signal.SIGHUP)
