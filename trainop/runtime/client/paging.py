"""Lists come in pages; a server that never comes to the last one is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from trainop.runtime.client.transport import AnswerTooLongError
from trainop.runtime.errors import ApiError

T = TypeVar("T")

MAX_BARREN = 3
"""Pages in a row without a new object after which a list is given up."""

MAX_PAGES = 10_000
"""Pages of a list; 250 objects each are more than etcd holds."""


FEWER = 4
"""A page that is too long is asked for again with so many times fewer objects."""


class EndlessListError(ApiError):
    """The server announces ever more pages of a list."""


class Pages:
    """Counts the pages of one list."""

    def __init__(self) -> None:
        self._pages = 0
        self._barren = 0
        self._token = ""

    def follow(self, token: str, *, grew: bool) -> None:
        """Before the page for `token` is asked for; `grew`: the last page had an object that none before it had.
        Raises `EndlessListError`."""
        self._pages += 1
        self._barren = 0 if grew else self._barren + 1
        if token == self._token or self._barren >= MAX_BARREN or self._pages >= MAX_PAGES:
            raise EndlessListError(200, "EndlessList", f"the list does not end after {self._pages} pages", {})
        self._token = token


async def ask_for_fewer(ask: Callable[[int], Awaitable[T]], limit: int) -> T:
    """The page that `ask` gets with at most `limit` objects, or with fewer if the answer is too long. Raises what `ask`
    raises, and `AnswerTooLongError` if one object is too long."""
    while True:
        try:
            return await ask(limit)
        except AnswerTooLongError:
            if limit <= 1:
                raise
            limit = max(1, limit // FEWER)
