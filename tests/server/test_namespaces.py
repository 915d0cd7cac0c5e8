"""An operator of several namespaces works in each of them, and in no other."""

from __future__ import annotations

from collections.abc import Callable

from e2e.cluster.controlplane import ControlPlane
from tests.server.conftest import NUMBERS
from tests.server.process import Operator
from tests.server.world import World, replicas


def test_it_works_in_every_namespace_that_the_flag_names(
    control_plane: ControlPlane, alone: None, make_operator: Callable[..., Operator]
):
    first, second, other = (World(control_plane.api, f"ns{next(NUMBERS)}") for _ in range(3))
    other.create_job("j", {"Master": replicas(1)})  # the oldest, so that it would be the first
    make_operator(control_plane.kubeconfig, f"--namespace={first.namespace},{second.namespace}").start()
    for world in (first, second, first):
        name = f"j{next(NUMBERS)}"
        world.create_job(name, {"Master": replicas(1)})
        world.wait_pod(f"{name}-master-0")
    assert not other.pods()
    assert not other.status()
