"""Settings of the tests of the wheel, which run apart from those in `tests`."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell that starts the tests in the background makes them ignore SIGINT; child processes would inherit that, and
    `trainop cluster` is ended by it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
