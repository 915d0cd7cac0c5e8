"""The lines of a watch as they are on the wire, decoded no further than needed."""

from __future__ import annotations

from typing import Any

import msgspec

from trainop.runtime.objects import Key, PartialObject


class WatchEvent(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class _Name(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Name


decode_event = msgspec.json.Decoder(WatchEvent).decode
decode_partial = msgspec.json.Decoder(PartialObject).decode
decode_status = msgspec.json.Decoder(dict[str, Any]).decode
_decode_named = msgspec.json.Decoder(_Named).decode


def key_of(raw: msgspec.Raw) -> Key | None:
    """The key of an object of which perhaps nothing else is as expected."""
    try:
        named = _decode_named(raw).metadata
        return Key(named.namespace, named.name)
    except msgspec.MsgspecError:
        return None
