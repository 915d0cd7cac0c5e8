"""Tells when the event loop stands still, and what it was at: blocking calls harm all controllers at once.

A thread looks on, since from within the loop a stall can only be seen when it is over. Real time only.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback

import structlog

log = structlog.get_logger(__name__)


class StallWatch:
    """`threshold` in seconds; one line per stall, with the task and the innermost line of code."""

    def __init__(self, threshold: float = 1.0) -> None:
        self._threshold = threshold
        self._beat = time.monotonic()

    async def run(self) -> None:
        """Watches the running loop until cancelled."""
        self._beat = time.monotonic()
        ended = threading.Event()
        watcher = threading.Thread(
            target=self._watch,
            args=(asyncio.get_running_loop(), threading.get_ident(), ended),
            name="stall-watch",
            daemon=True,
        )
        watcher.start()
        try:
            while True:
                self._beat = time.monotonic()
                await asyncio.sleep(self._threshold / 4)
        finally:
            ended.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, ended: threading.Event) -> None:
        told = 0.0
        while not ended.wait(self._threshold / 4):
            beat = self._beat
            if time.monotonic() - beat > self._threshold and beat != told:
                told = beat
                task = asyncio.current_task(loop)
                log.warning(
                    "event loop stalled",
                    seconds=round(time.monotonic() - beat, 1),
                    task=task.get_name() if task else None,
                    at=_innermost(thread),
                )


def _innermost(thread: int) -> str | None:
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # documented, and the only way to see another thread
    if frame is None:
        return None
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} {last.name}"
