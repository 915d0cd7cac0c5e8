"""Jobs of every kind that do not move say so on a real API server: no kubelet starts their pods."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.kinds import ROWS, KindWorld
from tests.server.process import Operator, fetch
from tests.server.test_mpi import V1, V2, jobs, mpi_job
from tests.server.webhooks import DIJOBS, dijob
from tests.server.world import Json, World
from trainop.programs.schemes import FRAMEWORKS

AFTER = "--waiting-after=2s"


@pytest.fixture
def operator(alone: None, control_plane: ControlPlane, make_operator: Callable[..., Operator]) -> Operator:
    started = make_operator(control_plane.kubeconfig, AFTER)
    started.start()
    return started


def create_jobs(world: World) -> dict[str, str]:
    """A job of each kind in one namespace, and one with an invalid name; path -> the reason that it has to give."""
    expected = {}
    for kind, framework in FRAMEWORKS.items():
        one = KindWorld(world.api, framework, world.namespace)
        name = kind.lower()
        one.create(name, ROWS[kind].counts)
        expected[f"{one.jobs}/{name}"] = "PodsPending"
    mpi = (("exec", V1, "PodsPending"), ("ssh", V2, "PodsPending"), ("1-ssh", V2, "InvalidSpec"))
    for name, version, reason in mpi:
        world.ask("POST", jobs(version), mpi_job(name, version))
        expected[jobs(V1, name)] = reason
    world.ask("POST", DIJOBS, dijob("Running", "dijob"))
    expected[f"{DIJOBS}/dijob"] = "PodsPending"
    return expected


def waiting(job: Json) -> Json:
    found = [each for each in (job.get("status") or {}).get("conditions") or () if each["type"] == "Waiting"]
    return found[0] if found else {}


def versions(world: World, paths: dict[str, str]) -> dict[str, str]:
    return {path: world.ask("GET", path)["metadata"]["resourceVersion"] for path in paths}


def counted(operator: Operator, namespace: str) -> dict[str, int]:
    """Framework and reason -> the metric."""
    pattern = r'^trainop_jobs_waiting\{framework="(\w+)",job_namespace="(.+?)",reason="(\w+)"\} (\S+)$'
    found = re.findall(pattern, fetch(operator.metrics_url)[1], re.MULTILINE)
    return {f"{kind} {reason}": int(float(count)) for kind, place, reason, count in found if place == namespace}


def test_every_kind_says_what_it_waits_for_and_no_more_after_a_restart(
    quiet_world: World,
    operator: Operator,
    control_plane: ControlPlane,
    make_operator: Callable[..., Operator],
):
    world = quiet_world
    expected = create_jobs(world)
    for path, reason in expected.items():
        said = world.wait(lambda path=path: waiting(world.ask("GET", path)), f"{path} waits")  # type: ignore[misc]  # mypy cannot infer the lambda
        assert (said["status"], said["reason"]) == ("True", reason), path
        assert path.rpartition("/")[2] in said["message"]
    world.wait_events("PodsPending", len(expected) - 1)
    world.wait_events("InvalidSpec")
    before = versions(world, expected)
    operator.end()
    second = make_operator(control_plane.kubeconfig, AFTER)
    second.start()
    names = {"mpi PodsPending": 2, "mpi InvalidSpec": 1, "dijob PodsPending": 1}
    names |= {f"{framework.name} PodsPending": 1 for framework in FRAMEWORKS.values()}
    world.wait(lambda: counted(second, world.namespace) == names, "the metric")
    world.settle(1.0)
    assert versions(world, expected) == before, "a restart writes nothing"
    pods = [name for name in world.pods() if name.startswith("pytorchjob-")]
    path = next(path for path in expected if path.endswith("/pytorchjob"))
    KindWorld(world.api, FRAMEWORKS["PyTorchJob"], world.namespace).run_pod(*pods)
    world.wait(lambda: not waiting(world.ask("GET", path)), "it waits no more")
    assert [each["type"] for each in world.ask("GET", path)["status"]["conditions"]] == ["Created", "Running"]
