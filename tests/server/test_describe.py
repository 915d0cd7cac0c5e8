"""`trainop describe` and the histogram of phases on a real API server: the story of a job that was suspended, resumed
and restarted once, and then succeeded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.process import Operator, fetch
from tests.server.test_why import kubeconfig_of
from tests.server.world import Json, World, container, replicas
from trainop.runtime.clock import timestamp

COUNT = re.compile(r'^trainop_job_phase_seconds_count\{kind="PyTorchJob",phase="(\w+)"\} (\S+)$', re.MULTILINE)
PAIR = ("j-master-0", "j-worker-0")


@pytest.fixture
def make(alone: None, control_plane: ControlPlane, make_operator: Callable[..., Operator]) -> Callable[[], Operator]:
    def start() -> Operator:
        operator = make_operator(control_plane.kubeconfig)
        operator.start()
        return operator

    return start


def describe(kubeconfig: Path, namespace: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "trainop", "describe", "pytorchjob/j", "-n", namespace]
    command += ["--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def counted(operator: Operator) -> dict[str, int]:
    """Phase -> number of observations."""
    return {phase: int(float(count)) for phase, count in COUNT.findall(fetch(operator.metrics_url)[1]) if float(count)}


def start(world: World, *names: str) -> None:
    """As a scheduler and a kubelet."""
    for name in names:
        now = timestamp(datetime.now(UTC))
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
        running = container({"running": {"startedAt": now}})
        world.set_pod(
            name, {"phase": "Running", "startTime": now, "conditions": [scheduled], "containerStatuses": [running]}
        )


def end(world: World, name: str, code: int) -> None:
    (status,) = world.pods()[name]["status"]["containerStatuses"]
    times = {"startedAt": status["state"]["running"]["startedAt"], "finishedAt": timestamp(datetime.now(UTC))}
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "message": "lost a lease\n", **times}
    phase = "Failed" if code else "Succeeded"
    world.set_pod(name, {"phase": phase, "containerStatuses": [container({"terminated": terminated})]})


def live(world: World) -> None:
    """The first half of a life: created suspended, resumed, restarted once, and running again."""
    specs = {"Master": replicas(1), "Worker": replicas(1, "ExitCode")}
    world.create_job("j", specs, suspend=True)
    world.wait_condition("Suspended")
    world.settle(2.1)  # so that the suspension has a duration
    world.patch_run_policy(suspend=False)
    pods = world.wait_pods(*PAIR)
    start(world, *PAIR)
    world.wait_condition("Running")
    world.settle(3.1)  # so that the job has run
    end(world, "j-worker-0", 130)
    world.wait_successor("j-worker-0", pods["j-worker-0"]["metadata"]["uid"])
    start(world, "j-worker-0")
    world.wait_condition("Running")


def test_the_story_of_a_job(world: World, control_plane: ControlPlane, make: Callable[[], Operator]):
    operator = make()
    live(world)
    world.settle(1.1)
    end(world, "j-master-0", 0)
    world.wait_condition("Succeeded")
    assert world.wait(lambda: counted(operator).get("running") == 2, "the last observation")
    assert counted(operator) == {"suspended": 1, "pending": 1, "starting": 1, "running": 2, "restarting": 1}
    world.wait(lambda: world.events("PyTorchJobRestarting"), "the event of the restart")
    world.wait(lambda: world.events("PyTorchJobSuspended"), "the event of the suspension")
    said = json.loads(describe(control_plane.kubeconfig, world.namespace, "-o", "json"))
    phases = [each for each in said["steps"] if each["step"] not in {"scheduled", "started", "ended"}]
    assert [each["step"] for each in phases] == [
        "created", "suspended", "pending", "starting", "running", "restarting", "running", "succeeded",
    ]  # fmt: skip
    restart = phases[5]
    assert re.match(
        r"restarting: Worker 0 \(rank 1, pod j-worker-0\) was ended by SIGINT \(exit code 130\)", restart["text"]
    )
    assert restart["evidence"] == ["lost a lease"]
    assert phases[1]["seconds"] >= 2
    assert phases[4]["seconds"] >= 3
    assert said["seconds"] >= 6
    assert abs(sum(each.get("seconds", 0) for each in phases) - said["seconds"]) <= len(phases), "each is rounded"
    started = [each["text"] for each in said["steps"] if each["step"] == "started"]
    assert started == ["master-0: containers started", "worker-0: containers started"]
    assert said["unread"] == []
    screen = describe(control_plane.kubeconfig, world.namespace)
    assert screen.startswith(f"PyTorchJob j in namespace {world.namespace}: Succeeded, ")
    assert "| lost a lease" in screen


def test_an_operator_that_starts_in_between_counts_what_ends_from_then_on(world: World, make: Callable[[], Operator]):
    first = make()
    live(world)
    world.wait(lambda: counted(first).get("restarting") == 1, "the observation of the restart")
    before = counted(first)
    first.end()
    second = make()
    end(world, "j-master-0", 0)
    world.wait_condition("Succeeded")
    assert world.wait(lambda: counted(second).get("running"), "the last observation") == 1
    assert counted(second) == {"running": 1}
    assert before == {"suspended": 1, "pending": 1, "starting": 1, "running": 1, "restarting": 1}


def test_a_user_of_one_namespace_is_told_what_he_may_not_see(
    world: World, control_plane: ControlPlane, make: Callable[[], Operator], tmp_path: Path
):
    make()
    world.create_job("j", {"Master": replicas(1)})
    world.wait_pods("j-master-0")
    rules: list[Json] = [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get"]}]
    user = kubeconfig_of(world, control_plane, tmp_path, rules)
    said = json.loads(describe(user, world.namespace, "-o", "json"))
    assert [text.split(":")[0] for text in said["unread"]] == ["pods", "events"]
    assert said["steps"][0]["step"] == "created"
