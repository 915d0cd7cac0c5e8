"""`trainop why` on a real API server, also for a user who may read little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.server.world import MERGE, Json, World, replicas

GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def why(kubeconfig: Path, namespace: str, job: str = "j") -> tuple[int, Json]:
    command = [
        sys.executable,
        "-m",
        "trainop",
        "why",
        job,
        "-n",
        namespace,
        "-o",
        "json",
        "--kubeconfig",
        str(kubeconfig),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def unschedulable(world: World) -> World:
    """A job whose workers fit on no node."""
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
    world.wait_pods("j-master-0", "j-worker-0", "j-worker-1")
    world.run_pod("j-master-0")
    for name in ("j-worker-0", "j-worker-1"):
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPU}
        world.set_pod(name, {"phase": "Pending", "conditions": [condition]})
    return world


def kubeconfig_of(world: World, control_plane: ControlPlane, folder: Path, rules: list[Json]) -> Path:
    """The kubeconfig of a service account with these rights in the namespace."""
    core, rbac = (
        f"/api/v1/namespaces/{world.namespace}",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{world.namespace}",
    )
    world.ask("POST", f"{core}/serviceaccounts", {"metadata": {"name": "user"}})
    world.ask("POST", f"{rbac}/roles", {"metadata": {"name": "user"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"}
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": world.namespace}
    world.ask(
        "POST", f"{rbac}/rolebindings", {"metadata": {"name": "user"}, "roleRef": reference, "subjects": [subject]}
    )
    token = world.ask("POST", f"{core}/serviceaccounts/user/token", {"spec": {}})["status"]["token"]
    config = yaml.safe_load(control_plane.kubeconfig.read_text(encoding="utf-8"))
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = folder / "user.kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def test_pods_that_fit_on_no_node_are_digested(unschedulable: World, control_plane: ControlPlane):
    code, said = why(control_plane.kubeconfig, unschedulable.namespace)
    assert (code, said["state"]) == (4, "Troubled")
    assert said["causes"][0]["code"] == "Unschedulable"
    assert said["causes"][0]["text"] == "2 of 3 pods fit on no node: 3 of 3 nodes: Insufficient nvidia.com/gpu"


def test_a_user_of_one_namespace_is_told_what_he_may_not_see(
    unschedulable: World, control_plane: ControlPlane, tmp_path: Path
):
    rules = [
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    user = kubeconfig_of(unschedulable, control_plane, tmp_path, rules)
    _, said = why(user, unschedulable.namespace, "pytorchjob/j")
    assert said["causes"][0]["code"] == "Unschedulable"
    assert [text.split(":")[0] for text in said["unread"]] == ["events", "the log of j-master-0"]


def test_a_refused_pod_and_a_failed_job_are_explained(world: World, control_plane: ControlPlane):
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    world.ask("PATCH", f"/api/v1/namespaces/{world.namespace}", level, MERGE)
    world.create_job("q", {"Master": replicas(1)})

    def refused() -> Json | None:
        code, said = why(control_plane.kubeconfig, world.namespace, "q")
        return said if (code, said["causes"][0]["code"]) == (1, "PodSecurity") else None

    found = world.wait(refused, "the refusal by the pod security level")
    assert "runAsNonRoot" in found["causes"][0]["evidence"][0]
    level["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
    world.ask("PATCH", f"/api/v1/namespaces/{world.namespace}", level, MERGE)

    world.create_job("f", {"Master": replicas(1, "Never")})
    world.wait_pods("f-master-0")
    world.run_pod("f-master-0")
    world.end_pod("f-master-0", 127)
    world.wait_condition("Failed", "f")
    code, said = why(control_plane.kubeconfig, world.namespace, "f")
    assert (code, said["causes"][0]["code"]) == (1, "Failed")
    assert "exited with code 127" in said["causes"][0]["text"]
