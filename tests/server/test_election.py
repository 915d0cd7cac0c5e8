"""Two operators, one leader, on a real API server."""

from __future__ import annotations

import signal
from collections.abc import Callable

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.server.process import Operator
from tests.server.world import World, replicas

MakeOperator = Callable[..., Operator]
LEASE = "1ca428e5.training-operator.kubeflow.org"


def holder(world: World) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/{LEASE}"
    lease = world.try_to("GET", path)
    return str(lease.body["spec"].get("holderIdentity") or "") if lease.status == 200 else ""


def test_a_standby_takes_over(
    control_plane: ControlPlane, quiet_world: World, alone: None, make_operator: MakeOperator
):
    """With times a third of upstream's, so that the test does not take half a minute."""
    world = quiet_world
    times = (
        "--leader-elect-lease-duration=5s",
        "--leader-elect-renew-deadline=3s",
        "--leader-elect-retry-period=500ms",
    )
    flags = ("--leader-elect", f"--leader-election-namespace={world.namespace}", f"--namespace={world.namespace}")
    first, second = (make_operator(control_plane.kubeconfig, *flags, *times) for _ in range(2))
    first.start()
    assert wait_until(lambda: bool(holder(world)), 15), first.text()
    leader = holder(world)
    second.start()
    world.create_job("j", {"Worker": replicas(1)})
    world.wait_pods("j-worker-0")
    assert second.metric(f'leader_election_master_status{{name="{LEASE}"}}') == 0
    first.end(signal.SIGKILL)
    world.create_job("k", {"Worker": replicas(1)})
    world.wait(lambda: holder(world) not in {"", leader}, "another leader", within=20)
    world.wait_pods("j-worker-0", "k-worker-0")
    assert second.metric(f'leader_election_master_status{{name="{LEASE}"}}') == 1
    assert second.end() == 0
    assert holder(world) == ""  # given back, so that the next one need not wait
