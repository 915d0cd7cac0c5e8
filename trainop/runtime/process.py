"""What a long-running process sets for itself at start: open files, and how memory is given back."""

from __future__ import annotations

import contextlib
import ctypes
import resource

ENOUGH = 65_536
"""A limit without bound makes programs slow that close all descriptors there could be."""

LARGE_BLOCK = 128 * 1024
"""Bytes from which on a freed block of memory goes back to the system at once: glibc's own threshold at start."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""Of glibc's `mallopt`."""


def raise_descriptor_limit() -> int:
    """Raises the soft limit to the hard one, at most to 65,536, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some sandboxes refuse it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """The soft limit, as a number also if there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


def return_freed_memory() -> bool:
    """Makes glibc give large blocks back to the system when they are freed; false with another C library.

    By default glibc raises its threshold to the size of the largest block freed so far, up to 32 MiB. After one object
    of a megabyte the bodies and buffers of all later ones then fragment the heap, which never shrinks again.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(option, LARGE_BLOCK) == 1 for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))
