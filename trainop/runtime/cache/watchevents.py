"""Decoders for the lines of a watch (`metav1.WatchEvent`). The object in an event stays undecoded at first, because its
type depends on the type of the event."""

from __future__ import annotations

from typing import Any

import msgspec

from trainop.runtime.objects.metadata import PartialObject


class WatchEvent(msgspec.Struct, frozen=True):
    """One watch event; `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


decode_event = msgspec.json.Decoder(WatchEvent).decode
decode_partial = msgspec.json.Decoder(PartialObject).decode
decode_status = msgspec.json.Decoder(dict[str, Any]).decode
