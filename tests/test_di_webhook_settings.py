"""The flags of `trainop di-webhook`."""

from __future__ import annotations

import pytest

from trainop.cli import run_di_webhook
from trainop.errors import StartError
from trainop.local.api.serving.server import ApiServer
from trainop.programs.di_webhook import read_di_webhook_settings
from trainop.programs.operator import build
from trainop.programs.settings import Settings


def read(*args: str, **environ: str) -> Settings:
    return read_di_webhook_settings(args, environ)[0]


def test_defaults_of_upstream():
    found = read(MY_POD_NAMESPACE="di-system")
    assert (found.metrics_bind_address, found.health_probe_bind_address) == (":8080", ":8081")
    assert found.webhook_server_port == 9443
    assert found.webhook_cert_dir == "/tmp/k8s-webhook-server/serving-certs"
    assert (found.webhook_service_name, found.webhook_secret_name) == ("di-webhook-service", "di-webhook-server-cert")
    assert found.pod_namespace == "di-system"
    assert (found.webhooks_only, found.leader_elect) == (True, False)
    assert found.logs.devel


def test_flags_of_upstream():
    found = read(
        "-metrics-bind-address=0",
        "--health-probe-bind-address",
        ":1",
        "--leader-elect",
        "--kubeconfig=mine",
        "-zap-devel=0",
    )
    assert (found.metrics_bind_address, found.health_probe_bind_address) == ("0", ":1")
    assert (found.kubeconfig, found.leader_elect, found.logs.devel) == ("mine", False, False)


def test_an_unknown_flag_gives_usage(capsys: pytest.CaptureFixture[str]):
    assert run_di_webhook(["--enable-scheme=DIJob"], "/di-webhook") == 2
    assert "Usage of /di-webhook:" in capsys.readouterr().err


async def test_it_does_not_start_without_webhooks():
    for settings in (read(), read("--webhook-server-port=0", MY_POD_NAMESPACE="di-system")):
        with pytest.raises(StartError, match="MY_POD_NAMESPACE"):
            build(settings, ApiServer().transport(), signals=False)
