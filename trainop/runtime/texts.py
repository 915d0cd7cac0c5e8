"""Truncates texts that leave the process: conditions, events, errors and log entries.

The truncated text says how much was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST_TEXT = 1024
"""Default limit in bytes of UTF-8, that of an event's message (kubernetes `pkg/apis/core/validation/events.go`,
`NoteLengthLimit`)."""

LONGEST_REASON = 128
"""Limit of an event's reason in bytes (the same file, `ReasonLengthLimit`)."""

_SUFFIX_ROOM = 48
"""Bytes reserved for the text that says how much was left out."""


def cut(text: str, limit: int = LONGEST_TEXT, *, end: int = 0) -> str:
    """`text`, truncated to `limit` bytes of UTF-8, with the number of characters that were left out.

    Keeps the beginning and the last `end` bytes. Encodes no more of a long text than it keeps.
    """
    if len(text) <= limit and (text.isascii() or len(text.encode("utf-8", "replace")) <= limit):
        return text
    room = limit - _SUFFIX_ROOM - end
    head = text[:room].encode("utf-8", "replace")[:room].decode(errors="ignore")
    tail = text[len(text) - end :].encode("utf-8", "replace")[-end:].decode(errors="ignore") if end else ""
    return f"{head}... ({len(text) - len(head) - len(tail):,} characters left out){tail}"


def join_some(texts: Iterable[str], total: int, *, limit: int = LONGEST_TEXT, separator: str = ", ") -> str:
    """Joins as many of `texts` as fit into `limit` bytes, each truncated to half of that, with the number left out.

    `total` is the number of `texts`, which may be a lazy iterable: it is consumed only as far as it is shown.
    """
    shown: list[str] = []
    size = _SUFFIX_ROOM
    for text in texts:
        piece = cut(text, limit // 2)
        size += len(piece.encode("utf-8", "replace")) + len(separator)
        if shown and size > limit:
            break
        shown.append(piece)
    left = total - len(shown)
    return separator.join(shown) + (f" ... (and {left:,} more)" if left else "")


_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences, such as colours and cursor movements
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)?"  # strings, such as window titles
    "|\x1b[ -/]*[0-~]?"
)
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters but tab and newline, invisible ones and those that change the direction of text, surrogates."""


def printable(text: str) -> str:
    """`text` without terminal escape sequences and without characters that are not visible or deceive the reader. Tabs
    and line feeds are kept."""
    return text if text.isascii() and text.isprintable() else _UNPRINTABLE.sub("", _ESCAPES.sub("", text))
