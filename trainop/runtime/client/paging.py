"""Paged lists: detects endless lists, and shrinks pages whose body would be too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from trainop.runtime.client.transport import AnswerTooLongError
from trainop.runtime.errors import ApiError

T = TypeVar("T")

PAGE_SIZE = 250
"""Objects per page of a list. Parsing a page blocks the event loop: 500 pods of 5 KiB would take 110 ms."""

MAX_PAGE = 16 * 1024 * 1024
"""Maximum bytes of a page with more than one object. Longer pages are requested again with a smaller limit."""

MAX_LIST = PAGE_SIZE * 1536 * 1024
"""Maximum bytes of a list that was requested with limit 1. Servers without paging return the whole list; this is enough
for `PAGE_SIZE` of the largest objects that etcd accepts."""

MAX_PAGES_WITHOUT_PROGRESS = 3
"""Consecutive pages without a new object after which a list is aborted."""

MAX_PAGES = 10_000
"""Maximum pages of a list; at 250 objects each, more than etcd holds."""

SHRINK_FACTOR = 4
"""A page that is too long is requested again with this many times fewer objects."""


class EndlessListError(ApiError):
    """The server keeps returning continue tokens for a list that does not grow, or grows beyond `MAX_PAGES`."""


class Pages:
    """Tracks the pages of one list, to detect an endless one."""

    def __init__(self) -> None:
        self._pages = 0
        self._without_progress = 0
        self._token = ""

    def advance(self, token: str, *, grew: bool) -> None:
        """Call before the page for the continue token `token` is requested. `grew`: the last page contained an object
        that no earlier page had. Raises `EndlessListError`."""
        self._pages += 1
        self._without_progress = 0 if grew else self._without_progress + 1
        if token == self._token or self._without_progress >= MAX_PAGES_WITHOUT_PROGRESS or self._pages >= MAX_PAGES:
            raise EndlessListError(200, "EndlessList", f"the list does not end after {self._pages} pages", {})
        self._token = token


async def fetch_fitting_page(fetch: Callable[[int], Awaitable[T]], limit: int) -> T:
    """Calls `fetch(limit)`, with smaller limits while the response is too long. Raises what `fetch` raises, and
    `AnswerTooLongError` if a page with a single object is too long."""
    while True:
        try:
            return await fetch(limit)
        except AnswerTooLongError:
            if limit <= 1:
                raise
            limit = max(1, limit // SHRINK_FACTOR)
