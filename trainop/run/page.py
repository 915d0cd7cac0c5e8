"""The page of `trainop run --ui`. What serves it stands above this package, and is given by the command `trainop`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

from trainop.kept.folder import Run
from trainop.runtime import Client

Page: TypeAlias = Callable[[Client, Path, Run | None, Callable[[str], None]], AbstractAsyncContextManager[None]]
"""Serves the page within its context. Takes a client and the kubeconfig of the run's cluster, the run if it is kept,
and what prints a line for the user."""
