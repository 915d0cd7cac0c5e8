"""Calls that must not keep others from being made: what a handler raises is returned, or raised when all are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def attempt(call: Callable[[T], None], subject: T) -> Exception | None:
    """`call(subject)`; returns what it raised."""
    try:
        call(subject)
    # A mapper or predicate that fails for one object must not keep others, or other handlers, from being told.
    except Exception as error:  # noqa: BLE001
        return error
    return None


def attempt_each(call: Callable[[T], None], subjects: Iterable[T]) -> None:
    """`call` for every subject; only then raises the error of the one call that failed, or all in an
    `ExceptionGroup`."""
    errors = [error for subject in subjects if (error := attempt(call, subject)) is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several handlers failed", errors)
