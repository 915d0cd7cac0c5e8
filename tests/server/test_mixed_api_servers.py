"""Two API servers of different releases on one etcd, behind a load balancer, as a control plane in HA has them while it
is upgraded: jobs of every kind live on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.api import Api
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import SECOND, ControlPlane
from e2e.cluster.releases import NEWEST, OLDEST
from tests.conftest import start_control_plane
from tests.needs import need_built
from tests.server.balancer import Balancer, InTurn
from tests.server.crowd import PodRecorder
from tests.server.di_life import live_as_dijob
from tests.server.kinds import ROWS, KindWorld
from tests.server.mpi_life import live_as_mpi
from tests.server.process import Operator
from tests.server.test_election import holder
from tests.server.world import World
from tests.upgrades.fleet import complete_fleet, watches
from trainop.programs.schemes import FRAMEWORKS

pytestmark = pytest.mark.slow  # needs the programs of two releases: make test-kubernetes
CUTS = 3
"""How often all connections end in a test, at least."""
PAUSE = 30.0
"""Seconds between two cuts at most; they are more often at first. The operator waits as long for a server that does
not keep its connections."""


@dataclass
class Pair:
    """Two API servers, and what stands in front of them."""

    plane: ControlPlane
    apis: tuple[Api, Api]
    balancer: Balancer
    kubeconfig: Path

    @property
    def api(self) -> Api:
        """Asks both in turn: what one was told, the other answers."""
        return InTurn(*self.apis)

    def versions(self) -> list[str]:
        return [api("GET", "/version").body["gitVersion"] for api in self.apis]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The oldest and the newest release; the operator gets the kubeconfig of the load balancer."""
    for release in (OLDEST, NEWEST):
        need_built(ClusterOptions(release=release.name))
    for plane in start_control_plane("mixed", ClusterOptions(release=OLDEST.name)):
        second = plane.add_api_server(NEWEST.name)
        balancer = Balancer((plane.plan.port, second))
        config = json.loads(plane.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{balancer.port}"
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        yield Pair(plane, (plane.api, plane.client(second)), balancer, kubeconfig)
        balancer.close()


def test_jobs_start_scale_suspend_resume_and_end_on_both(pair: Pair, make_operator: Callable[..., Operator]):
    """Each request of the test goes to the other server than the last one, and all connections of the operator end
    again and again, so that its watches go on at the other server, too."""
    operator = make_operator(pair.kubeconfig)
    operator.start()
    assert pair.versions() == [OLDEST.version, NEWEST.version]
    with ThreadPoolExecutor() as pool:
        lives = [pool.submit(live, pair, kind) for kind in ROWS]
        lives.append(pool.submit(live_as_mpi, World(pair.api, "mpi")))
        lives.append(pool.submit(live_as_dijob, World(pair.api, "di")))
        cuts = cut_until_ended(pair.balancer, lives)
    for each in lives:
        each.result()
    assert operator.running
    assert min(pair.balancer.passed[api.port] for api in pair.apis) > cuts, "both servers have served the operator"
    assert "Traceback" not in operator.text()


def cut_until_ended(balancer: Balancer, lives: list[Future[None]]) -> int:
    cuts = 0
    while cuts < CUTS or not all(life.done() for life in lives):
        wait(lives, timeout=min(2.0**cuts, PAUSE))
        balancer.cut()
        cuts += 1
    return cuts


def live(pair: Pair, kind: str) -> None:
    """A job of a kind runs, gets a worker more and loses it, is suspended, resumed and succeeds: no pod is made
    twice."""
    row = ROWS[kind]
    stage = KindWorld(pair.api, next(each for each in FRAMEWORKS.values() if each.kind == kind))
    recorder = PodRecorder(stage)
    stage.create("j", row.counts, "Never")
    start(stage, row.names("j"))
    scale(stage, row.counts["Worker"] + 1)
    one_more = f"j-worker-{row.counts['Worker']}"
    start(stage, [*row.names("j"), one_more])
    scale(stage, row.counts["Worker"])
    stage.wait_pods(*row.names("j"))
    stage.patch_job({"runPolicy": {"suspend": True}})
    stage.wait_pods()
    stage.wait_condition("Suspended")
    stage.patch_job({"runPolicy": {"suspend": False}})
    start(stage, row.names("j"))
    for name in row.ends:
        stage.end_pod(f"j-{name}")
    stage.wait_condition("Succeeded")
    assert not stage.condition("Restarting")
    assert not stage.condition("Failed")
    assert recorder.made() == {**dict.fromkeys(row.names("j"), 2), one_more: 1}


def scale(stage: KindWorld, workers: int) -> None:
    stage.patch_job({stage.framework.replica_specs: {"Worker": {"replicas": workers}}})


def start(stage: KindWorld, names: list[str]) -> None:
    """Exactly these pods run, and the status says so."""

    def counted() -> bool:
        roles = stage.status().get("replicaStatuses", {}).values()
        return bool(sum(role.get("active", 0) for role in roles) == len(names))

    pods = stage.wait_pods(*names)
    stage.run_pod(*(name for name in names if pods[name]["status"].get("phase") == "Pending"))
    stage.wait(counted, "the counts of all pods")
    stage.wait_condition("Running")


def test_running_jobs_do_not_notice_which_server_answers(pair: Pair, make_operator: Callable[..., Operator]):
    """Nor a change of both releases, one after the other, during which the leader keeps its lease."""
    world = World(pair.plane.api, "home")
    operator = make_operator(pair.kubeconfig, "--leader-elect", f"--leader-election-namespace={world.namespace}")
    operator.start()
    fleet = complete_fleet(pair.plane.api, operator, "team")
    state, leader = fleet.state(), holder(world)
    before = watches(operator)
    pair.balancer.cut()
    fleet.wait_watches(operator, before)
    fleet.check_untouched(state, "by watches that go on at the other server")
    steps = (("kube-apiserver", NEWEST), (SECOND, OLDEST), ("kube-apiserver", OLDEST))
    for number, (name, release) in enumerate(steps):
        pair.plane.change_release(name, release.name)
        fleet.wait_served(pair.apis[name == SECOND])
        newcomers = complete_fleet(pair.api, operator, f"newcomers-{number}")
        fleet.check_untouched(state, f"by the change of {name} to {release.name}")
        newcomers.replace_pod()
    fleet.replace_pod()
    assert pair.versions() == [OLDEST.version, OLDEST.version]
    assert holder(world) == leader
    assert operator.running
    assert "Traceback" not in operator.text()
