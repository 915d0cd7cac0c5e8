"""The overlay `mpi-operator`, which replaces the manifests of mpi-operator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kustomize import MANIFESTS, build
from trainop.manifests.rbac import exec_rules, ssh_rules
from trainop.programs.mpi_operator import read_mpi_settings

FOLDER = MANIFESTS / "overlays" / "mpi-operator"
LABELS = {
    "app": "mpi-operator",
    "app.kubernetes.io/component": "mpijob",
    "app.kubernetes.io/name": "mpi-operator",
    "kustomize.component": "mpi-operator",
}


@pytest.fixture
def objects(kubectl: str) -> list[Any]:
    return build(kubectl, FOLDER)


def find(objects: list[Any], kind: str, name: str = "mpi-operator") -> Any:
    (found,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return found


def rights(objects: list[Any]) -> set[tuple[str, str]]:
    """All (resource, verb) of the roles."""
    rules = [rule for item in objects for rule in item.get("rules", ())]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def test_it_has_the_objects_of_mpi_operator_under_their_names(objects: list[Any]):
    assert sorted((item["kind"], item["metadata"]["name"]) for item in objects) == [
        ("ClusterRole", "mpi-operator"),
        ("ClusterRoleBinding", "mpi-operator"),
        ("Deployment", "mpi-operator"),
        ("Namespace", "mpi-operator"),
        ("Role", "mpi-operator-leader-election"),
        ("RoleBinding", "mpi-operator-leader-election"),
        ("ServiceAccount", "mpi-operator"),
    ]
    spread = {"ClusterRole", "ClusterRoleBinding", "Namespace"}
    assert {item["metadata"]["namespace"] for item in objects if item["kind"] not in spread} == {"mpi-operator"}
    subject = {"kind": "ServiceAccount", "name": "mpi-operator", "namespace": "mpi-operator"}
    assert [item["subjects"] for item in objects if "subjects" in item] == [[subject], [subject]]


def test_the_deployment_can_be_applied_over_that_of_mpi_operator(objects: list[Any]):
    """Its selector is immutable. The end-to-end tests of mpi-operator append flags to the arguments of container 0."""
    deployment = find(objects, "Deployment")
    assert deployment["spec"]["selector"] == {"matchLabels": LABELS}
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"] == LABELS
    assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert template["spec"]["serviceAccountName"] == "mpi-operator"
    (container,) = template["spec"]["containers"]
    assert (container["name"], container["command"]) == ("mpi-operator", ["/mpi-operator"])
    assert container["args"][:2] == ["-alsologtostderr", "--lock-namespace=$(MY_POD_NAMESPACE)"]
    assert container["image"].startswith("trainop:")


def test_probes_and_ports_are_those_that_the_flags_open(objects: list[Any]):
    (container,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    settings, rest = read_mpi_settings(container["args"], {})
    assert rest == ()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.health_probe_bind_address == f":{ports['health']}"
    assert settings.metrics_bind_address == f":{ports['metrics']}"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}


def test_it_has_the_rights_for_mpi_jobs_over_ssh_and_no_others(objects: list[Any]):
    found = rights(objects)
    resources = {resource for resource, _ in found}
    jobs = {resource for resource in resources if resource.partition("/")[0].endswith("jobs")}
    assert jobs == {"mpijobs", "mpijobs/status", "mpijobs/finalizers", "jobs", "jobs/status"}
    assert not resources & {"pods/exec", "roles", "rolebindings", "serviceaccounts", "horizontalpodautoscalers"}
    assert not resources & {"validatingwebhookconfigurations", "customresourcedefinitions", "nodes", "endpoints"}
    assert {verb for resource, verb in found if resource == "secrets"} == {"get", "create", "patch"}
    assert not any("*" in pair for pair in found)
    assert rights([{"rules": ssh_rules()}]) <= found


def test_transport_exec_is_a_component_of_its_own(kubectl: str, tmp_path: Path, objects: list[Any]):
    root = os.path.relpath(FOLDER, tmp_path)
    own = {"namespace": "mpi-operator", "resources": [root], "components": [f"{root}/exec"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    both = build(kubectl, tmp_path)
    assert rights(both) == rights(objects) | rights([{"rules": exec_rules()}])
    binding = find(both, "ClusterRoleBinding", "mpi-operator-exec")
    assert binding["subjects"] == find(both, "ClusterRoleBinding")["subjects"]
