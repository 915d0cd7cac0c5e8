"""An API server that is killed or restored from a backup: the operator recovers without help, and no pod is lost or
created twice."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import default_data
from tests.server.crowd import PodRecorder, create_jobs, names, uids, version
from tests.server.process import Operator
from tests.server.world import Json, World, replicas

MakeOperator = Callable[..., Operator]


def finish(world: World, jobs: int, workers: int) -> None:
    """Let all pods run and succeed, so that all jobs succeed; checks that no pod was replaced."""
    pods = world.wait_pods(*names(jobs, workers))
    for name in pods:
        world.run_pod(name)
    for number in range(jobs):
        world.wait_condition("Running", f"j{number}")
    for name in pods:
        world.end_pod(name)
    for number in range(jobs):
        world.wait_condition("Succeeded", f"j{number}")
    assert uids(world.pods()) == uids(pods)


def test_killed_in_the_middle_of_things(world: World, operator: Operator, control_plane: ControlPlane):
    create_jobs(world, 8, 4)
    control_plane.stop("kube-apiserver", patience=0)
    time.sleep(5)
    assert operator.probe("/healthz")[0] == 200
    control_plane.start("kube-apiserver")
    world.wait(lambda: set(world.pods()) == names(8, 4), "all pods")
    finish(world, 8, 4)
    world.create_job("new", {"Worker": replicas(1)})
    world.wait_pod("new-worker-0")
    text = operator.text()
    assert "Traceback" not in text
    assert "object at 0x" not in text, "the log shows no Python representations"


@pytest.fixture
def own_plane(control_plane: ControlPlane, crds: list[Json]) -> Iterator[ControlPlane]:
    """A control plane for this test alone, whose etcd may be restored to an older revision."""
    plane = ControlPlane(default_data(f"pytest-{os.getpid()}-restored"), die_with_parent=True)
    plane.up()
    for crd in crds:
        assert plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).status == 201
    yield plane
    plane.down()


def stop_all(plane: ControlPlane) -> None:
    plane.stop("kube-apiserver", patience=0)
    plane.stop("etcd")


def back_up(plane: ControlPlane, backup: Path) -> None:
    stop_all(plane)
    shutil.copytree(plane.data / "etcd", backup)
    plane.start("etcd", "kube-apiserver")


def restore(plane: ControlPlane, backup: Path) -> None:
    stop_all(plane)
    shutil.rmtree(plane.data / "etcd")
    shutil.copytree(backup, plane.data / "etcd")
    plane.start("etcd", "kube-apiserver")


def test_restored_to_an_older_revision(
    own_plane: ControlPlane,
    tmp_path: Path,
    alone: None,
    make_operator: MakeOperator,
    record_pods: Callable[[World], PodRecorder],
):
    operator = make_operator(own_plane.kubeconfig)
    operator.start()
    world = World(own_plane.api, "restored")
    for job in ("kept", "deleted"):
        world.create_job(job, {"Worker": replicas(2)})
        world.wait_condition("Created", job)
    ours = {"kept-worker-0", "kept-worker-1", "deleted-worker-0", "deleted-worker-1"}
    then = world.wait_pods(*ours)
    world.run_pod("kept-worker-0", "kept-worker-1")
    world.wait_condition("Running", "kept")
    back_up(own_plane, tmp_path / "backup")
    backed_up = version(world)

    # changes that the restore undoes: one job is deleted, one ends, one is created, and the revision advances
    world.ask("DELETE", "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/deleted")
    for name in ("deleted-worker-0", "deleted-worker-1"):
        world.reap_pod(name)
    for name in ("kept-worker-0", "kept-worker-1"):
        world.end_pod(name)
    world.wait_condition("Succeeded", "kept")
    world.create_job("lost", {"Worker": replicas(2)})
    world.wait(lambda: {"lost-worker-0", "lost-worker-1"} <= set(world.pods()), "pods of the job to be lost")
    for number in range(200):
        world.set_pod("lost-worker-0", {"message": f"{number}"})
    assert version(world) > backed_up + 200

    restore(own_plane, tmp_path / "backup")
    restored, recorder = version(world), record_pods(world)
    assert restored < backed_up + 100
    assert set(uids(world.pods())) == ours
    world.create_job("new", {"Worker": replicas(1)})
    world.wait(lambda: "new-worker-0" in world.pods(), "a pod of a new job")
    assert operator.running
    pods = world.wait_pods(*ours, "new-worker-0")
    assert {name: uid for name, uid in uids(pods).items() if name in ours} == uids(then), "as they were in the backup"
    world.run_pod("deleted-worker-0", "deleted-worker-1")
    for job in ("kept", "deleted"):
        world.wait_condition("Running", job)
    assert not world.is_now("Succeeded", "kept")
    for name in ours:
        world.end_pod(name)
    for job in ("kept", "deleted"):
        world.wait_condition("Succeeded", job)
    assert set(uids(world.pods())) == {*ours, "new-worker-0"}
    assert not {*recorder.made()} - {"new-worker-0"}, "no pod was created again"
    assert "Traceback" not in operator.text()
