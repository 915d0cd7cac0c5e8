"""Kinds and probabilities of network faults between the operator and the API server."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FaultRates:
    """Probabilities per request, and per chunk of a watch; `latency` in seconds is the usual way there and back."""

    latency: float = 0.005
    slow: float = 0.0
    """The response takes up to three seconds."""
    refused: float = 0.0
    """The connection is refused, so the request was certainly not sent."""
    reset: float = 0.0
    """The connection breaks before the request arrives."""
    lost: float = 0.0
    """The request is carried out, but the connection breaks before the response."""
    hang: float = 0.0
    """No response before the client's timeout; half of these requests are carried out."""
    throttled: float = 0.0
    """429 with Retry-After."""
    broken: float = 0.0
    """500, or 503."""
    conflict: float = 0.0
    """409 for a write over a version, though nobody else has written."""
    late: float = 0.0
    """What a watch shows is delayed by seconds."""
    cut: float = 0.0
    """A watch ends, often in the middle of a line."""
    mute: float = 0.0
    """A watch falls silent; half a minute later the connection is found dead."""
    twice: float = 0.0
    """The last event comes twice."""
    expired: float = 0.0
    """A watch ends with 410."""
    error: float = 0.0
    """A watch ends with an ERROR event, 500 or 429."""
    bookmark: float = 0.0
    """Bookmarks come between events."""


FAIR = FaultRates()


def draw_fault_rates(rng: random.Random, chosen: Iterable[str]) -> FaultRates:
    """With these kinds of faults, rare to frequent."""
    kinds = sorted(chosen)
    strength = rng.choice((0.15, 0.4, 0.6)) / max(1.0, len(kinds) / 3)
    faults = {kind: rng.uniform(0.3, 1) * strength for kind in kinds}
    for kind in {"hang", "mute"} & set(kinds):  # half a minute each
        faults[kind] /= 3
    if "conflict" in faults:
        faults["conflict"] = min(0.6, 3 * faults["conflict"])  # few requests are such that it can befall them
    return FaultRates(latency=rng.choice((0.0, 0.005, 0.05)), **faults)
