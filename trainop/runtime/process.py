"""Process settings for long-running programs: file descriptors, freed memory, garbage collection, the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import re
import resource
from collections.abc import Callable, Mapping
from typing import Any

import structlog

log = structlog.get_logger(__name__)

MAX_DESCRIPTORS = 65_536
"""Highest limit that is set. With an unlimited number, programs that close all possible descriptors become slow."""

LARGE_BLOCK = 128 * 1024
"""Freed blocks of at least this many bytes are returned to the system at once. This is glibc's initial threshold."""

_HANDLE_CLOSED = "the handler is closed"
"""Part of uvloop's message if TLS writes to a connection just closed (`handles/handle.pyx`, `_ensure_alive`)."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""Parameters of glibc's `mallopt` (malloc.h)."""


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard limit, at most to 65,536. Returns the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):  # some sandboxes do not permit it
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """The soft limit of open files; 65,536 if it is unlimited."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def return_freed_memory() -> bool:
    """Makes glibc return large blocks to the system when they are freed. Returns False with another C library.

    By default glibc raises its threshold to the size of the largest block freed so far, up to 32 MiB. After one object
    of 1 MiB, smaller bodies and buffers would be allocated on the heap, fragment it and keep it from shrinking.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(option, LARGE_BLOCK) == 1 for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))


def tune_garbage_collector() -> None:
    """Reduces pauses of the cyclic garbage collector, which stops the event loop for 30 ms per 100,000 objects.

    Objects that exist at start (modules) are exempted with `freeze`. Collections are rarer than by default, because
    cached objects do not form reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 80)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """A function that makes an event loop, of uvloop if it is installed, which logs by `log_loop_error`."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415  # optional

        make = uvloop.new_event_loop

    def make_loop() -> asyncio.AbstractEventLoop:
        loop = make()
        loop.set_exception_handler(log_loop_error)
        return loop

    return make_loop


def log_loop_error(_loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Logs an error that no task receives, as one entry without representations of transports, tasks and sockets."""
    error = context.get("exception")
    if isinstance(error, RuntimeError) and _HANDLE_CLOSED in str(error):
        log.debug("connection closed with unsent data")  # the request gets an error of its own
    else:
        detail = _ADDRESS.sub("", str(context.get("message", "")))
        log.error("error in the event loop", detail=detail, exc_info=error)
