"""Two operators, one leader, on a real API server."""

from __future__ import annotations

import signal
from collections.abc import Callable

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE
from tests.server.crowd import PodRecorder, create_jobs, names
from tests.server.process import Operator
from tests.server.world import World, replicas

MakeOperator = Callable[..., Operator]
LEASE = "1ca428e5.training-operator.kubeflow.org"


def holder(world: World) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/{LEASE}"
    lease = world.try_to("GET", path)
    return str(lease.body["spec"].get("holderIdentity") or "") if lease.status == 200 else ""


def start_two(control_plane: ControlPlane, world: World, make_operator: MakeOperator) -> tuple[Operator, Operator, str]:
    """The leader, its standby, and the leader's identity. Default timings: on a busy machine a shorter lease
    expires."""
    flags = ("--leader-elect", f"--leader-election-namespace={world.namespace}", f"--namespace={world.namespace}")
    first, second = (make_operator(control_plane.kubeconfig, *flags) for _ in range(2))
    first.start()
    assert wait_until(lambda: bool(holder(world)), PATIENCE), first.text()
    leader = holder(world)
    second.start()
    return first, second, leader


def test_a_standby_takes_over(
    control_plane: ControlPlane, quiet_world: World, alone: None, make_operator: MakeOperator
):
    world = quiet_world
    first, second, leader = start_two(control_plane, world, make_operator)
    world.create_job("j", {"Worker": replicas(1)})
    world.wait_pods("j-worker-0")
    assert second.metric(f'leader_election_master_status{{name="{LEASE}"}}') == 0
    first.end(signal.SIGKILL)
    world.create_job("k", {"Worker": replicas(1)})
    world.wait(lambda: holder(world) not in {"", leader}, "another leader")
    world.wait_pods("j-worker-0", "k-worker-0")
    assert second.metric(f'leader_election_master_status{{name="{LEASE}"}}') == 1
    assert second.end() == 0
    assert holder(world) == ""  # the lease is released, so that the next leader need not wait for its expiry


def test_a_leader_that_was_stopped_writes_nothing_and_exits(
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    make_operator: MakeOperator,
    record_pods: Callable[[World], PodRecorder],
):
    """It resumes in the belief that it leads, with work to do, while the standby leads already."""
    world = quiet_world
    recorder = record_pods(world)
    first, second, leader = start_two(control_plane, world, make_operator)
    assert first.process is not None
    world.create_job("j", {"Worker": replicas(1)})
    world.wait_pods("j-worker-0")
    first.process.send_signal(signal.SIGSTOP)
    create_jobs(world, 4, 2)
    world.wait(lambda: holder(world) not in {"", leader}, "another leader")
    world.wait_pods("j-worker-0", *names(4, 2))
    successor = holder(world)
    first.process.send_signal(signal.SIGCONT)
    assert first.exit_code() == 1
    assert holder(world) == successor, "a lease held by another replica is left alone"
    assert recorder.made() == dict.fromkeys(("j-worker-0", *names(4, 2)), 1)
    assert second.running
    assert "Traceback" not in first.text()
