"""`trainop check --kubeconfig` on a real API server, also for a user who may read little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.server.kinds import ROWS, KindWorld
from tests.server.process import Operator
from tests.server.test_why import kubeconfig_of
from tests.server.world import Json, World, replicas
from trainop.programs.schemes import FRAMEWORKS

TEMPLATE: Json = {
    "container": {
        "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "16"}},
        "envFrom": [{"secretRef": {"name": "s"}}],
    },
    "priorityClassName": "none",
    "nodeSelector": {"zone": "nowhere"},
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
}


@pytest.fixture
def job() -> Json:
    specs = {"Master": replicas(1, **TEMPLATE), "Worker": replicas(3, **TEMPLATE)}
    metadata = {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {"pytorchReplicaSpecs": specs},
    }


def check(kubeconfig: Path, world: World, job: Json, folder: Path, *flags: str) -> tuple[int, list[str]]:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job), encoding="utf-8")
    command = [sys.executable, "-m", "trainop", "check", str(file), "--kubeconfig", str(kubeconfig), *flags]
    done = subprocess.run([*command, "-n", world.namespace], capture_output=True, text=True, check=False)
    return done.returncode, [line.removeprefix(f"{file}:") for line in done.stderr.splitlines()]


def test_what_the_cluster_lacks_is_named_and_nothing_is_made(
    world: World, control_plane: ControlPlane, tmp_path: Path, job: Json
):
    core = f"/api/v1/namespaces/{world.namespace}"
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    world.ask("POST", f"{core}/resourcequotas", quota)
    limit = {"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}}
    world.ask("POST", f"{core}/limitranges", limit)
    code, lines = check(control_plane.kubeconfig, world, job, tmp_path)
    text = "\n".join(lines)
    assert code == 1, text
    for said in (
        "priorityClassName: PriorityClass none does not exist",
        "claimName: PersistentVolumeClaim data does not exist",
        "secretRef.name: Secret s does not exist",
        "LocalQueue q cannot exist: the cluster does not serve localqueues.kueue.x-k8s.io",
        "spec: ResourceQuota few allows 2 pods, 0 are used, and the job needs 4",
        "1 cpu is more than LimitRange small allows a container: 500m",
    ):
        assert text.count(said) == 1 + ("LimitRange" in said), (said, text)
    assert "nowhere" in text or "has no nodes" in text
    assert "not checked" not in text
    assert world.ask("GET", f"/apis/kubeflow.org/v1/namespaces/{world.namespace}/pytorchjobs")["items"] == []


def test_what_exists_and_fits_is_no_error(world: World, control_plane: ControlPlane, tmp_path: Path, job: Json):
    del job["metadata"]["labels"]
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"] = {
            "containers": [{"name": "pytorch", "image": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]
        }
    world.ask("POST", f"/api/v1/namespaces/{world.namespace}/secrets", {"metadata": {"name": "s"}})
    _, lines = check(control_plane.kubeconfig, world, job, tmp_path)
    assert [line for line in lines if "node" not in line] == []


QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


@pytest.fixture
def queues(control_plane: ControlPlane) -> Iterator[str]:
    """The path of Volcano's Queues, which are cluster-scoped, as far as the check reads them."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Queue", "plural": "queues"}
    spec = {"group": "scheduling.volcano.sh", "names": names, "scope": "Cluster", "versions": [version]}
    body = {"metadata": {"name": "queues.scheduling.volcano.sh"}, "spec": spec}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert control_plane.api("POST", crds, body).status == 201
    yield QUEUES
    control_plane.api("DELETE", f"{crds}/queues.scheduling.volcano.sh")


def test_the_queue_of_volcano_must_exist(
    world: World, control_plane: ControlPlane, tmp_path: Path, job: Json, queues: str
):
    """It is that of the scheduling policy, and asked for only if the operator uses Volcano."""
    del job["metadata"]["labels"]
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": "night"}}
    world.wait(lambda: world.try_to("GET", queues).status == 200, "the queues are served")
    lacks = "schedulingPolicy.queue: Queue night does not exist; create it, or correct the name"

    def said(*flags: str) -> str:
        return "\n".join(check(control_plane.kubeconfig, world, job, tmp_path, *flags)[1])

    assert "Queue" not in said()
    assert lacks in said("--operator-flags=--gang-scheduler-name=volcano")
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "night"}}
    world.ask("POST", queues, queue)
    assert "Queue" not in said("--operator-flags=--gang-scheduler-name=volcano")


@pytest.fixture
def old_queues(control_plane: ControlPlane, world: World) -> Iterator[str]:
    """The path of LocalQueues as a Kueue before 0.15 serves them: in `v1beta1` only."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "LocalQueue", "plural": "localqueues"}
    spec = {"group": "kueue.x-k8s.io", "names": names, "scope": "Namespaced", "versions": [version]}
    body = {"metadata": {"name": "localqueues.kueue.x-k8s.io", "annotations": APPROVED}, "spec": spec}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert control_plane.api("POST", crds, body).status == 201
    path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{world.namespace}/localqueues"
    world.wait(lambda: world.try_to("GET", path).status == 200, "the queues are served")
    yield path
    control_plane.api("DELETE", f"{crds}/localqueues.kueue.x-k8s.io")


APPROVED = {"api-approved.kubernetes.io": "unapproved, in tests"}
"""The API server wants it of groups below k8s.io."""


def test_a_queue_of_an_older_kueue_is_found(
    world: World, control_plane: ControlPlane, tmp_path: Path, job: Json, old_queues: str
):
    def said() -> str:
        return "\n".join(check(control_plane.kubeconfig, world, job, tmp_path)[1])

    assert "LocalQueue q does not exist" in said()
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "q"}}
    world.ask("POST", old_queues, {**queue, "spec": {"clusterQueue": "c"}})
    assert "LocalQueue" not in said()


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_what_a_running_job_uses_of_a_quota_is_counted_once(
    kind: str, control_plane: ControlPlane, operator: Operator, tmp_path: Path
):
    del operator
    stage, row = KindWorld(control_plane.api, FRAMEWORKS[kind]), ROWS[kind]
    names = row.names("p")
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    hard = {"pods": str(len(names))}
    stored = stage.ask("POST", path, {"metadata": {"name": "full"}, "spec": {"hard": hard}})
    # As kube-controller-manager, which does not run here; admission then counts each new pod in `used`.
    stage.ask("PUT", f"{path}/full/status", {**stored, "status": {"hard": hard, "used": {"pods": "0"}}})
    created = stage.create("p", row.counts)
    stage.wait_pods(*names)
    stage.wait(lambda: stage.ask("GET", f"{path}/full")["status"]["used"] == hard, "the quota is full")
    job = {name: created[name] for name in ("apiVersion", "kind", "spec")}

    def said(name: str) -> str:
        file = {**job, "metadata": {"name": name, "namespace": stage.namespace}}
        lines = check(control_plane.kubeconfig, stage, file, tmp_path)[1]
        return "\n".join(line for line in lines if "ResourceQuota" in line)

    assert said("p") == ""
    count = len(names)
    assert f"ResourceQuota full allows {count} pods, {count} are used, and the job needs {count}" in said("another")


def test_a_user_of_one_namespace_is_told_what_was_not_checked(
    world: World, control_plane: ControlPlane, tmp_path: Path, job: Json
):
    rules = [{"apiGroups": [""], "resources": ["pods", "persistentvolumeclaims"], "verbs": ["get", "list"]}]
    code, lines = check(kubeconfig_of(world, control_plane, tmp_path, rules), world, job, tmp_path)
    text = "\n".join(lines)
    assert "PersistentVolumeClaim data does not exist" in text
    for said in (
        "you may not list nodes",
        "you may not list resourcequotas",
        "PriorityClass none: you may not get priorityclasses",
        "Secret s: you may not get secrets",
        f"admission: you may not create pytorchjobs in namespace {world.namespace}",
    ):
        assert f"note: not checked: {said}" in text, (said, text)
    assert code == 1
    assert "Traceback" not in text
    assert sum(" error: " in line for line in lines) == 1, text


def test_what_admission_refuses_is_an_error(world: World, control_plane: ControlPlane, tmp_path: Path, job: Json):
    """A namespace that does not exist."""
    job["metadata"]["namespace"] = "nowhere"
    code, lines = check(control_plane.kubeconfig, world, job, tmp_path)
    assert code == 1
    assert any("metadata.namespace: namespace nowhere does not exist; create it" in line for line in lines), lines


def test_an_api_server_that_is_away_is_one_clear_error(
    world: World, control_plane: ControlPlane, tmp_path: Path, job: Json
):
    config = yaml.safe_load(control_plane.kubeconfig.read_text(encoding="utf-8"))
    for each in config["clusters"]:
        each["cluster"]["server"] = "https://127.0.0.1:9"
    path = tmp_path / "away"
    path.write_text(yaml.safe_dump(config))
    code, lines = check(path, world, job, tmp_path)
    assert code == 1
    assert lines[-1].startswith("trainop: ")
    assert "Traceback" not in "\n".join(lines)
