"""How deep JSON is nested and how many parts it has, found without recursion, so that nothing is too much.

Decoders, encoders, `==` and most walks over a value recurse, also over what they skip. CPython ends that with a
`RecursionError` at 1,000 levels, less what the stack holds already. API servers accept 10,000.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

MAX_DEPTH = 200
"""Levels of an object that is kept as JSON, the object itself included. A pod template has some 15, a CRD 100; code
that takes four stack frames per level still works."""

MAX_CONTAINERS = 49_152
"""Lists and objects in an object that is kept as JSON. Each takes 60 to 200 bytes and a microsecond of every walk; an
API server takes 500,000. The largest jobs known have some thousand."""

MAX_STRINGS = 131_072
"""Names and values that are strings, in the same. Each takes some 60 bytes, and a name twice as many."""

MAX_THINNED = 4
"""The part of these limits that is left of an object which exceeds one."""

SLICE = 5_000
"""Brackets, a few milliseconds, between two chances for the event loop."""

PIECE_STEPS = 50
"""A piece whose brackets are only counted takes as long as so many brackets."""

PATH_LEVELS = 8
"""So much of a path is told."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'(?:[^][{}"]++|' + _STRING + rb")*+"
_WHOLE_STRING = re.compile(_STRING, re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]{1,256}+|' + _STRING + rb"){1,64}+", re.DOTALL)
_BRACKET = re.compile(rb'(?:[^][{}"]++|' + _STRING + rb"|[\[{]" + _FLAT + rb"[\]}])*+(?:([\[{])|[\]}])", re.DOTALL)
"""Up to the next bracket of a container that holds other containers. Nothing is given back, so the time is linear."""


def prune_in_slices(raw: bytes, levels: int) -> Iterator[bytes | None]:
    """Replaces by null what is nested deeper than `levels`, or `levels` + 1. Takes any bytes, in linear time. Gives
    None every few milliseconds, and the result at last.

    Only pieces in which the depth may cross the limit are looked at bracket by bracket, 0.2 to 1 µs for each; of the
    others, most of what is very deep or not deep at all, brackets are counted."""
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
    """Opening and closing ones that are not in strings."""
    if b'"' in piece:
        piece = _WHOLE_STRING.sub(b"", piece)
    return piece.count(b"{") + piece.count(b"["), piece.count(b"}") + piece.count(b"]")


def prune(raw: bytes, levels: int) -> bytes:
    """The same in one go."""
    return b"".join(piece for piece in prune_in_slices(raw, levels) if piece is not None)


def is_deep(raw: bytes, value: Any) -> bool:
    """Whether `value`, decoded from `raw`, is nested deeper than `MAX_DEPTH`, not counting what is empty;
    mostly the number of brackets tells."""
    return raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and is_deep_value(value)


def is_deep_value(value: Any) -> bool:
    """The same of a value whose bytes are not at hand."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        # One comprehension without calls, for there may be 400,000 lists.
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
    """Makes whatever is deeper than `MAX_DEPTH` null, in place; the beginning of the path to one such place, such as
    `spec.template.a.b[0]`, or nothing if there is none."""
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


class CrowdedError(ValueError):
    """An object has too many lists and objects, or too many strings, to be kept as JSON."""


def check_parts(raw: bytes) -> None:
    """Raises `CrowdedError`."""
    if (number := count_containers(raw)) > MAX_CONTAINERS:
        raise CrowdedError(f"must not have more than {MAX_CONTAINERS:,} lists and objects, and has {number:,}")
    if (number := count_strings(raw)) > MAX_STRINGS:
        raise CrowdedError(f"must not have more than {MAX_STRINGS:,} names and strings, and has {number:,}")


def count_containers(raw: bytes) -> int:
    """How many lists and objects there are in JSON; up to `MAX_CONTAINERS` perhaps fewer, as brackets in strings count
    there too. A few milliseconds per MiB."""
    brackets = raw.count(b"{") + raw.count(b"[")
    if brackets <= MAX_CONTAINERS:
        return brackets
    bare = _without_escapes(raw).translate(None, _NEITHER_BRACKET_NOR_QUOTE)
    return sum(map(len, bare.replace(b'""', b"").split(b'"')[::2]))  # most strings have no brackets


def count_strings(raw: bytes) -> int:
    """How many strings there are in JSON, names of fields included; up to `MAX_STRINGS` perhaps fewer."""
    quotes = raw.count(b'"')
    return quotes // 2 if quotes <= 2 * MAX_STRINGS else _without_escapes(raw).count(b'"') // 2


def _without_escapes(raw: bytes) -> bytes:
    """Each quotation mark that is left begins or ends a string."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"")


_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'"{['))

_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def thin(raw: bytes) -> tuple[Any, str]:
    """What JSON with too many parts says elsewhere: fields with many of them are null. And the path of the first of
    these. Raises what decoders raise."""
    left, where = 1 / MAX_THINNED, ""

    def keep(piece: bytes, path: str, levels: int) -> Any:
        nonlocal left, where
        share = 0.0 if piece[:1] == b'"' else share_of_limits(piece)
        if share <= left / 2:
            left -= share
            return _decode(piece)
        if levels and piece.lstrip()[:1] == b"{":
            fields = _decode_fields(piece)
            if len(fields) <= PATH_LEVELS * 16:
                return {name: keep(bytes(each), _extend(path, name), levels - 1) for name, each in fields.items()}
        where = where or path
        return None

    return keep(raw, "", PATH_LEVELS), where


def share_of_limits(piece: bytes) -> float:
    """1 if JSON has as many parts as an object may have; perhaps more, as brackets and quotation marks in strings count
    there too."""
    containers = piece.count(b"{") + piece.count(b"[")
    return max(containers / MAX_CONTAINERS, piece.count(b'"') / 2 / MAX_STRINGS)
