"""The background processes of tests."""

from __future__ import annotations

import random
import sys

import pytest

from e2e.cluster import daemons


@pytest.mark.skipif(sys.platform != "linux", reason="ports are claimed in Linux's abstract namespace")
def test_a_chosen_port_is_not_chosen_again_before_its_program_listens(monkeypatch: pytest.MonkeyPatch):
    (claimed,) = daemons.free_ports(1)
    others = random.sample(daemons.PORTS, 50)  # other programs may use some of them
    monkeypatch.setattr(daemons, "PORTS", [claimed] * 9_950 + others)
    assert daemons.free_ports(1) != [claimed]
