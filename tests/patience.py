"""The timeout of tests that wait for a condition. They poll it, and never sleep for a fixed time instead."""

from __future__ import annotations

PATIENCE = 120.0
"""Seconds after which a waiting test fails. It is generous, because the machine may be busy; promises about durations
are tested in virtual time."""
