"""Decodes bytes from the API server into objects or into a `DecodeError`.

Any fault in the bytes of one object affects that object alone: excessive depth, bad encoding, wrong types, or an
exception in the decoder that the user of an informer supplied. All reads of clients, informers and webhooks pass here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from trainop.runtime.errors import UNREADABLE, DecodeError
from trainop.runtime.objects.metadata import (
    Decoder,
    HasMetadata,
    Json,
    Key,
    Metadata,
    Resource,
    Unstructured,
    drop_bookkeeping,
)
from trainop.runtime.objects.nesting import (
    MAX_DEPTH,
    TooManyValuesError,
    drop_large_fields,
    is_deep,
    prune,
    prune_in_slices,
    prune_value,
)

T = TypeVar("T", bound=HasMetadata)
D = TypeVar("D")

DEPTH_KEPT = MAX_DEPTH + 16
"""Levels that are kept of a response body that is too deep to decode. An object in it, below a list or a watch event,
then still exceeds `MAX_DEPTH` and is reported, but no decoder recurses too far."""

TOO_DEEP = f"must not be nested more than {MAX_DEPTH} levels deep"

_decode_json = msgspec.json.Decoder(Json).decode


async def read(decode: Callable[[bytes], D], piece: bytes | msgspec.Raw) -> D:
    """Decodes an envelope (a list, a watch event, a Status) whose objects may stay raw. Containers too deep for
    `decode` become null. Raises `DecodeError`."""
    body = bytes(piece)
    try:
        return decode(body)
    except RecursionError:
        pass
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError("", str(error)) from error
    for pruned in prune_in_slices(body, DEPTH_KEPT):
        if pruned is not None:
            body = pruned
        await asyncio.sleep(0)
    try:
        return decode(body)
    except UNREADABLE as error:
        raise DecodeError("", str(error)) from error


def read_object(resource: Resource, value: Any) -> Unstructured:
    """Wraps the decoded JSON of one object. Raises `DecodeError`, with the object's key if that is readable."""
    try:
        return _identified(Unstructured(value))
    except (msgspec.MsgspecError, AttributeError, _UnidentifiedError) as error:
        metadata, (path, detail) = _read_metadata(value.get("metadata") if isinstance(value, dict) else None)
        key = Key(metadata.namespace, metadata.name) if metadata.name else None
        raise DecodeError(path, detail or str(error), resource=str(resource), key=key) from error


def check_depth(resource: Resource, raw: bytes, value: Json) -> Json:
    """Returns `value`, which was decoded from `raw`. Raises `DecodeError` if it is nested too deep."""
    if is_deep(raw, value):
        raise DecodeError(prune_value(value), TOO_DEEP, resource=str(resource))
    return value


class ObjectDecoder(Generic[T]):
    """Decodes objects of one kind with a function that may raise any exception."""

    def __init__(self, resource: Resource, decode: Decoder[T], *, anonymous: bool = False) -> None:
        """`anonymous`: accept objects without name or UID, such as those of some aggregated APIs."""
        self._resource = str(resource)
        self._decode = decode
        self._anonymous = anonymous

    def __call__(self, piece: bytes | msgspec.Raw, /) -> T:
        """Raises `DecodeError`, with the key and the readable part of the object."""
        raw = bytes(piece)
        try:
            return self._decode_one(raw)
        # One undecodable object, whatever the reason, must not stop the list or watch of all others.
        except Exception as error:
            raise self._explain(raw, error) from error

    def _decode_one(self, raw: bytes) -> T:
        try:
            obj = self._decode(raw)
        except RecursionError:
            raw = prune(raw, DEPTH_KEPT)
            obj = self._decode(raw)  # complete if `decode` skips the fields that were pruned
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
        # Every object has a UID. Data with a name but without a UID does not describe the object of that name.
        named = metadata.name and not isinstance(error, _UnidentifiedError)
        key = Key(metadata.namespace, metadata.name) if named else None
        fault = DecodeError(path, detail, resource=self._resource, key=key)
        if key and metadata.uid and metadata.resource_version:
            fault.remains = Unstructured(value, metadata, (fault.path, fault.detail))
        return fault


class _UnidentifiedError(Exception):
    """An object lacks a name or a UID."""


class _DeepError(Exception):
    """An object is nested deeper than `MAX_DEPTH`."""


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
    """Decodes the readable part of an object: invalid UTF-8 is replaced, and containers that are too deep or too large
    become null. Returns None if the bytes are not JSON; and the path of the first field that is too large."""
    text = raw.decode("utf-8", "replace").encode()
    read = drop_large_fields if is_crowded else _decode_with_no_path
    try:
        try:
            return read(text)
        except RecursionError:
            return read(prune(text, DEPTH_KEPT))
    except UNREADABLE:
        return None, ""


def _decode_with_no_path(text: bytes) -> tuple[Json, str]:
    return _decode_json(text), ""


def _read_metadata(raw: object) -> tuple[Metadata, tuple[str, str]]:
    """Decodes the valid fields of `metadata`; and returns the path of an invalid field with the error, if any."""
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
