"""Every Deployment that is shipped: its flags, read as the program reads them, fit its pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kustomize import OVERLAYS, combine, fitting
from trainop.programs.di_operator import read_di_settings
from trainop.programs.di_server import read_di_server_settings
from trainop.programs.di_webhook import read_di_webhook_settings
from trainop.programs.mpi_operator import read_mpi_settings
from trainop.programs.settings import read_settings

READERS: Mapping[str, Callable[..., Any]] = {
    "/manager": read_settings,
    "/mpi-operator": read_mpi_settings,
    "/di-operator": read_di_settings,
    "/di-server": read_di_server_settings,
    "/di-webhook": read_di_webhook_settings,
}
ONLY_SERVE = {"/di-server", "/di-webhook"}
"""They reconcile nothing: several at once do not disturb each other."""


@pytest.fixture(params=OVERLAYS)
def deployments(kubectl: str, tmp_path: Path, request: pytest.FixtureRequest) -> list[tuple[str, Any, Any]]:
    """Program, settings and spec of each Deployment of an overlay, alone and with all components."""
    found = []
    for number, components in enumerate(([], fitting(request.param))):
        for each in combine(kubectl, tmp_path / str(number), request.param, components):
            if each["kind"] == "Deployment":
                (container,) = each["spec"]["template"]["spec"]["containers"]
                given = [*container["command"], *container.get("args", ())]
                if container["command"][0] == "/trainop":
                    continue  # the page: it reconciles nothing, and has no settings (tests/ui/test_command.py)
                program, *flags = (each.replace("$(MY_POD_NAMESPACE)", "home") for each in given)
                settings, rest = READERS[program](flags, {"MY_POD_NAMESPACE": "home", "MY_POD_NAME": "p"})
                assert rest == ()
                found.append((program, settings, each["spec"]))
    assert found
    return found


def test_two_pods_never_reconcile_at_once(deployments: list[tuple[str, Any, Any]]):
    """A rolling update starts the new pod before the old one ends."""
    for program, settings, spec in deployments:
        replaced = spec.get("strategy", {}).get("type", "RollingUpdate")
        assert program in ONLY_SERVE or settings.leader_elect or replaced == "Recreate", program


def test_the_kubelet_waits_longer_than_the_program_needs_to_stop(deployments: list[tuple[str, Any, Any]]):
    for program, settings, spec in deployments:
        timeout = settings.shutdown_timeout if program == "/di-server" else settings.graceful_shutdown_timeout
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= timeout + 5, program


def test_logs_are_json(deployments: list[tuple[str, Any, Any]]):
    for program, settings, _ in deployments:
        logs = settings.logs
        assert (logs.encoder or ("console" if logs.devel else "json")) == "json", program
        assert (logs.level or ("debug" if logs.devel else "info")) == "info", program
