"""Process settings for long-running programs: file descriptors, freed memory, garbage collection, the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
from collections.abc import Callable

MAX_DESCRIPTORS = 65_536
"""Highest limit that is set. With an unlimited number, programs that close all possible descriptors become slow."""

LARGE_BLOCK = 128 * 1024
"""Freed blocks of at least this many bytes are returned to the system at once. This is glibc's initial threshold."""

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


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop if it is installed, else None."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
