"""Public names that are imported on first use, so that unused parts of the library cost no memory (PEP 562)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EXPORT = re.compile(r"^from (\S+) import (\w+) as ", re.MULTILINE)


def public_names(scope: dict[str, Any]) -> tuple[dict[str, str], Callable[[str], Any]]:
    """The module of each public name of a package, and the package's `__getattr__`; `scope` is its `globals()`. The
    names are those of the stub beside the package: it is the only list of them, and gives type checkers their types."""
    stub = Path(scope["__file__"]).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {name: module for module, name in _EXPORT.findall(stub)}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {scope['__name__']!r} has no attribute {name!r}")
        found = scope[name] = getattr(importlib.import_module(modules[name]), name)
        return found

    return modules, find
