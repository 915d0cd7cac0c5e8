"""How many files and sockets the process may have open."""

from __future__ import annotations

import contextlib
import resource

ENOUGH = 65_536
"""A limit without bound makes programs slow that close all descriptors there could be."""


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
