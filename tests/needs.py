"""What tests need of a machine. Where it is missing a test is skipped, but fails where everything can be had."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.places import ClusterError, binary


def is_complete() -> bool:
    """Whether this machine should lack nothing: CI on Linux, as root. A skip would hide that something broke."""
    return os.environ.get("CI", "") not in {"", "0", "false"} and sys.platform == "linux" and os.geteuid() == 0


def lack(reason: str) -> NoReturn:
    """Skip the test that runs, or fail it in CI; the reason says what is missing and how to get it."""
    if is_complete():
        pytest.fail(f"CI should have this: {reason}", pytrace=False)
    pytest.skip(reason)


def need_built(options: ClusterOptions) -> None:
    """The programs of a control plane, built from Go modules."""
    try:
        for program in options.programs():
            binary(program)
    except ClusterError as error:
        lack(str(error))


def find_kubectl() -> str:
    """The kubectl of the machine, else the one that is built with the control plane."""
    if found := shutil.which("kubectl"):
        return found
    try:
        return str(binary("kubectl"))
    except ClusterError as error:
        lack(str(error))


def _kubectls() -> tuple[str, ...]:
    try:
        binary("kubectl-1.33")
    except ClusterError:
        return ("kubectl",)
    return ("kubectl", "kubectl-1.33")


KUBECTLS = _kubectls()
"""The versions of kubectl that the README promises; the older one only where `make test-kubectl` has built it."""


def need_program(name: str) -> str:
    """The path of a program of the test cluster."""
    try:
        return str(binary(name))
    except ClusterError as error:
        lack(str(error))
