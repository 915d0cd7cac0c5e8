"""What tests require of the machine. A missing requirement skips the test, but fails it in CI."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

import pytest

from e2e.cluster.build import TESTED
from e2e.cluster.components import ClusterOptions
from e2e.cluster.places import ClusterError, binary
from e2e.monitoring.programs import MonitoringError, find


def is_complete() -> bool:
    """Whether nothing may be missing: in CI, on Linux, as root. There, a skip would hide a failure."""
    return os.environ.get("CI", "") not in {"", "0", "false"} and sys.platform == "linux" and os.geteuid() == 0


def lack(reason: str) -> NoReturn:
    """Skip the running test, or fail it in CI. The reason says what is missing and how to install it."""
    if is_complete():
        pytest.fail(f"CI should have this: {reason}", pytrace=False)
    pytest.skip(reason)


def need_built(options: ClusterOptions) -> None:
    """Require the binaries of a control plane, built from Go modules.

    Fails if `make test` does not build one of them, even where an earlier command did.
    """
    if others := sorted({*options.programs()} - {*TESTED}):
        pytest.fail(f"make test does not build {', '.join(others)}: see TESTED in e2e/cluster/build.py", pytrace=False)
    try:
        for program in options.programs():
            binary(program, options.release)
    except ClusterError as error:
        lack(str(error))


def find_kubectl() -> str:
    """The path of the installed kubectl, else of the one that is built with the control plane."""
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
"""The versions of kubectl that the README promises; the older one only if `make test-kubectl` has built it."""


def need_program(name: str) -> str:
    """The path of a binary of the test cluster."""
    try:
        return str(binary(name))
    except ClusterError as error:
        lack(str(error))


def need_monitoring(name: str) -> str:
    """The path of `prometheus` or `promtool`. Without them the test is skipped in CI, too: they come from Debian's
    archive, which not every machine reaches."""
    try:
        return str(find(name))
    except MonitoringError as error:
        pytest.skip(str(error))
