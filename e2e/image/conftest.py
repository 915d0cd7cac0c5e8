"""Prints the figures that the tests record."""

from __future__ import annotations

from tests import conftest

pytest_terminal_summary = conftest.pytest_terminal_summary
