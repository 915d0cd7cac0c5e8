"""Request bodies in protobuf: typed Go clients prefer it for built-in kinds, and kubectl sends what its `create`
commands make in no other way. Every answer is JSON, which all of them read.

`protobuf.json` has the numbers of the fields; `e2e/protobuf_fields.py` writes it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from trainop.runtime.clock import micro_timestamp, timestamp
from trainop.runtime.objects.metadata import Json

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


class MalformedProtobufError(ValueError):
    """The bytes are no object in protobuf."""


class UnknownKindError(ValueError):
    """An object of a kind that is not read in protobuf here."""


_PACKAGES = {
    "v1": "core",
    "apps/v1": "apps",
    "batch/v1": "batch",
    "autoscaling/v1": "autoscalingv1",
    "autoscaling/v2": "autoscaling",
    "coordination.k8s.io/v1": "coordination",
    "discovery.k8s.io/v1": "discovery",
    "events.k8s.io/v1": "events",
    "policy/v1": "policy",
    "rbac.authorization.k8s.io/v1": "rbac",
    "scheduling.k8s.io/v1": "scheduling",
    "admissionregistration.k8s.io/v1": "admissionregistration",
    "authentication.k8s.io/v1": "authentication",
    "authorization.k8s.io/v1": "authorization",
}
"""The packages of messages in the table, by API version."""


class _Field(msgspec.Struct, array_like=True, frozen=True):
    number: int
    name: str
    type: str
    """text, bytes, int, bool, Time, MicroTime, Quantity, IntOrString, Json, or the name of a message."""
    form: str
    """list, map (with text as key), inline, or kept: a value that counts even if it is empty."""


_EMPTY: tuple[Any, ...] = ("", 0, False, None, {}, [])


def decode_protobuf(body: bytes) -> Json:
    """The object in an envelope of the API (`k8s\\0` and a `runtime.Unknown`); raises either error above."""
    if not body.startswith(_MAGIC):
        raise MalformedProtobufError("the body does not begin with the mark of Kubernetes' protobuf encoding")
    envelope = dict(_wire(body[len(_MAGIC) :]))
    head = {number: _text(value) for number, value in _wire(_bytes(envelope.get(1, b"")))}
    api_version, kind = head.get(1, ""), head.get(2, "")
    message = "meta.DeleteOptions" if kind == "DeleteOptions" else f"{_PACKAGES.get(api_version)}.{kind}"
    top = _messages().get(message, {}).get(1)
    if top is None or (top.type != "meta.ObjectMeta" and kind != "DeleteOptions"):
        raise UnknownKindError(f"{kind} in version {api_version}")
    return {"apiVersion": api_version, "kind": kind, **_message(message, _bytes(envelope.get(2, b"")))}


@cache
def _messages() -> dict[str, dict[int, _Field]]:
    text = resources.files(__package__).joinpath("protobuf.json").read_bytes()
    read = msgspec.json.decode(text, type=dict[str, list[_Field]])
    return {name: {field.number: field for field in fields} for name, fields in read.items()}


def _message(name: str, body: bytes) -> Json:
    fields = _messages()[name]
    value: Json = {}
    for number, raw in _wire(body):
        field = fields.get(number)
        if field is None:
            continue
        if field.form == "map":
            entry = dict(_wire(_bytes(raw)))
            empty: bytes = b""
            value.setdefault(field.name, {})[_text(entry.get(1, empty))] = _value(field.type, entry.get(2, empty))
        elif field.form == "list":
            value.setdefault(field.name, []).append(_value(field.type, raw))
        elif field.form == "inline":
            value |= _message(field.type, _bytes(raw))
        elif (single := _value(field.type, raw)) not in _EMPTY or field.form == "kept":
            value[field.name] = single
    return value


def _value(type_: str, raw: int | bytes) -> Any:
    scalar = _SCALARS.get(type_)
    return scalar(raw) if scalar else _message(type_, _bytes(raw))


def _integer(raw: int | bytes) -> int:
    number = raw if isinstance(raw, int) else 0
    return number - 2**64 if number >= 2**63 else number


def _int_or_string(raw: int | bytes) -> int | str:
    parts = dict(_wire(_bytes(raw)))
    return _text(parts.get(3, b"")) if parts.get(1) else _integer(parts.get(2, 0))


def _wrapped(raw: int | bytes) -> bytes:
    """What stands in the only field of a message."""
    return _bytes(dict(_wire(_bytes(raw))).get(1, b""))


def _instant(raw: int | bytes) -> datetime | None:
    """Of the seconds and nanoseconds since 1970; an empty message is no time."""
    parts = dict(_wire(_bytes(raw)))
    if not parts:
        return None
    seconds, nanoseconds = _integer(parts.get(1, 0)), _integer(parts.get(2, 0))
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    except OverflowError as error:
        raise MalformedProtobufError(f"no time: {error}") from None


def _json(raw: int | bytes) -> Any:
    wrapped = _wrapped(raw)
    try:
        return msgspec.json.decode(wrapped) if wrapped else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedProtobufError(str(error)) from None


def _text(raw: int | bytes) -> str:
    try:
        return _bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise MalformedProtobufError(str(error)) from None


def _bytes(raw: int | bytes) -> bytes:
    if isinstance(raw, int):
        raise MalformedProtobufError("a number stands where text or a message belongs")
    return raw


def _wire(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of one message."""
    place = 0
    while place < len(body):
        tag, place = _varint(body, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(body, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(body, place)
        elif wire in {1, 5}:
            size = 8 if wire == 1 else 4
        else:
            raise MalformedProtobufError(f"wire type {wire} is not known")
        if place + size > len(body):
            raise MalformedProtobufError("the body ends within a field")
        yield number, body[place : place + size]
        place += size


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """A number in base 128, lowest digits first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(body):
            raise MalformedProtobufError("the body ends within a number")
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise MalformedProtobufError("a number is too long")


_SCALARS: dict[str, Callable[[int | bytes], Any]] = {
    "text": _text,
    "bytes": lambda raw: base64.b64encode(_bytes(raw)).decode(),
    "bool": bool,
    "int": _integer,
    "Time": lambda raw: (at := _instant(raw)) and timestamp(at),
    "MicroTime": lambda raw: (at := _instant(raw)) and micro_timestamp(at),
    "Quantity": lambda raw: _text(_wrapped(raw)),
    "IntOrString": _int_or_string,
    "Json": _json,
}
