"""The timeout of tests that wait for a condition. They poll it, and never sleep for a fixed time instead."""

from __future__ import annotations

import os

PATIENCE = 120.0
"""Seconds after which a waiting test fails. It is generous, because the machine may be busy; promises about durations
are tested in virtual time."""


def crowding() -> float:
    """How many processes wanted each processor in the last minute, from 1 to 8. A limit that would be met at once on an
    idle machine is multiplied by it."""
    return min(8.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
