"""The boundary between the bytes of an API server and everything else: an object comes out, or a `DecodeError`.

Whatever is wrong with the bytes of one object concerns that object alone: its depth, its encoding, its types, or an
exception of the decoder that the user of an informer wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from trainop.runtime.errors import UNREADABLE, DecodeError
from trainop.runtime.objects.metadata import Decoder, HasMetadata, Json, Key, Metadata, Unstructured, drop_bookkeeping
from trainop.runtime.objects.nesting import (
    MAX_DEPTH,
    TooManyValuesError,
    drop_large_fields,
    is_deep,
    prune,
    prune_in_slices,
    prune_value,
)
from trainop.runtime.objects.resource import Resource

T = TypeVar("T", bound=HasMetadata)
D = TypeVar("D")

KEPT = MAX_DEPTH + 16
"""Levels of a body that are left when it is too deep: an object in it, within a list or an event, is still found to be
too deep, and nothing recurses too far."""

TOO_DEEP = f"must not be nested more than {MAX_DEPTH} levels deep"

_decode_json = msgspec.json.Decoder(Json).decode


async def read(decode: Callable[[bytes], D], piece: bytes | msgspec.Raw) -> D:
    """`decode(body)` of a decoder that looks at the outside only; what is too deep for it becomes null. Raises
    `DecodeError`."""
    body = bytes(piece)
    try:
        return decode(body)
    except RecursionError:
        pass
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError("", str(error)) from error
    for pruned in prune_in_slices(body, KEPT):
        if pruned is not None:
            body = pruned
        await asyncio.sleep(0)
    try:
        return decode(body)
    except UNREADABLE as error:
        raise DecodeError("", str(error)) from error


def read_object(resource: Resource, value: Any) -> Unstructured:
    """The object that a client answered; raises `DecodeError`, with the key if it can be read."""
    try:
        return _identified(Unstructured(value))
    except (msgspec.MsgspecError, AttributeError, _UnidentifiedError) as error:
        metadata, (path, detail) = _read_metadata(value.get("metadata") if isinstance(value, dict) else None)
        key = Key(metadata.namespace, metadata.name) if metadata.name else None
        raise DecodeError(path, detail or str(error), resource=str(resource), key=key) from error


def check_depth(resource: Resource, raw: bytes, value: Json) -> Json:
    """`value`, decoded from `raw`; raises `DecodeError` if it is nested too deep."""
    if is_deep(raw, value):
        raise DecodeError(prune_value(value), TOO_DEEP, resource=str(resource))
    return value


class ObjectDecoder(Generic[T]):
    """Decodes objects of one kind by a function that may raise anything."""

    def __init__(self, resource: Resource, decode: Decoder[T], *, anonymous: bool = False) -> None:
        """`anonymous`: objects need no name and no UID, as those of some aggregated APIs have none."""
        self._resource = str(resource)
        self._decode = decode
        self._anonymous = anonymous

    def __call__(self, piece: bytes | msgspec.Raw, /) -> T:
        """Raises `DecodeError`, with the key and the rest of the object as far as they can be read."""
        raw = bytes(piece)
        try:
            return self._decode_one(raw)
        # One object that cannot be decoded, for any reason, must not end the reading of all others.
        except Exception as error:
            raise self._explain(raw, error) from error

    def _decode_one(self, raw: bytes) -> T:
        try:
            obj = self._decode(raw)
        except RecursionError:
            raw = prune(raw, KEPT)
            obj = self._decode(raw)  # nothing is missing where only some fields are decoded
        if isinstance(obj, Unstructured) and is_deep(raw, obj.raw):
            raise _DeepError
        return obj if self._anonymous else _identified(obj)

    def _explain(self, raw: bytes, error: Exception) -> DecodeError:
        value, crowded = _salvage(raw, is_crowded=isinstance(error, TooManyValuesError))
        if value is None:
            return DecodeError("", _describe(error), resource=self._resource)
        drop_bookkeeping(value)
        deep = prune_value(value) or "metadata.managedFields"
        metadata, wrong = _read_metadata(value.get("metadata"))
        if isinstance(error, TooManyValuesError):
            path, detail = crowded, str(error)
        elif isinstance(error, _DeepError):
            path, detail = deep, TOO_DEEP
        else:
            path, detail = wrong if wrong[0] else ("", _describe(error))
        # API servers give each object a UID: what has a name and none is not the object of that name.
        named = metadata.name and not isinstance(error, _UnidentifiedError)
        key = Key(metadata.namespace, metadata.name) if named else None
        fault = DecodeError(path, detail, resource=self._resource, key=key)
        if key and metadata.uid and metadata.resource_version:
            fault.remains = Unstructured(value, metadata, fault)
        return fault


class _UnidentifiedError(Exception):
    """An object has no name or no UID."""


class _DeepError(Exception):
    """An object is nested too deep to be kept."""


def _identified(obj: T) -> T:
    metadata = obj.metadata
    if not (metadata.name and metadata.uid):
        raise _UnidentifiedError("an object must have a name and a UID")
    return obj


def _describe(error: Exception) -> str:
    if isinstance(error, msgspec.MsgspecError | _UnidentifiedError | UnicodeError):
        return str(error)
    return f"the decoder raised {type(error).__name__}: {error}"


def _salvage(raw: bytes, *, is_crowded: bool) -> tuple[Json | None, str]:
    """The object as JSON, with what is no UTF-8 replaced and what is far too deep, or too crowded, left out; None if it
    is no JSON. And the path of what is too crowded."""
    text = raw.decode("utf-8", "replace").encode()
    read = drop_large_fields if is_crowded else _decode_with_no_path
    try:
        try:
            return read(text)
        except RecursionError:
            return read(prune(text, KEPT))
    except UNREADABLE:
        return None, ""


def _decode_with_no_path(text: bytes) -> tuple[Json, str]:
    return _decode_json(text), ""


def _read_metadata(raw: object) -> tuple[Metadata, tuple[str, str]]:
    """What can be read of it; and the path of a field that cannot, with what is wrong there."""
    if not isinstance(raw, dict):
        return Metadata(), ("metadata", "must be an object")
    right, wrong = {}, ("", "")
    for field in msgspec.structs.fields(Metadata):
        name = field.encode_name
        if name not in raw:
            continue
        try:
            msgspec.convert({name: raw[name]}, Metadata)
        except UNREADABLE as error:
            wrong = (f"metadata.{name}", str(error))
        else:
            right[name] = raw[name]
    return msgspec.convert(right, Metadata), wrong
