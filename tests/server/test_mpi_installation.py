"""The overlay `mpi-operator` as installed: in the environment of a pod, with the rights of its roles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.audit import Right, granted, requested
from tests.kustomize import combine
from tests.server.mpi_life import BATCH, continue_by_exec, live_by_exec, live_by_ssh
from tests.server.mpi_program import COMMAND
from tests.server.pod import PodStandIn, deployment_of, flags_of
from tests.server.process import Operator
from tests.server.test_gang import Stage
from tests.server.test_installation import GANG_SCHEDULERS, UNSEEN_OF_GANGS, apply
from tests.server.world import CORE, MERGE, World

NAME = "mpi-operator"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
V2 = "kubeflow.org/v2beta1"
MPI = f"/apis/{V2}/namespaces/{{namespace}}/mpijobs"
UNSEEN = {
    Right("kubeflow.org", "mpijobs/finalizers", "update"),  # an admission plugin checks this
    Right("", "pods/exec", "create"),  # only granted to launchers
    *UNSEEN_OF_GANGS,
}
"""Rights that no request of these jobs needs."""


def leave_a_job_of_mpi_operator(world: World) -> None:
    """A job with the children that mpi-operator makes, which lack the labels of the operator's caches."""
    template = {"spec": {"containers": [{"name": "mpi", "image": "none"}]}}
    specs = {role: {"replicas": 1, "template": template} for role in ("Launcher", "Worker")}
    body = {"apiVersion": V2, "kind": "MPIJob", "metadata": {"name": "t"}, "spec": {"mpiReplicaSpecs": specs}}
    job = world.ask("POST", MPI, body)
    condition = {"type": "Created", "status": "True", "reason": "MPIJobCreated", "message": "m"}
    world.ask("PATCH", f"{MPI}/t/status", {"status": {"conditions": [condition]}}, MERGE)
    owner = {"apiVersion": V2, "kind": "MPIJob", "name": "t", "uid": job["metadata"]["uid"], "controller": True}

    def leave(path: str, name: str, **content: object) -> None:
        metadata = {"name": name, "labels": {"app": "t"}, "ownerReferences": [owner]}
        world.ask("POST", path, {"metadata": metadata, **content})

    leave(f"{CORE}/services", "t", spec={"clusterIP": "None", "selector": {"training.kubeflow.org/job-name": "t"}})
    leave(f"{CORE}/configmaps", "t-config", data={"hostfile": "old"})
    launcher = {"metadata": {"labels": {"app": "t"}}, "spec": {**template["spec"], "restartPolicy": "Never"}}
    leave(BATCH, "t-launcher", spec={"template": launcher, "suspend": True})
    container = {"name": "other", "image": "none"}  # another's pod has the name of the worker
    world.ask("POST", f"{CORE}/pods", {"metadata": {"name": "t-worker-0"}, "spec": {"containers": [container]}})


def has_labels(world: World, path: str) -> bool:
    return len(world.ask("GET", path)["metadata"]["labels"]) > 1


def see_it_taken_over(world: World) -> None:
    for path in (f"{CORE}/services/t", f"{CORE}/configmaps/t-config"):
        world.wait(partial(has_labels, world, path), f"the labels of {path}")
    world.wait(lambda: world.events("ErrResourceExists"), "a warning about the pod")
    world.ask("DELETE", f"{MPI}/t")


def live_in_a_gang(stage: Stage, name: str) -> None:
    """The PodGroup of a job is created, updated and deleted."""
    world = stage.world
    template = {"template": {"spec": {"containers": [{"name": "mpi", "image": "none"}]}}}
    specs = {role: {"replicas": 1, **template} for role in ("Launcher", "Worker")}
    body = {"apiVersion": V2, "kind": "MPIJob", "metadata": {"name": name}, "spec": {"mpiReplicaSpecs": specs}}
    world.ask("POST", MPI, body)
    world.wait(lambda: stage.group(name).get("spec", {}).get("minMember") == 2, "the PodGroup")
    world.wait_pod(f"{name}-worker-0")
    world.ask("PATCH", f"{MPI}/{name}", {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}}, MERGE)
    world.wait(lambda: stage.group(name)["spec"]["minMember"] == 3, "its update")
    world.ask("PATCH", f"{MPI}/{name}", {"spec": {"runPolicy": {"suspend": True}}}, MERGE)
    world.wait(lambda: not stage.group(name), "its deletion")
    world.ask("DELETE", f"{MPI}/{name}")


@pytest.mark.case("mpi-v2beta1-40", "bc")
def test_as_installed(
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    tmp_path: Path,
    make_operator: Callable[..., Operator],
    kubectl: str,
):
    home = f"{quiet_world.namespace}-home"
    documents = combine(kubectl, tmp_path / "overlay", NAME, [f"overlays/{NAME}/exec"], namespace=home)
    for document in documents:
        apply(control_plane.api, document)
    flags = flags_of(deployment_of(documents, NAME))
    leave_a_job_of_mpi_operator(quiet_world)
    pod = PodStandIn(control_plane, tmp_path / "serviceaccount", make_operator, NAME, COMMAND)
    leader = pod.start(home, *flags)
    standby = pod.start(home, *flags)
    assert [each.probe("/healthz")[0] for each in (leader, standby)] == [200, 200]
    (lease,) = control_plane.api("GET", LEASES.format(home)).body["items"]
    assert (lease["metadata"]["name"], lease["spec"]["leaseDurationSeconds"]) == (NAME, 15)
    standby.end()
    see_it_taken_over(quiet_world)
    live_by_ssh(quiet_world)
    live_by_exec(quiet_world)
    continue_by_exec(quiet_world)
    assert "permission denied" not in leader.text()
    leader.end()
    for resource, scheduler in GANG_SCHEDULERS:
        stage = Stage(quiet_world, resource)
        stage.install()
        operator = pod.start(home, *flags, f"--gang-scheduling={scheduler}")
        live_in_a_gang(stage, scheduler)
        operator.end()
        stage.remove()
    used = requested(control_plane, home, NAME)
    used |= {right._replace(verb="list") for right in used if right.verb == "watch"}
    unused = sorted(granted(documents) - UNSEEN - used)
    assert not unused, "granted and never used: " + ", ".join(map("/".join, unused))
    assert not requested(control_plane, home, NAME, "forbid")
