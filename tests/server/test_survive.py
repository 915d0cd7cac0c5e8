"""Stalls and startup deadlines on a real API server, with the Job controller and the garbage collector.

No kubelet runs: the tests report as the pods would, and set their phases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.process import Operator, fetch
from tests.server.test_mpi import V2, MpiWorld, jobs, mpi_job
from tests.server.test_progress import Installation
from tests.server.world import JOBS, Json, World, replicas

PREFIX = "trainop.kubeflow.org/"


@pytest.fixture(scope="module")
def installation(
    control_plane_with_controllers: ControlPlane,
    shared_operator: Operator,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    if shared_operator.running:
        shared_operator.end()
    made = Installation(control_plane_with_controllers, tmp_path_factory.mktemp("survive") / "operator.log")
    made.operator.start()
    yield made
    made.operator.end()


def annotated(**annotations: str) -> dict[str, str]:
    return {f"{PREFIX}{name.replace('_', '-')}": value for name, value in annotations.items()}


def create(world: World, name: str, queue: str = "", **annotations: str) -> None:
    """A PyTorchJob with a master and a worker; `queue` is one of Kueue."""
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "annotations": annotated(**annotations), "labels": labels},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1, "OnFailure"), "Worker": replicas(1, "OnFailure")}},
    }
    world.ask("POST", JOBS, body)


def condition(job: Json, type_: str) -> tuple[str, str, str] | None:
    """Status, reason and message."""
    found = [each for each in (job.get("status") or {}).get("conditions") or () if each["type"] == type_]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def said(job: Json, type_: str) -> tuple[str, str] | None:
    found = condition(job, type_)
    return found and found[:2]


def uids(world: World, *names: str) -> set[str]:
    pods = world.pods()
    return {pods[name]["metadata"]["uid"] for name in names if name in pods}


# The startup deadline -------------------------------------------------------------------------------------------------


def test_jobs_that_do_not_start_are_suspended_or_fail(installation: Installation) -> None:
    world = installation.world
    create(world, "late", startup_deadline="10s")
    create(world, "never", startup_deadline="10s", on_startup_deadline="fail")
    create(world, "queued", "team", startup_deadline="10s")
    create(world, "prompt", startup_deadline="10s")
    for name in ("late", "never", "queued", "prompt"):
        for role in ("master", "worker"):
            world.wait_pod(f"{name}-{role}-0")
        world.run_pod(f"{name}-master-0")
    world.run_pod("prompt-worker-0")
    world.wait(lambda: said(world.job("prompt"), "Started") == ("True", "AllReplicasStarted"), "all have started")
    world.wait(lambda: world.is_now("Suspended", "late"), "the suspension")
    found = condition(world.job("late"), "Started")
    assert found is not None
    assert found[:2] == ("False", "StartupDeadlineExceeded")
    assert found[2].startswith("1 of 2 replicas have not started within 10s: 1: ")
    assert world.job("late")["spec"]["runPolicy"]["suspend"] is True
    world.wait(lambda: not uids(world, "late-master-0", "late-worker-0"), "no pods of the suspended job")
    world.wait(lambda: world.is_now("Failed", "never"), "the failure")
    assert "before its startup deadline" in world.condition("Failed", "never")["message"]
    assert world.status("never")["lastFailure"]["reason"] == "StartupDeadlineExceeded"
    world.wait(lambda: not uids(world, "never-master-0", "never-worker-0"), "no pods of the failed job")
    world.wait(lambda: said(world.job("queued"), "Started") == ("False", "StartupDeadlineExceeded"), "the deadline")
    assert len(uids(world, "queued-master-0", "queued-worker-0")) == 2
    assert not world.job("queued")["spec"].get("runPolicy", {}).get("suspend")
    world.wait_events("StartupDeadlineExceeded", 2)
    world.patch_run_policy("late", suspend=False)
    world.wait(lambda: said(world.job("late"), "Started") == ("False", "Starting"), "the job that is resumed")
    world.wait_pod("late-worker-0")
    world.run_pod("late-master-0", "late-worker-0")
    world.wait(lambda: said(world.job("late"), "Started") == ("True", "AllReplicasStarted"), "the second start")
    assert said(world.job("prompt"), "Started") == ("True", "AllReplicasStarted")
    assert world.is_now("Running", "prompt")


# Stalls ---------------------------------------------------------------------------------------------------------------


def report(installation: Installation, pod: str, percent: int) -> None:
    access = installation.access(installation.world.pods()[pod])
    metrics = [{"name": "current_step", "value": str(percent * 10)}]
    body: Any = {"trainerStatus": {"progressPercentage": percent, "metrics": metrics}}
    assert installation.post(access, body)[0] == 200


def run(world: MpiWorld, name: str) -> list[str]:
    """Waits for the pods of a job and runs them; returns their names."""
    names = [f"{name}-master-0", f"{name}-worker-0"]
    if name == "mpi":
        names = [f"{name}-worker-{index}" for index in range(2)]
        for pod in names:
            world.wait_pod(pod)
        world.ready(*names)
        names.append(world.wait_launcher(name))
    for pod in names:
        world.wait_pod(pod)
    world.run_pod(*names)
    return names


def test_jobs_that_fall_silent_say_so_or_restart(installation: Installation) -> None:
    world = MpiWorld(installation.world.api, f"{installation.world.namespace}-stalls")
    world.try_to("POST", "/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    create(world, "told", progress="true", stalled_after="1m")
    create(world, "mute", progress="true", stalled_after="1m", on_stall="restart")
    create(world, "again", progress="true", stalled_after="1m", on_stall="restart")
    mpi = mpi_job("mpi", V2)
    mpi["metadata"]["annotations"] = annotated(progress="true", stalled_after="1m", on_stall="restart")
    world.ask("POST", jobs(V2), mpi)
    pods = {name: run(world, name) for name in ("told", "mute", "again", "mpi")}
    before = {name: uids(world, *names) for name, names in pods.items()}

    def job(name: str) -> Json:
        found: Json = world.ask("GET", f"{jobs(V2) if name == 'mpi' else JOBS}/{name}")
        return found

    for name in pods:
        world.wait(lambda name=name: said(job(name), "Running"), f"{name} runs")  # type: ignore[misc]  # mypy cannot infer the lambda
    here = Installation.__new__(Installation)
    here.__dict__ = {**installation.__dict__, "world": world}
    for name in ("told", "again", "mpi"):
        report(here, pods[name][-1] if name == "mpi" else f"{name}-master-0", 37)
        world.wait(lambda name=name: said(job(name), "Stalled") == ("False", "ProgressReported"), f"{name} reports")  # type: ignore[misc]
    world.wait(lambda: said(job("told"), "Stalled") == ("True", "NoProgress"), "the job has stalled")
    found = condition(job("told"), "Stalled")
    assert found is not None
    assert "No report of progress for 1m: pod told-master-0 was last heard at 20" in found[2]
    assert ", at 37 %, step 370; " in found[2]
    assert said(job("told"), "Running") == ("True", "PyTorchJobRunning")
    for name in ("again", "mpi"):
        world.wait(lambda name=name: said(job(name), "Restarting"), f"{name} restarts")  # type: ignore[misc]
        assert job(name)["status"]["lastFailure"]["reason"] == "Stalled"
        world.wait(lambda name=name: not uids(world, *world.pods()) & before[name], f"the old pods of {name} are gone")  # type: ignore[misc]
        run(world, name)
        world.wait(lambda name=name: said(job(name), "Running"), f"{name} runs again")  # type: ignore[misc]
        assert json.loads(job(name)["metadata"]["annotations"][f"{PREFIX}restarts"])["failures"] == 1
        assert condition(job(name), "Stalled") is None
    launcher = world.ask("GET", "/apis/batch/v1/namespaces/{namespace}/jobs/mpi-launcher")
    assert launcher["spec"]["backoffLimit"] == 5
    report(here, "told-master-0", 38)
    world.wait(lambda: said(job("told"), "Stalled") == ("False", "ProgressReported"), "the next report")
    assert uids(world, *pods["told"]) == before["told"]
    assert uids(world, *pods["mute"]) == before["mute"]
    assert condition(job("mute"), "Stalled") is None
    metrics = fetch(installation.operator.metrics_url)[1]
    labels = f'framework="pytorch",job_namespace="{world.namespace}"'
    assert f"trainop_stalls_total{{{labels}}} 2.0" in metrics
    assert "trainop_jobs_stalled{" not in metrics
    world.wait_events("Stalled", 3)
