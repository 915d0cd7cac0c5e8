"""MPIJob on a real kube-apiserver, with the Job controller and the garbage collector of kube-controller-manager."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.process import Operator
from tests.server.world import CORE, MERGE, Json, World

NUMBERS = itertools.count(1)
APPLY = "application/apply-patch+yaml"
V1, V2 = "kubeflow.org/v1", "kubeflow.org/v2beta1"
TRANSPORT = "trainop.kubeflow.org/mpi-transport"


def jobs(version: str, name: str = "") -> str:
    return f"/apis/{version}/namespaces/{{namespace}}/mpijobs{f'/{name}' if name else ''}"


def batch(name: str = "") -> str:
    return f"/apis/batch/v1/namespaces/{{namespace}}/jobs{f'/{name}' if name else ''}"


def mpi_job(name: str, version: str, workers: int = 2, *, run: Json | None = None, **spec: Any) -> Json:
    template = {"spec": {"containers": [{"name": "mpi", "image": "none"}]}}
    specs = {"Launcher": {"replicas": 1, "template": template}, "Worker": {"replicas": workers, "template": template}}
    policy = {"runPolicy": run} if run else {}
    return {
        "apiVersion": version,
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {"mpiReplicaSpecs": specs, **policy, **spec},
    }


class MpiWorld(World):
    """One namespace with MPIJobs."""

    def create(self, body: Json) -> Json:
        made: Json = self.ask("POST", jobs(body["apiVersion"]), body)
        return made

    def mpi(self, name: str, version: str = V1) -> Json:
        found: Json = self.ask("GET", jobs(version, name))
        return found

    def transport(self, name: str) -> str | None:
        """The recorded transport."""
        recorded: str | None = (self.mpi(name)["metadata"].get("annotations") or {}).get(TRANSPORT)
        return recorded

    def state(self, name: str) -> list[tuple[str, str]]:
        conditions = self.mpi(name).get("status", {}).get("conditions", [])
        return [(each["type"], each["status"]) for each in conditions]

    def wait_state(self, name: str, type_: str) -> None:
        self.wait(lambda: (type_, "True") in self.state(name), f"{name} {type_}")

    def exists(self, path: str) -> bool:
        return self.try_to("GET", path).status == 200

    def patch(self, name: str, patch: Json, version: str = V1) -> Json:
        found: Json = self.ask("PATCH", jobs(version, name), patch, MERGE)
        return found

    def wait_launcher(self, name: str) -> str:
        """The pod of the launcher's Job, which the Job controller creates."""

        def find() -> str:
            return next((pod for pod in self.pods() if pod.startswith(f"{name}-launcher-")), "")

        found: str = self.wait(find, f"the launcher of {name}")
        return found

    def living(self) -> list[str]:
        return [name for name, pod in self.pods().items() if "deletionTimestamp" not in pod["metadata"]]

    def describe(self) -> str:
        found = {each["metadata"]["name"]: each.get("status") for each in self.ask("GET", jobs(V1))["items"]}
        return f"pods {[*self.pods()]}, jobs {found}"

    def ready(self, *pods: str) -> None:
        for pod in pods:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.set_pod(pod, status)


@pytest.fixture(scope="module")
def mpi_operator(
    control_plane_with_controllers: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    operator = Operator(log, f"--kubeconfig={control_plane_with_controllers.kubeconfig}", "--enable-scheme=MPIJob")
    operator.start()
    yield operator
    operator.end()


@pytest.fixture
def world(control_plane_with_controllers: ControlPlane, mpi_operator: Operator) -> MpiWorld:
    del mpi_operator
    return MpiWorld(control_plane_with_controllers.api, f"mpi{next(NUMBERS)}")


def test_a_job_with_transport_ssh_runs_through(world: MpiWorld):
    world.create(mpi_job("b", V2, run={"cleanPodPolicy": "Running"}))
    launcher = world.wait_launcher("b")
    assert world.transport("b") == "ssh"
    world.ready("b-worker-0", "b-worker-1", launcher)
    world.wait_state("b", "Running")
    assert world.mpi("b")["status"]["replicaStatuses"] == {"Launcher": {"active": 1}, "Worker": {"active": 2}}
    world.end_pod(launcher)
    world.wait_state("b", "Succeeded")
    world.wait(lambda: "b-worker-0" not in world.living(), "the end of the workers")
    assert world.state("b")[-1] == ("Succeeded", "True")
    assert world.mpi("b")["status"]["replicaStatuses"] == {"Launcher": {"succeeded": 1}, "Worker": {}}


def test_a_job_with_transport_exec_runs_through(world: MpiWorld):
    world.create(mpi_job("a", V1))
    world.wait(lambda: {"a-launcher", "a-worker-0", "a-worker-1"} <= world.pods().keys(), "the pods")
    assert world.transport("a") == "exec"
    world.ready("a-worker-0", "a-worker-1", "a-launcher")
    world.wait_state("a", "Running")
    world.end_pod("a-launcher")
    world.wait_state("a", "Succeeded")


@pytest.mark.case("mpi-v2beta1-39", "abc")
def test_both_transports_side_by_side(world: MpiWorld):
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    world.create(mpi_job("a", V1))
    world.create(mpi_job("b", V2))
    world.wait(lambda: "a-launcher" in world.pods() and world.exists(batch("b-launcher")), "both launchers")
    world.wait(lambda: world.exists(f"{rbac}/roles/a-launcher"), "the Role of the launcher")
    assert world.exists(f"{CORE}/serviceaccounts/a-launcher")
    assert not world.exists(f"{CORE}/secrets/a-ssh")
    assert not world.exists(batch("a-launcher"))
    assert world.exists(f"{CORE}/services/b")
    assert world.exists(f"{CORE}/secrets/b-ssh")
    assert not world.exists(f"{rbac}/roles/b-launcher")
    assert "b-launcher" not in world.pods()
    listed = world.ask("GET", jobs(V1))["items"]
    assert [each["metadata"]["name"] for each in listed] == ["a", "b"]

    stored = world.mpi("b")
    del stored["metadata"]["annotations"][TRANSPORT]
    stored["metadata"].pop("managedFields", None)
    assert world.try_to("PUT", jobs(V1, "b"), stored).status in (200, 409)
    world.patch("b", {"metadata": {"annotations": {TRANSPORT: None}}})
    world.wait(lambda: world.transport("b"), "the annotation")
    assert world.transport("b") == "ssh"
    world.patch("b", {"metadata": {"annotations": {TRANSPORT: "exec"}}})
    world.wait(lambda: world.transport("b") == "ssh", "the annotation")
    world.wait(lambda: world.events("TransportChanged"), "a warning")
    assert "b-launcher" not in world.pods()


@pytest.mark.case("mpi-v2beta1-38", "abcd")
@pytest.mark.parametrize("version", [V1, V2])
def test_misspelt_fields_of_both_templates_are_reported(world: MpiWorld, version: str):
    job = mpi_job("odd", version, workers=1)
    for role, field in (("Launcher", "volumeMount"), ("Worker", "resource")):
        specs = job["spec"]["mpiReplicaSpecs"]
        container = {"name": "mpi", "image": "none", field: []}
        specs[role] = {**specs[role], "template": {"spec": {"containers": [container]}}}
    world.create(job)
    at = "spec.mpiReplicaSpecs"
    text = (
        "Pods run without fields that the API server does not know: "
        f'{at}.Launcher.template.spec.containers[0].volumeMount: unknown field, did you mean "volumeMounts"?; '
        f'{at}.Worker.template.spec.containers[0].resource: unknown field, did you mean "resources"?'
    )

    def said() -> list[str]:
        conditions = world.mpi("odd").get("status", {}).get("conditions", [])
        return [each["message"] for each in conditions if each["type"] == "TemplateValid"]

    world.wait(lambda: said() == [text], f"the condition of {version}")


def test_one_crd_serves_both_versions(world: MpiWorld):
    body = mpi_job("old", V1, cleanPodPolicy="Running", mainContainer="mpi")
    body["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    made = world.create(body)
    world.wait(lambda: world.transport("old") == "exec", "the transport")
    assert "slotsPerWorker" not in world.mpi("old", V2)["spec"]
    world.patch("old", {"metadata": {"labels": {"x": "y"}}}, V2)
    applied = {"apiVersion": V2, "kind": "MPIJob", "metadata": {"name": "old", "labels": {"z": "y"}}}
    world.ask("PATCH", f"{jobs(V2, 'old')}?fieldManager=me", applied, APPLY)
    defaults = {
        "slotsPerWorker": 1,
        "runLauncherAsWorker": False,
        "sshAuthMountPath": "/root/.ssh",
        "launcherCreationPolicy": "AtStartup",
        "mpiImplementation": "OpenMPI",
    }
    assert world.mpi("old")["spec"] == made["spec"] | defaults
    assert world.transport("old") == "exec"

    made = world.create(mpi_job("new", V2, sshAuthMountPath="/home/u/.ssh", mpiImplementation="Intel"))
    world.wait(lambda: world.transport("new"), "the transport")
    assert world.transport("new") == "ssh"
    world.patch("new", {"spec": {"slotsPerWorker": 3}})
    found = world.mpi("new", V2)["spec"]
    assert found == made["spec"] | {"slotsPerWorker": 3}


def test_suspend_and_resume_with_the_real_job_controller(world: MpiWorld):
    """Also the scheduling fields of a launcher that has been started once."""
    world.create(mpi_job("s", V2))
    launcher = world.wait_launcher("s")
    world.ready("s-worker-0", "s-worker-1", launcher)
    world.wait_state("s", "Running")
    world.patch("s", {"spec": {"runPolicy": {"suspend": True}}})
    world.wait_state("s", "Suspended")
    world.wait(lambda: not any(world.living()), "the end of the pods")
    for pod in list(world.pods()):
        world.reap_pod(pod)
    template = world.mpi("s")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
    template["spec"]["nodeSelector"] = {"pool": "x"}
    template["metadata"] = {"labels": {"a": "b"}}
    specs = {"Launcher": {"template": template}}
    world.wait(lambda: not world.ask("GET", batch("s-launcher"))["status"].get("active"), "the suspended Job")
    world.patch("s", {"spec": {"mpiReplicaSpecs": specs, "runPolicy": {"suspend": False}}})
    world.wait(lambda: not world.ask("GET", batch("s-launcher"))["spec"]["suspend"], "the resumed Job")
    resumed = world.ask("GET", batch("s-launcher"))["spec"]["template"]
    assert resumed["spec"]["nodeSelector"] == {"pool": "x"}
    assert resumed["metadata"]["labels"]["a"] == "b"
    launcher = world.wait(lambda: next((pod for pod in world.living() if "-launcher-" in pod), ""), "a launcher")
    world.wait(lambda: {"s-worker-0", "s-worker-1"} <= {*world.living()}, "the workers")
    world.ready("s-worker-0", "s-worker-1", launcher)
    world.wait_state("s", "Running")


def test_the_end_of_a_job_removes_everything(world: MpiWorld):
    for name, version in (("a", V1), ("b", V2)):
        world.create(mpi_job(name, version))
    world.wait(lambda: "a-launcher" in world.pods() and world.exists(batch("b-launcher")), "both launchers")
    for name in ("a", "b"):
        world.ask("DELETE", jobs(V1, name))
    paths = (f"{CORE}/secrets/b-ssh", f"{CORE}/configmaps/a-config", f"{CORE}/configmaps/b-config", batch("b-launcher"))
    world.wait(lambda: not any(world.exists(path) for path in paths), "the garbage collector")


@pytest.mark.case("frameworks-v1-37", "b")
def test_a_foreign_config_map_keeps_a_job_of_transport_exec_from_running(world: MpiWorld):
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "f-config"}, "data": {"a": "b"}}
    uid = world.ask("POST", f"{CORE}/configmaps", theirs)["metadata"]["uid"]
    world.create(mpi_job("f", V1))
    (event, *_) = world.wait(lambda: world.events("ErrResourceExists"), "a warning")
    text = 'Resource "f-config" of MPIJobKind "ConfigMap" already exists and is not managed by MPIJob'
    assert (event["type"], event["message"]) == ("Warning", text)
    assert world.pods() == {}
    kept = world.ask("GET", f"{CORE}/configmaps/f-config")
    assert (kept["metadata"]["uid"], kept["data"]) == (uid, {"a": "b"})


@pytest.mark.case("mpi-v2beta1-17", "ab")
@pytest.mark.parametrize(
    ("kind", "name", "spec", "later"),
    [
        ("Service", "f", {"spec": {"clusterIP": "None"}}, f"{CORE}/configmaps/f-config"),
        ("ConfigMap", "f-config", {"data": {}}, f"{CORE}/secrets/f-ssh"),
        ("Secret", "f-ssh", {"data": {}}, f"{CORE}/pods/f-worker-0"),
    ],
)
def test_foreign_objects_of_our_names(world: MpiWorld, kind: str, name: str, spec: Json, later: str):
    theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **spec}
    world.ask("POST", f"{CORE}/{kind.lower()}s", theirs)
    world.create(mpi_job("f", V2))
    (event, *_) = world.wait(lambda: world.events("ErrResourceExists"), "a warning")
    assert event["message"] == f'Resource "{name}" of Kind "{kind}" already exists and is not managed by MPIJob'
    assert not world.exists(later)
    assert not world.exists(batch("f-launcher"))
