"""The life of an MPIJob with each transport, which uses every right that its component grants."""

from __future__ import annotations

from typing import Any

from tests.server.applied import live_as_applied
from tests.server.world import CORE, MERGE, Json, World

MPI = "/apis/kubeflow.org/v1/namespaces/{namespace}/mpijobs"
MPI_V2 = "/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs"
TRANSPORT = "trainop.kubeflow.org/mpi-transport"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
BATCH = "/apis/batch/v1/namespaces/{namespace}/jobs"


def _template(image: str = "none") -> Json:
    return {"template": {"spec": {"containers": [{"name": "mpi", "image": image}]}}}


def _job(path: str, name: str, *, creation: str | None = None, **policy: Any) -> Json:
    specs = {"Launcher": {"replicas": 1, **_template()}, "Worker": {"replicas": 1, **_template()}}
    spec: Json = {"mpiReplicaSpecs": specs, "runPolicy": policy}
    spec |= {"launcherCreationPolicy": creation} if creation else {}
    version = "/".join(path.split("/")[2:4])
    return {"apiVersion": version, "kind": "MPIJob", "metadata": {"name": name}, "spec": spec}


def _create(world: World, path: str, name: str, *, creation: str | None = None, **policy: Any) -> None:
    world.ask("POST", path, _job(path, name, creation=creation, **policy))


def live_as_mpi(world: World) -> None:
    """Both transports, one after the other."""
    live_by_exec(world)
    continue_by_exec(world)
    live_by_ssh(world)
    find_the_launcher_taken(world)


def live_by_exec(world: World) -> None:
    _create(world, MPI, "e", ttlSecondsAfterFinished=0)
    world.wait(lambda: {"e-launcher", "e-worker-0"} <= world.pods().keys(), "the pods of e")
    _wait_bound(world, "e-launcher")
    world.run_pod("e-launcher", "e-worker-0")
    stranger = f"{CORE}/pods/e-worker-0"
    world.ask("PATCH", stranger, {"metadata": {"labels": {"training.kubeflow.org/job-name": "another"}}}, MERGE)
    world.wait(lambda: not world.ask("GET", stranger)["metadata"].get("ownerReferences"), "the release of the worker")
    world.end_pod("e-launcher")
    world.wait(lambda: world.try_to("GET", f"{MPI}/e").status == 404, "the deletion of e")


def continue_by_exec(world: World) -> None:
    """The account and the role are those of a former operator, which the caches do not show."""
    _create(world, MPI, "c", suspend=True)
    world.wait(lambda: world.ask("GET", f"{MPI}/c").get("status"), "the status of c")
    uid = world.ask("GET", f"{MPI}/c")["metadata"]["uid"]
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "name": "c", "uid": uid, "controller": True}
    metadata = {"name": "c-launcher", "ownerReferences": [owner]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "c-launcher"}
    world.ask("POST", f"{CORE}/serviceaccounts", {"metadata": metadata})
    world.ask("POST", f"{RBAC}/roles", {"metadata": metadata, "rules": []})
    world.ask("POST", f"{RBAC}/rolebindings", {"metadata": metadata, "roleRef": role})
    world.ask("PATCH", f"{MPI}/c", {"spec": {"runPolicy": {"suspend": False}}}, MERGE)
    world.wait(lambda: {"c-launcher", "c-worker-0"} <= world.pods().keys(), "the pods of c")
    world.wait(lambda: world.ask("GET", f"{RBAC}/roles/c-launcher")["rules"], "the rights of the launcher of c")
    _wait_bound(world, "c-launcher")
    world.ask("DELETE", f"{MPI}/c")


def _wait_bound(world: World, name: str) -> None:
    """Waits until the account has its rights: the operator writes the binding once it has seen its Role."""

    def is_bound() -> bool:
        answer = world.try_to("GET", f"{RBAC}/rolebindings/{name}")
        return answer.status == 200 and bool(answer.body.get("subjects"))

    world.wait(is_bound, f"the binding of {name}")


def find_the_launcher_taken(world: World) -> None:
    """A Job of others, which the caches do not show, has the name of the launcher."""
    spec = {**_template()["template"]["spec"], "restartPolicy": "Never"}
    body = {"metadata": {"name": "f-launcher"}, "spec": {"suspend": True, "template": {"spec": spec}}}
    world.ask("POST", BATCH, body)
    _create(world, MPI_V2, "f")
    world.wait(lambda: world.events("ErrResourceExists"), "a warning about the launcher")
    world.ask("DELETE", f"{MPI}/f")


def live_by_ssh(world: World) -> None:
    def suspend(value: bool, **specs: Json) -> None:
        spec = {"runPolicy": {"suspend": value}, "mpiReplicaSpecs": specs}
        world.ask("PATCH", f"{MPI}/s", {"spec": spec}, MERGE)

    def launcher() -> Json:
        answer = world.try_to("GET", f"{BATCH}/s-launcher")
        return answer.body if answer.status == 200 else {}

    live_as_applied(world, MPI_V2, _job(MPI_V2, "s", suspend=True))
    _create(world, MPI_V2, "s", suspend=True)
    world.wait(launcher, "the launcher of s")
    before = launcher()["metadata"]["uid"]
    suspend(False, Launcher=_template("other"))
    world.wait(lambda: launcher().get("metadata", {}).get("uid") not in (None, before), "a new launcher")
    started = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
    world.ask("PATCH", f"{BATCH}/s-launcher/status", started, MERGE)
    suspend(True)
    world.wait(lambda: launcher()["spec"].get("suspend"), "the suspended launcher")
    secret = f"{CORE}/secrets/s-ssh"
    world.ask("PATCH", secret, {"data": {"ssh-publickey": None}}, MERGE)
    suspend(False)
    world.wait(lambda: not launcher()["spec"].get("suspend"), "the resumed launcher")
    world.wait(lambda: "ssh-publickey" in world.ask("GET", secret)["data"], "a new key")
    world.ask("DELETE", f"{MPI}/s")
    _live_without_annotation(world)


def _live_without_annotation(world: World) -> None:
    """The operator asks for a launcher that is not in its cache to find out the transport."""

    def is_recorded() -> bool:
        return TRANSPORT in world.ask("GET", f"{MPI}/w")["metadata"].get("annotations", {})

    _create(world, MPI_V2, "w", creation="WaitForWorkersReady")
    world.wait(lambda: world.ask("GET", f"{MPI}/w").get("status"), "the status of w")
    world.ask("PATCH", f"{MPI}/w", {"metadata": {"annotations": {TRANSPORT: None}}}, MERGE)
    world.wait(is_recorded, "the transport of w")
    world.ask("DELETE", f"{MPI}/w")
