"""Limits on the depth and size of JSON, checked without recursion and in linear time.

Decoders, encoders, `==` and most tree walks recurse, even over fields that they skip. CPython raises `RecursionError`
at 1,000 stack frames, but API servers accept objects with 10,000 levels. A hostile object must therefore be cut to a
safe depth, and its lists, objects and strings counted, before anything else touches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

MAX_DEPTH = 200
"""Maximum nesting depth of an object that is kept as JSON; the object itself is level 1. A pod template has about 15
levels, a CRD 100. At this depth, code that uses four stack frames per level still stays below CPython's limit."""

MAX_CONTAINERS = 49_152
"""Maximum number of lists and objects (containers) in an object that is kept as JSON. Each costs 60 to 200 bytes, and
about 1 µs in every tree walk. API servers accept 500,000. The largest known jobs have a few thousand."""

MAX_STRINGS = 131_072
"""Maximum number of strings in an object that is kept as JSON, field names included. A string value costs about 60
bytes, a field name twice that."""

SALVAGE_DIVISOR = 4
"""An object over `MAX_CONTAINERS` or `MAX_STRINGS` is reduced to 1/4 of these limits."""

SLICE = 5_000
"""Brackets to examine before yielding to the event loop; a few milliseconds of work."""

PIECE_STEPS = 50
"""Cost of a piece whose brackets are counted but not examined one by one, in units of one bracket."""

PATH_LEVELS = 8
"""Reported field paths are cut to this many levels."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'(?:[^][{}"]++|' + _STRING + rb")*+"
_WHOLE_STRING = re.compile(_STRING, re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]{1,256}+|' + _STRING + rb"){1,64}+", re.DOTALL)
_BRACKET = re.compile(rb'(?:[^][{}"]++|' + _STRING + rb"|[\[{]" + _FLAT + rb"[\]}])*+(?:([\[{])|[\]}])", re.DOTALL)
"""Matches up to and including the next bracket of a container that holds other containers. All quantifiers are
possessive: without backtracking, the time is linear."""


def prune_in_slices(raw: bytes, levels: int) -> Iterator[bytes | None]:
    """Replaces containers that are nested deeper than `levels` (or `levels` + 1) by null. Accepts any bytes, valid JSON
    or not, in linear time. Yields None every few milliseconds, so that the caller can give way to the event loop, and
    the result last.

    Brackets are examined one by one (0.2 to 1 µs each) only in pieces where the depth may cross the limit. In all other
    pieces they are merely counted, which is fast for input that is very deep or not deep at all."""
    pieces: list[bytes] = []
    depth = kept = at = steps = 0
    while found := _PIECE.match(raw, at):
        start, at = at, found.end()
        opened, closed = _count_brackets(found[0])
        steps += PIECE_STEPS
        if depth + opened <= levels or depth - closed > levels:
            depth += opened - closed
        else:
            steps += opened + closed
            for bracket in iter(_BRACKET.scanner(raw, start, at).match, None):  # type: ignore[attr-defined]
                if bracket.lastindex:
                    if depth == levels:
                        pieces += raw[kept : bracket.end() - 1], b"null"
                    depth += 1
                else:
                    depth -= 1
                    if depth == levels:
                        kept = bracket.end()
        if steps >= SLICE:
            steps = 0
            yield None
    if depth <= levels:
        pieces.append(raw[kept:])
    yield b"".join(pieces)


def _count_brackets(piece: bytes) -> tuple[int, int]:
    """The numbers of opening and closing brackets outside strings."""
    if b'"' in piece:
        piece = _WHOLE_STRING.sub(b"", piece)
    return piece.count(b"{") + piece.count(b"["), piece.count(b"}") + piece.count(b"]")


def prune(raw: bytes, levels: int) -> bytes:
    """`prune_in_slices` without pauses."""
    return b"".join(piece for piece in prune_in_slices(raw, levels) if piece is not None)


def is_deep(raw: bytes, value: Any) -> bool:
    """Whether `value`, decoded from `raw`, is nested deeper than `MAX_DEPTH`. Empty containers do not count as a level.
    The value is walked only if `raw` has enough brackets to exceed the limit."""
    return raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and is_deep_value(value)


def is_deep_value(value: Any) -> bool:
    """`is_deep` for a value without its encoded bytes."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        # A single comprehension without function calls: there may be 400,000 lists.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if inner and isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def prune_value(value: Any) -> str:
    """Sets containers deeper than `MAX_DEPTH` to None, in place. Returns the start of the path of one of them, such as
    `spec.template.a.b[0]...`, or an empty string if there were none."""
    where = ""
    level: list[tuple[Any, str]] = [(value, "")]
    for depth in range(1, MAX_DEPTH + 1):
        following = []
        for outer, path in level:
            for name, inner in _items(outer):
                if not isinstance(inner, dict | list):
                    continue
                if depth == MAX_DEPTH:
                    outer[name] = None
                    where = where or path
                else:
                    following.append((inner, _extend(path, name) if depth <= PATH_LEVELS else path))
        level = following
    return where and f"{where}..."


_CONTAINERS = (dict, list)


def _items(container: Any) -> Iterable[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else enumerate(container)


def _extend(path: str, name: Any) -> str:
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name[:64]}" if path else name[:64]


class TooManyValuesError(ValueError):
    """An object exceeds `MAX_CONTAINERS` or `MAX_STRINGS`."""


def check_value_counts(raw: bytes) -> None:
    """Raises `TooManyValuesError` if the JSON in `raw` exceeds `MAX_CONTAINERS` or `MAX_STRINGS`."""
    if (number := count_containers(raw)) > MAX_CONTAINERS:
        raise TooManyValuesError(f"must not have more than {MAX_CONTAINERS:,} lists and objects, and has {number:,}")
    if (number := count_strings(raw)) > MAX_STRINGS:
        raise TooManyValuesError(f"must not have more than {MAX_STRINGS:,} names and strings, and has {number:,}")


def count_containers(raw: bytes) -> int:
    """The number of lists and objects in JSON. A result up to `MAX_CONTAINERS` is an upper bound, because brackets in
    strings are included; above, it is exact. Takes a few milliseconds per MiB."""
    brackets = raw.count(b"{") + raw.count(b"[")
    if brackets <= MAX_CONTAINERS:
        return brackets
    bare = _without_escapes(raw).translate(None, _NEITHER_BRACKET_NOR_QUOTE)
    return sum(map(len, bare.replace(b'""', b"").split(b'"')[::2]))  # empties most strings first: few contain brackets


def count_strings(raw: bytes) -> int:
    """The number of strings in JSON, field names included. A result up to `MAX_STRINGS` is an upper bound, because
    escaped quotation marks are included; above, it is exact."""
    quotes = raw.count(b'"')
    return quotes // 2 if quotes <= 2 * MAX_STRINGS else _without_escapes(raw).count(b'"') // 2


def _without_escapes(raw: bytes) -> bytes:
    """Removes escaped backslashes and quotation marks; every remaining quotation mark delimits a string."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"")


_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'"{['))

_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def drop_large_fields(raw: bytes) -> tuple[Any, str]:
    """Decodes JSON that has too many values, with the largest fields replaced by None. Returns the remaining value and
    the path of the first field that was dropped. Raises what msgspec's decoder raises."""
    left, where = 1 / SALVAGE_DIVISOR, ""

    def shrink(piece: bytes, path: str, levels: int) -> Any:
        nonlocal left, where
        share = 0.0 if piece[:1] == b'"' else share_of_limits(piece)
        if share <= left / 2:
            left -= share
            return _decode(piece)
        if levels and piece.lstrip()[:1] == b"{":
            fields = _decode_fields(piece)
            if len(fields) <= PATH_LEVELS * 16:
                return {name: shrink(bytes(each), _extend(path, name), levels - 1) for name, each in fields.items()}
        where = where or path
        return None

    return shrink(raw, "", PATH_LEVELS), where


def share_of_limits(piece: bytes) -> float:
    """The size of JSON as a fraction of `MAX_CONTAINERS` or `MAX_STRINGS`, whichever is closer. An upper bound, because
    brackets and quotation marks in strings are included."""
    containers = piece.count(b"{") + piece.count(b"[")
    return max(containers / MAX_CONTAINERS, piece.count(b'"') / 2 / MAX_STRINGS)
