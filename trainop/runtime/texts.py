"""Limits of the texts that leave the process: conditions, events, errors, log lines. What is left out is counted."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 1024
"""Bytes of UTF-8, as of an event's message (kubernetes `pkg/apis/core/validation/events.go`, `NoteLengthLimit`)."""

LONGEST_REASON = 128
"""Bytes (the same, `ReasonLengthLimit`)."""

_ROOM = 48
"""Bytes for the words about what is left out."""


def cut(text: str, most: int = LONGEST, *, end: int = 0) -> str:
    """`text` in at most `most` bytes: its beginning, and its last `end` bytes, with the number of characters left out.

    Never encodes more of a long text than it keeps."""
    if len(text) <= most and (text.isascii() or len(text.encode("utf-8", "replace")) <= most):
        return text
    room = most - _ROOM - end
    head = text[:room].encode("utf-8", "replace")[:room].decode(errors="ignore")
    tail = text[len(text) - end :].encode("utf-8", "replace")[-end:].decode(errors="ignore") if end else ""
    return f"{head}... ({len(text) - len(head) - len(tail):,} characters left out){tail}"


def join_some(texts: Iterable[str], total: int, *, most: int = LONGEST, separator: str = ", ") -> str:
    """As many of `texts` as fit into `most` bytes, each cut to half of that. `total` is how
    many there are: the others are counted. No more of `texts` is asked for than is shown."""
    shown: list[str] = []
    size = _ROOM
    for text in texts:
        piece = cut(text, most // 2)
        size += len(piece.encode("utf-8", "replace")) + len(separator)
        if shown and size > most:
            break
        shown.append(piece)
    left = total - len(shown)
    return separator.join(shown) + (f" ... (and {left:,} more)" if left else "")
