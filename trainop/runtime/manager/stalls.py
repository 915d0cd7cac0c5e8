"""Detects stalls of the event loop and logs the code that blocks it. A blocking call delays all controllers.

The loop is monitored from a thread, because code on the loop cannot run before the stall is over. Uses real time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)


class _Clocks(NamedTuple):
    monotonic: float
    processor: float
    """Processor time of the loop's thread; 0 where the platform cannot read it."""


def _read_clocks(thread: int | None = None) -> _Clocks:
    """The clocks of a thread, by default of the calling one."""
    try:
        processor = time.clock_gettime(time.pthread_getcpuclockid(thread or threading.get_ident()))
    except (AttributeError, OSError):  # Windows; the thread has ended
        processor = 0.0
    return _Clocks(time.monotonic(), processor)


class StallWatch:
    """A runnable that logs one warning per stall of more than `threshold` seconds.

    The warning names the running task and the innermost stack frame. `processor_seconds` is the processor time that the
    loop's thread used during the stall: far less than `seconds` means that it waits, or that the machine is overloaded.
    """

    def __init__(self, threshold: float = 1.0) -> None:
        self._threshold = threshold
        self._heartbeat = _read_clocks()

    async def run(self) -> None:
        """Monitors the running loop until cancelled."""
        self._heartbeat = _read_clocks()
        stop = threading.Event()
        watcher = threading.Thread(
            target=self._watch,
            args=(asyncio.get_running_loop(), threading.get_ident(), stop),
            name="stall-watch",
            daemon=True,
        )
        watcher.start()
        try:
            while True:
                self._heartbeat = _read_clocks()
                await asyncio.sleep(self._threshold / 4)
        finally:
            stop.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, stop: threading.Event) -> None:
        reported = None
        while not stop.wait(self._threshold / 4):
            heartbeat = self._heartbeat
            now = _read_clocks(thread)
            if now.monotonic - heartbeat.monotonic > self._threshold and heartbeat != reported:
                reported = heartbeat
                task = asyncio.current_task(loop)
                log.warning(
                    "event loop stalled",
                    seconds=round(now.monotonic - heartbeat.monotonic, 1),
                    processor_seconds=round(now.processor - heartbeat.processor, 2),
                    task=task.get_name() if task else None,
                    at=_innermost(thread),
                )


def _innermost(thread: int) -> str | None:
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # documented; the only way to inspect another thread
    if frame is None:
        return None
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} {last.name}"
