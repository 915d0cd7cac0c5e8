"""The endpoint in the operator: what it needs, and what happens while there is no certificate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.engine.progress import ProgressEndpoint
from trainop.errors import StartError, UsageError
from trainop.programs.progress import CERTIFICATE_TIMEOUT, Serving, _wait_for, add_progress
from trainop.programs.settings import read_settings
from trainop.runtime.lowlevel import Address


def read(*flags: str, **environment: str) -> ProgressEndpoint | None:
    return read_settings(flags, environment)[0].options.progress


def test_it_is_off_by_default():
    assert read() is None
    assert read("--progress") is None


def test_what_pods_are_told():
    address = "--progress-bind-address=:9444"
    assert read(address, MY_POD_NAMESPACE="ops") == ProgressEndpoint("https://training-operator.ops.svc:9444")
    assert read(address, "--webhook-service-name=hooks", MY_POD_NAMESPACE="ops") == ProgressEndpoint(
        "https://hooks.ops.svc:9444"
    )
    given = read(address, "--progress", "--progress-url=https://progress.example.com/")
    assert given == ProgressEndpoint("https://progress.example.com", everywhere=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--progress-bind-address=nowhere",), "--progress-bind-address"),
        (("--progress-bind-address=:9444", "--progress-url=http://x"), "must begin with https://"),
    ],
)
def test_flags_that_are_refused(flags: tuple[str, ...], said: str):
    with pytest.raises(UsageError, match=said):
        read(*flags)


def test_without_the_certificate_of_webhooks_the_operator_does_not_start():
    needs = SimpleNamespace(options=SimpleNamespace(progress=ProgressEndpoint("https://x")))
    with pytest.raises(StartError, match="needs the certificate of the webhooks"):
        add_progress(cast("Any", None), cast("Any", needs), Serving((), Address(None, 9444), None))


@virtual_time
async def test_controllers_wait_for_a_certificate_but_not_for_ever():
    clock = VirtualClock()
    with capture_logs() as logs:
        await _wait_for(lambda: "PEM" if clock.monotonic() > 3 else "", clock)
        assert 3 < clock.monotonic() < 4
        assert logs == []
        await _wait_for(lambda: "", clock)
    assert CERTIFICATE_TIMEOUT <= clock.monotonic() - 3 < CERTIFICATE_TIMEOUT + 2
    assert "cannot report" in logs[0]["event"]
