"""The flags of `trainop di-server`."""

from __future__ import annotations

import pytest

from trainop.cli import run_di_server
from trainop.errors import UsageError
from trainop.programs.di_server import DiServerSettings, read_di_server_settings
from trainop.runtime.serving.server import Address


def test_the_defaults_are_those_of_di_orchestrator():
    found, rest = read_di_server_settings((), {})
    assert rest == ()
    assert found == DiServerSettings()
    assert found.server_address == "di-server.di-system:8080"
    assert found.bind_address == Address(None, 8080)
    assert (found.config_namespace, found.config_name) == ("di-system", "aggregator-config")
    assert (found.lease_namespace, found.lease_prefix) == ("di-system", "di-server")
    assert found.caller_check


def test_flags_of_di_orchestrator_and_ours():
    args = [
        "-server-bind-address=127.0.0.1:1", "--server-address", "http://x:1", "--leader-elect", "--agconfig-name=n",
        "--agconfig-namespace=m", "--lease-lock-name=l", "--lease-lock-namespace=k", "--gpu-alloc-policy=simple",
        "-zap-devel=0", "--zap-log-level=error", "--kubeconfig=c", "--caller-check=off", "--ddp-ports=rank",
        "--max-replicas-per-request=5", "--delete-grace-period=7", "--caller-qps=0", "--max-body-bytes=9",
        "--termination-message-policy=file",
    ]  # fmt: skip
    found, _ = read_di_server_settings(args, {})
    assert found.bind_address == Address("127.0.0.1", 1)
    assert (found.server_address, found.kubeconfig) == ("http://x:1", "c")
    assert (found.config_name, found.config_namespace) == ("n", "m")
    assert (found.lease_prefix, found.lease_namespace) == ("l", "k")
    assert (found.caller_check, found.ports_by_rank, found.max_pods) == (False, True, 5)
    assert (found.grace_seconds, found.caller_rate, found.max_body) == (7, 0.0, 9)
    assert (found.logs.devel, found.logs.level) == (False, "error")
    assert found.termination_message_policy == "File"


@pytest.mark.parametrize(
    "flag",
    [
        "--gpu-alloc-policy=best", "--server-bind-address=0", "--server-bind-address=x", "--delete-grace-period=-1",
        "--termination-message-policy=Logs", "--caller-check=maybe", "--max-replicas-per-request=0", "--unknown",
    ],
)  # fmt: skip
def test_wrong_values_are_refused_at_the_start(flag: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UsageError):
        read_di_server_settings([flag], {})
    assert run_di_server([flag], "/di-server") == 2
    assert "Usage of /di-server:" in capsys.readouterr().err
