"""Calls of event handlers, isolated from each other: an exception in one call does not prevent the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def attempt(call: Callable[[T], None], subject: T) -> Exception | None:
    """Calls `call(subject)` and returns the exception that it raised, if any."""
    try:
        call(subject)
    # A mapper or predicate that fails for one object must not block other objects or other handlers.
    except Exception as error:  # noqa: BLE001
        return error
    return None


def attempt_each(call: Callable[[T], None], subjects: Iterable[T]) -> None:
    """Calls `call` for every subject, and then raises: one exception as it is, several as an `ExceptionGroup`."""
    errors = [error for subject in subjects if (error := attempt(call, subject)) is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several handlers failed", errors)
