"""The lines of a watch as they are on the wire, decoded no further than needed."""

from __future__ import annotations

from typing import Any

import msgspec

from trainop.runtime.objects.metadata import PartialObject


class WatchEvent(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


decode_event = msgspec.json.Decoder(WatchEvent).decode
decode_partial = msgspec.json.Decoder(PartialObject).decode
decode_status = msgspec.json.Decoder(dict[str, Any]).decode
