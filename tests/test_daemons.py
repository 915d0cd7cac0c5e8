"""The background processes of tests."""

from __future__ import annotations

import socket
import sys

import pytest

from e2e.cluster import daemons


@pytest.mark.skipif(sys.platform != "linux", reason="ports are claimed in Linux's abstract namespace")
def test_a_chosen_port_is_not_chosen_again_before_its_program_listens(monkeypatch: pytest.MonkeyPatch):
    (claimed,) = daemons.free_ports(1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free: int = other.getsockname()[1]
    monkeypatch.setattr(daemons, "PORTS", [claimed] * 999 + [free])
    assert daemons.free_ports(1) == [free]
