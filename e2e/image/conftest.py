"""Prints the figures that the tests record."""

from __future__ import annotations

import pytest

from tests.conftest import report_benchmarks


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report_benchmarks(terminalreporter)
