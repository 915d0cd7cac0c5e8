"""Repeats requests to the API server that fail for a moment: an answer with status 500 ends a coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from trainop.runtime import ApiError, Clock

T = TypeVar("T")
Failure: TypeAlias = ApiError | ConnectionError | TimeoutError
FAILURES = (ApiError, ConnectionError, TimeoutError)

PATIENCE = 10.0
"""Seconds for which a request is repeated."""

FIRST_DELAY = 0.1
MAX_DELAY = 2.0


def is_transient(error: Failure) -> bool:
    """Whether the same request may succeed later."""
    return not isinstance(error, ApiError) or error.code >= 500 or error.code == 429


def is_uncertain(error: Failure) -> bool:
    """Whether the request may have had its effect nevertheless."""
    return not isinstance(error, ApiError) or error.code >= 500


async def persist(send: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The result of `send`, which is repeated while it fails for transient reasons. It must be safe to repeat."""
    deadline, delay = clock.monotonic() + PATIENCE, FIRST_DELAY
    while True:
        try:
            return await send()
        except FAILURES as error:
            wait = max(delay, (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0)
            if not is_transient(error) or clock.monotonic() + wait > deadline:
                raise
        await clock.sleep(wait)
        delay = min(2 * delay, MAX_DELAY)
