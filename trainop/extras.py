"""The extras of the package: optional dependencies that only some commands need.

`pip install trainop` installs what the operator in a cluster runs. A command that needs more calls `require` before it
imports anything, so that a missing extra is reported in one line. `docs/dependencies.md` gives the reasons.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping

from trainop.errors import StartError

LOCAL = "local"
"""The embedded cluster of `trainop run` and `trainop cluster`, and `trainop check`."""

MODULES: Mapping[str, tuple[str, ...]] = {LOCAL: ("rich", *(("pyroute2",) if sys.platform == "linux" else ()))}
"""Top-level modules of each extra on this system."""


def load_structlog() -> None:
    """Imports structlog without `rich`, which it would load for tracebacks that no program here prints: 3 MiB in an
    operator that is installed together with the extra. No-op if either is loaded."""
    if sys.modules.keys() & {"rich", "structlog"}:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # the import system's mark for a module that is missing
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]


def require(extra: str, command: str) -> None:
    """Raises `StartError` with the extra to install if `command` lacks a module of `extra`."""
    missing = [module for module in MODULES[extra] if not _is_installed(module)]
    if missing:
        raise StartError(f"{command} needs {' and '.join(missing)}: pip install 'trainop[{extra}]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


load_structlog()  # before any other module of the program does
