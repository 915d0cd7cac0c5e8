"""Writes to the API server that are made again until they succeed or cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from trainop.runtime import ApiError, Clock, ConflictError, ForbiddenError, InvalidError, NotFoundError

_FIRST_RETRY, _LAST_RETRY = 0.2, 10.0

log = structlog.get_logger(__name__)


async def retry_api_call(action: Callable[[], Awaitable[object]], clock: Clock) -> bool:
    """Calls `action` with back-off until it succeeds (True) or fails permanently (False).

    Permanent errors are NotFound, Conflict (the pod was deleted or replaced), Invalid and Forbidden.
    """
    delay = _FIRST_RETRY
    while True:
        try:
            await action()
        except (NotFoundError, ConflictError):
            return False  # the pod was deleted, or replaced by another of the same name
        except (InvalidError, ForbiddenError) as error:
            log.warning("write rejected", error=str(error))
            return False
        except (ApiError, ConnectionError, TimeoutError) as error:
            log.warning("write failed", error=str(error), retry_in=delay)
        else:
            return True
        await clock.sleep(delay)
        delay = min(2 * delay, _LAST_RETRY)
