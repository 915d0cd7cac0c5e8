"""`Fields`: reads typed values from unvalidated JSON and collects field errors in the API server's wording.

No content raises an exception: each method returns a value of its type and adds an error if the input is invalid.
Sizes of messages and numbers of errors are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from trainop.runtime import Json, Unstructured
from trainop.runtime.lowlevel import (
    DUPLICATE,
    FORBIDDEN,
    INVALID,
    LONGEST_TEXT,
    NOT_SUPPORTED,
    REQUIRED,
    TOO_MANY,
    FieldError,
    cut,
    join_some,
)

T = TypeVar("T")

MAX_SENTENCE_LENGTH = LONGEST_TEXT - 128
"""Bytes of a message made of errors; leaves room for the text before it."""

MAX_INVALID_ENTRIES = 100
"""Invalid entries of one list that are reported; the rest of the list is not read."""

MAX_LABEL_LENGTH = 63
TOO_LONG = f"must be no more than {MAX_LABEL_LENGTH} characters"

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NOT_DNS_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)

MAX_PATH_LENGTH = 256
MAX_VALUE_LENGTH = 100


def label_faults(name: str) -> list[str]:
    """Why the name is no DNS-1035 label, as the names of Services have to be, in the API server's words
    (apimachinery `validation.IsDNS1035Label`)."""
    faults = [] if _DNS_1035.fullmatch(name) else [_NOT_DNS_1035]
    return faults if len(name) <= MAX_LABEL_LENGTH else [*faults, TOO_LONG]


def sentence(errors: Sequence[FieldError], more: int = 0) -> str:
    """All errors in one line: `e1`, `[e1, e2]`, or if too long `[e1, e2 ... (and 19,998 more)]`. `more` is the number
    of errors that are not in `errors`."""
    total = len(errors) + more
    if total == 1:
        return cut(str(errors[0]), MAX_SENTENCE_LENGTH)
    return f"[{join_some(map(str, errors), total, limit=MAX_SENTENCE_LENGTH)}]"


def as_object(value: object) -> Json:
    """The value if it is an object, else an empty one. For stored objects, whose errors nobody is told of."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Json]:
    """The objects of a list; empty if it is none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def conditions_of(found: Unstructured) -> list[Json]:
    """The conditions in the stored status of any object."""
    return as_list(as_object(found.raw.get("status")).get("conditions"))


class Fields:
    """Reader that collects errors. Each method returns a value of its type, whatever the input."""

    __slots__ = ("_errors", "more")

    def __init__(self) -> None:
        self._errors: list[FieldError] = []
        self.more = 0
        """Number of further errors of the same type as the last of `errors`."""

    @property
    def errors(self) -> tuple[FieldError, ...]:
        return tuple(self._errors)

    def _add(self, path: str, type_: str, detail: str, value: str = "") -> None:
        self._errors.append(FieldError(cut(path, MAX_PATH_LENGTH), type_, cut(detail, MAX_SENTENCE_LENGTH), value))

    def required(self, path: str, detail: str) -> None:
        self._add(path, REQUIRED, detail)

    def forbidden(self, path: str, detail: str) -> None:
        self._add(path, FORBIDDEN, detail)

    def invalid(self, path: str, value: object, detail: str) -> None:
        self._add(path, INVALID, detail, _quote(value))

    def plain(self, text: str) -> None:
        """Adds an error whose whole text is upstream's."""
        self._add("", "", text)

    def unreadable(self, path: str, detail: str) -> None:
        """Adds an error without a value, because the value cannot be decoded. Without a path it is the whole job."""
        self._errors.append(FieldError(path or "job", INVALID, detail))

    def duplicate(self, path: str, value: object, detail: str) -> None:
        self._add(path, DUPLICATE, detail, _quote(value))

    def unsupported(self, path: str, value: object, supported: tuple[str, ...]) -> None:
        listed = ", ".join(f'"{choice}"' for choice in supported)
        self._add(path, NOT_SUPPORTED, f"supported values: {listed}", _quote(value))

    def mapping(self, path: str, value: object) -> Json:
        """A JSON object; absent or null is an empty one."""
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self.invalid(path, value, "must be an object")
        return {}

    def sequence(self, path: str, value: object) -> list[Any]:
        """A JSON array; absent or null is an empty one."""
        if value is None:
            return []
        if isinstance(value, list):
            return value
        self.invalid(path, value, "must be a list")
        return []

    def entries(
        self,
        path: str,
        values: list[Any],
        kind: type[T],
        read: Callable[[str, Any], T],
        limit: int = MAX_INVALID_ENTRIES,
    ) -> list[T]:
        """The entries of a list. Valid entries are converted to `kind` by msgspec, which is fast for large lists;
        invalid ones are passed to `read` with their path. Reading stops after `limit` invalid entries."""
        found: list[T] = []
        wrong = 0
        for place, value in enumerate(values):
            try:
                found.append(value if isinstance(value, kind) else msgspec.convert(value, kind))
            except msgspec.ValidationError:
                if wrong == limit:
                    rest = f"after {place:,} entries, of which {wrong} are wrong, {len(values) - place:,} are not read"
                    self._add(path, TOO_MANY, rest)
                    break
                wrong += 1
                found.append(read(f"{path}[{place}]", value))
        return found

    def text(self, path: str, value: object) -> str:
        """A string; absent or null is empty."""
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        self.invalid(path, value, "must be a string")
        return ""

    def flag(self, path: str, value: object) -> bool:
        """A boolean; absent or null is False."""
        if value is None:
            return False
        if isinstance(value, bool):
            return value
        self.invalid(path, value, "must be true or false")
        return False

    def integer(self, path: str, value: object, *, minimum: int | None = None, maximum: int = 2**31 - 1) -> int | None:
        """An integer from `minimum` to `maximum`; None if absent or invalid."""
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.invalid(path, value, "must be a whole number")
        elif value > maximum:
            self.invalid(path, value, f"must be less than or equal to {maximum}")
        elif minimum is not None and value < minimum:
            self.invalid(path, value, f"must be greater than or equal to {minimum}")
        else:
            return value
        return None

    def choice(
        self, path: str, value: object, supported: tuple[str, ...], default: str, *, empty: str | None = None
    ) -> str:
        """One of `supported`. Absent, null and unknown values are `default`; unknown ones are errors. An empty string
        is `empty` if given, else `default`. A supported value in wrong case is accepted with an error."""
        if value is None:
            return default
        if value == "":
            return default if empty is None else empty
        if isinstance(value, str) and value in supported:
            return value
        self.unsupported(path, value, supported)
        return find_word(value, supported) or default


def find_word(value: object, supported: tuple[str, ...]) -> str | None:
    """The supported value that equals `value` regardless of case, or None."""
    folded = value.casefold() if isinstance(value, str) else None
    return next((word for word in supported if word.casefold() == folded), None)


def _quote(value: object) -> str:
    """The value as JSON, truncated. Only the part that is shown is encoded, because values may be huge."""
    pieces: list[str] = []
    size = 0
    for piece in _WRITER.iterencode(value[: MAX_VALUE_LENGTH + 1] if isinstance(value, str) else value):
        pieces.append(piece[: MAX_VALUE_LENGTH + 1])
        size += len(piece)
        if size > MAX_VALUE_LENGTH:
            return f"{''.join(pieces)[: MAX_VALUE_LENGTH - 3]}..."
    return "".join(pieces)


_WRITER = json.JSONEncoder(ensure_ascii=False, default=str)
