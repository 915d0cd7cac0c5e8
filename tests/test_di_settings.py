"""The flags of `trainop di-operator`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.test_cli import trainop, write_program
from trainop.cli import cli
from trainop.errors import UsageError
from trainop.programs.di_operator import read_di_settings
from trainop.programs.settings import Settings, read_settings


def read(*args: str, **environ: str) -> Settings:
    return read_di_settings(args, environ)[0]


def test_defaults():
    found = read(MY_POD_NAMESPACE="di-system")
    assert (found.metrics_bind_address, found.health_probe_bind_address) == (":8080", ":8081")
    assert (found.schemes, found.webhook_server_port, found.leader_elect) == (("DIJob",), 0, False)
    assert (found.leader_election_id, found.leader_lease_duration) == ("12841a5d.opendilab.org", 15)
    assert (found.leader_renew_deadline, found.leader_retry_period) == (10, 2)
    assert found.options.di_server_address == "di-server.di-system:8080"
    assert found.options.di_graceful_deletion is False
    assert found.logs.devel
    assert found.pod_namespace == "di-system"


def test_the_arguments_of_upstreams_deployment():
    flags = ("--health-probe-bind-address=:8081", "--metrics-bind-address=:8080", "--leader-elect")
    found = read(*flags, "-server-address", "http://di-server.di-system:8080", "--zap-devel=false")
    assert (found.leader_elect, found.logs.devel) == (True, False)
    assert found.options.di_server_address == "http://di-server.di-system:8080"


def test_own_flags():
    policy = "--termination-message-policy=File"
    found = read("--graceful-deletion", "--pod-events", "-namespace=team", "--kubeconfig=x", policy)
    assert found.options.termination_message_policy == "File"
    assert (found.options.di_graceful_deletion, found.pod_events) == (True, True)
    assert (found.namespace, found.kubeconfig) == ("team", "x")


@pytest.mark.parametrize("flag", ["--enable-scheme=TFJob", "--leader-election-id=x", "--di-server-address=x"])
def test_flags_of_the_other_operator_are_not_accepted(flag: str):
    with pytest.raises(UsageError, match="flag provided but not defined"):
        read(flag)


def test_the_generic_operator_has_the_same_options():
    found, _ = read_settings(["--di-server-address=x:1", "--di-graceful-deletion"], {})
    assert (found.options.di_server_address, found.options.di_graceful_deletion) == ("x:1", True)


def test_the_command_and_the_program_of_that_name(tmp_path: Path):
    assert "--server-address" in CliRunner().invoke(cli, ["di-operator", "--help"]).output
    program = write_program(tmp_path / "di-operator")
    done = trainop("--nope", program=str(program))
    assert (done.returncode, f"Usage of {program}:" in done.stderr) == (2, True)
