"""Decoding of request bodies in protobuf, which typed Go clients and `kubectl create <kind>` send for built-in kinds.

Responses are always JSON, which all clients accept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from trainop.local.api.registry.messages import Field, messages
from trainop.runtime import Json
from trainop.runtime.lowlevel import micro_timestamp, timestamp

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


class MalformedProtobufError(ValueError):
    """The body is not a valid object in protobuf."""


class UnknownKindError(ValueError):
    """A kind for which the table has no message."""


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
"""The package of the messages in `protobuf.json` by API version."""


_EMPTY: tuple[Any, ...] = ("", 0, False, None, {}, [])


def decode_protobuf(body: bytes) -> Json:
    """The object in a Kubernetes envelope (`k8s\\0` and a `runtime.Unknown`).

    Raises `MalformedProtobufError` and `UnknownKindError`.
    """
    if not body.startswith(_MAGIC):
        raise MalformedProtobufError("the body does not begin with the magic number of Kubernetes' protobuf encoding")
    envelope = dict(_wire_fields(body[len(_MAGIC) :]))
    head = {number: _text(value) for number, value in _wire_fields(_bytes(envelope.get(1, b"")))}
    api_version, kind = head.get(1, ""), head.get(2, "")
    message = "meta.DeleteOptions" if kind == "DeleteOptions" else f"{_PACKAGES.get(api_version)}.{kind}"
    top = _messages().get(message, {}).get(1)
    if top is None or (top.type != "meta.ObjectMeta" and kind != "DeleteOptions"):
        raise UnknownKindError(f"{kind} in version {api_version}")
    return {"apiVersion": api_version, "kind": kind, **_message(message, _bytes(envelope.get(2, b"")))}


@cache
def _messages() -> dict[str, dict[int, Field]]:
    return {name: {field.number: field for field in fields} for name, fields in messages().items()}


def _message(name: str, body: bytes) -> Json:
    fields = _messages()[name]
    value: Json = {}
    for number, raw in _wire_fields(body):
        field = fields.get(number)
        if field is None:
            continue
        if field.form == "map":
            entry = dict(_wire_fields(_bytes(raw)))
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
    parts = dict(_wire_fields(_bytes(raw)))
    return _text(parts.get(3, b"")) if parts.get(1) else _integer(parts.get(2, 0))


def _only_field(raw: int | bytes) -> bytes:
    """The value of the only field of a wrapper message."""
    return _bytes(dict(_wire_fields(_bytes(raw))).get(1, b""))


def _parse_time(raw: int | bytes) -> datetime | None:
    """A Time message (seconds and nanoseconds since the epoch); None if it is empty."""
    parts = dict(_wire_fields(_bytes(raw)))
    if not parts:
        return None
    seconds, nanoseconds = _integer(parts.get(1, 0)), _integer(parts.get(2, 0))
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    except OverflowError as error:
        raise MalformedProtobufError(f"no time: {error}") from None


def _json(raw: int | bytes) -> Any:
    wrapped = _only_field(raw)
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
        raise MalformedProtobufError("a varint where a string or message is expected")
    return raw


def _wire_fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The field numbers and raw values of one message, in order."""
    position = 0
    while position < len(body):
        tag, position = _varint(body, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(body, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(body, position)
        elif wire in {1, 5}:
            size = 8 if wire == 1 else 4
        else:
            raise MalformedProtobufError(f"wire type {wire} is not known")
        if position + size > len(body):
            raise MalformedProtobufError("the body ends within a field")
        yield number, body[position : position + size]
        position += size


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """A varint, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(body):
            raise MalformedProtobufError("the body ends within a varint")
        byte = body[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
    raise MalformedProtobufError("a varint is too long")


_SCALARS: dict[str, Callable[[int | bytes], Any]] = {
    "text": _text,
    "bytes": lambda raw: base64.b64encode(_bytes(raw)).decode(),
    "bool": bool,
    "int": _integer,
    "Time": lambda raw: (at := _parse_time(raw)) and timestamp(at),
    "MicroTime": lambda raw: (at := _parse_time(raw)) and micro_timestamp(at),
    "Quantity": lambda raw: _text(_only_field(raw)),
    "IntOrString": _int_or_string,
    "Json": _json,
}
