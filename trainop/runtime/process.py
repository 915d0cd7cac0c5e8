"""Process settings for long-running programs: the file descriptor limit, and the release of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import resource

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
