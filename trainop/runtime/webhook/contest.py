"""When a `caBundle` is written again that another writer keeps resetting, and who that is. Pure.

A tool that applies its own copy of a webhook configuration, and one that watches the result, would otherwise write
against the operator without a pause.
"""

from __future__ import annotations

import json

from trainop.runtime.objects.metadata import Json

FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0
"""Seconds before the second write after a reset, each further pause being twice as long, and the longest. The first
reset is answered at once: somebody has applied the manifests again."""

CALM = 1800.0
"""Seconds without a reset after which the next one counts as the first."""

NOTICED = 3
"""Resets after which it is reported."""


class Contest:
    """The bundle of one configuration, as this process has seen it. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self.resets = 0
        """Since the last calm."""
        self._bundle = b""
        self._present = False
        self._written_at = float("-inf")
        self._reset_at = float("-inf")

    def is_reset(self, bundle: bytes, *, present: bool, now: float) -> bool:
        """Takes note whether the bundle is there; returns whether it was there before and has been reset."""
        if bundle != self._bundle:  # a new CA: its first write is no answer to anybody
            self._bundle, self._present, self._written_at = bundle, False, float("-inf")
        reset = self._present and not present
        self._present = present
        if reset:
            self.resets = 1 if now - self._reset_at >= CALM else self.resets + 1
            self._reset_at = now
        return reset

    def pause(self, now: float) -> float:
        """Seconds until the bundle may be written; 0 if at once."""
        if self.resets < 2:
            return 0.0
        pause: float = min(FIRST_PAUSE * 2.0 ** min(self.resets - 2, 30), LONGEST_PAUSE)
        return max(self._written_at + pause - now, 0.0)

    def note_write(self, now: float) -> None:
        """The bundle has been written."""
        self._present = True
        self._written_at = now


def other_writer(configuration: Json, ours: str) -> str:
    """The field manager, other than `ours`, that wrote a configuration last: of those that own a `caBundle`, if any."""
    entries = [each for each in configuration["metadata"].get("managedFields") or () if each.get("manager") != ours]
    owners = [each for each in entries if '"f:caBundle"' in json.dumps(each.get("fieldsV1") or {})]
    found: Json = max(owners or entries, key=lambda each: str(each.get("time") or ""), default={})
    return str(found.get("manager") or "an unknown writer")
