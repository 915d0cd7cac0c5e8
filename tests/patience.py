"""How long tests wait: until what they wait for is there, and no longer."""

from __future__ import annotations

PATIENCE = 120.0
"""Seconds after which a test that waits has failed. Nothing takes so long but on a machine that is busy with other
things; a promise about time is tested in virtual time."""
