"""The overlay `di-system` and its components: the names that DI-engine relies on, and no rights beyond those used."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.audit import granted
from tests.kustomize import build, combine
from trainop.manifests.tree import files

ROOT = Path(__file__).parents[1]
OVERLAY = ROOT / "manifests" / "overlays" / "di-system"
SYSTEM = "di-system"


@pytest.fixture(scope="module")
def installed() -> list[Any]:
    """The objects of the overlay, without the work of kustomize."""
    tree = files()
    found = [text for path, text in tree.items() if path.startswith("overlays/di-system/")]
    return [each for text in found for each in yaml.safe_load_all(text) if each["kind"] != "Kustomization"]


def names(objects: list[Any], kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in objects if each["kind"] == kind}


def one(objects: list[Any], kind: str, name: str) -> Any:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def test_the_names_are_upstreams(installed: list[Any]):
    programs = {"di-operator": "manager", "di-server": "server", "di-webhook": "webhook"}
    assert names(installed, "Deployment") == set(programs)
    for name, container in programs.items():
        deployment = one(installed, "Deployment", name)
        assert deployment["metadata"]["labels"] == {"control-plane": name}
        assert deployment["spec"]["selector"]["matchLabels"] == {"control-plane": name}
        pod = deployment["spec"]["template"]
        assert pod["metadata"]["labels"] == {"control-plane": name}
        (found,) = pod["spec"]["containers"]
        assert (found["name"], found["command"]) == (container, [f"/{name}"])
    assert (
        "--leader-elect"
        in one(installed, "Deployment", "di-operator")["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    assert one(installed, "Namespace", SYSTEM)["metadata"]["labels"] == {"control-plane": "di-operator"}


def test_the_services_are_upstreams_without_an_open_node_port(installed: list[Any]):
    found = {each["metadata"]["name"]: each["spec"] for each in installed if each["kind"] == "Service"}
    ports = {name: [(port["port"], port["targetPort"]) for port in spec["ports"]] for name, spec in found.items()}
    assert ports == {
        "di-server": [(8080, 8080)],
        "di-operator-metrics-service": [(8443, 8080)],
        "di-webhook-service": [(443, 9443)],
    }
    selected = {name: spec["selector"]["control-plane"] for name, spec in found.items()}
    assert selected == {
        "di-server": "di-server",
        "di-operator-metrics-service": "di-operator",
        "di-webhook-service": "di-webhook",
    }
    assert {spec.get("type", "ClusterIP") for spec in found.values()} == {"ClusterIP"}
    (open_port,) = yaml.safe_load_all(files()["components/di-server-nodeport/di-server-nodeport.yaml"])
    assert (open_port["metadata"]["name"], open_port["spec"]["type"]) == ("di-server-nodeport", "NodePort")
    assert open_port["spec"]["ports"] == [{"protocol": "TCP", "port": 8080, "targetPort": 8080, "nodePort": 32270}]


@pytest.mark.parametrize(
    ("kind", "configuration", "webhook", "path"),
    [
        (
            *("MutatingWebhookConfiguration", "di-mutating-webhook-configuration", "mdijob.kb.io"),
            "/mutate-diengine-opendilab-org-v1alpha1-dijob",
        ),
        (
            *("ValidatingWebhookConfiguration", "di-validating-webhook-configuration", "vdijob.kb.io"),
            "/validate-diengine-opendilab-org-v1alpha1-dijob",
        ),
    ],
)
def test_the_webhooks_are_upstreams(installed: list[Any], kind: str, configuration: str, webhook: str, path: str):
    found = one(installed, kind, configuration)
    assert "annotations" not in found["metadata"], "cert-manager is not needed"
    entry, *others = found["webhooks"]
    assert entry["name"] == webhook
    assert [(each["name"], each["failurePolicy"]) for each in others] == (
        [("vaggregatorconfig.kb.io", "Ignore")] if webhook == "vdijob.kb.io" else []
    ), "more than upstream has: it warns, and nothing waits for it"
    assert entry["clientConfig"]["service"] == {"name": "di-webhook-service", "namespace": "default", "path": path}
    assert (entry["failurePolicy"], entry["sideEffects"]) == ("Fail", "None")
    assert entry["rules"] == [
        {
            "apiGroups": ["diengine.opendilab.org"],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["dijobs"],
        }
    ]
    # the same webhooks beside training-operator do not block
    beside = yaml.safe_load_all(files()["components/dijob/dijob.yaml"])
    (other,) = (each["webhooks"][0] for each in beside if each["metadata"]["name"] == configuration)
    assert other["clientConfig"]["service"] == {"name": "training-operator", "namespace": "default", "path": path}
    assert other["failurePolicy"] == "Ignore"


EVERYDAY = ["get", "list", "watch", "create", "delete"]


def test_each_program_may_do_what_it_does_and_no_more(installed: list[Any]):
    rights: dict[str, set[tuple[str, str, str]]] = {}
    for binding in installed:
        if binding["kind"] in {"RoleBinding", "ClusterRoleBinding"}:
            (subject,) = binding["subjects"]
            role = one(installed, binding["roleRef"]["kind"], binding["roleRef"]["name"])
            rights.setdefault(subject["name"], set()).update(granted([role]))
    group = "diengine.opendilab.org"
    assert rights["di-operator"] == {
        *((group, "dijobs", verb) for verb in ("get", "list", "watch")),
        (group, "dijobs/status", "patch"),
        (group, "dijobs/status", "update"),
        (group, "dijobs/finalizers", "update"),
        *(("", resource, verb) for resource in ("pods", "services") for verb in EVERYDAY),
        *(("", "events", verb) for verb in ("create", "patch")),
        *(("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")),
    }
    assert rights["di-server"] == {
        (group, "aggregatorconfigs", "get"),
        *((group, "dijobs", verb) for verb in ("get", "list", "watch")),
        *(("", "pods", verb) for verb in EVERYDAY),
        *(("", "nodes", verb) for verb in ("list", "watch")),
        *(("", "events", verb) for verb in ("create", "patch")),
        *(("coordination.k8s.io", "leases", verb) for verb in ("get", "list", "create", "update", "delete")),
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    hooks = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    assert rights["di-webhook"] == {
        *(("admissionregistration.k8s.io", each, verb) for each in hooks for verb in ("get", "list", "watch", "patch")),
        *(("", "secrets", verb) for verb in ("get", "list", "watch", "update", "create")),
    }
    assert names(installed, "ServiceAccount") == set(rights)
    limited = [
        rule for role in installed for rule in role.get("rules", ()) if {"secrets", *hooks} & set(rule["resources"])
    ]
    assert all("resourceNames" in rule for rule in limited if rule["verbs"] != ["create"])


def test_network_policies_admit_coordinators_and_aggregators_to_di_server():
    name = "di-server-network-policy"
    policies = list(yaml.safe_load_all(files()[f"components/{name}/{name}.yaml"]))
    server = one(policies, "NetworkPolicy", "di-server")["spec"]
    assert server["podSelector"] == {"matchLabels": {"control-plane": "di-server"}}
    (rule,) = server["ingress"]
    clients = rule["from"][0]
    assert clients["namespaceSelector"] == {}
    assert clients["podSelector"]["matchLabels"] == {"group-name": "diengine.opendilab.org"}
    (roles,) = clients["podSelector"]["matchExpressions"]
    assert (roles["key"], sorted(roles["values"])) == ("replica-type", ["aggregator", "coordinator"])
    assert rule["ports"] == [{"port": 8080, "protocol": "TCP"}]


def test_the_overlay_is_built_in_its_namespace(kubectl: str):
    objects = build(kubectl, OVERLAY)
    for each in objects:
        assert each["metadata"].get("namespace", SYSTEM) == SYSTEM
        assert [subject["namespace"] for subject in each.get("subjects", ())] in ([], [SYSTEM])
        called = [webhook["clientConfig"]["service"]["namespace"] for webhook in each.get("webhooks", ())]
        assert set(called) <= {SYSTEM}


def test_di_server_beside_training_operator(kubectl: str, tmp_path: Path):
    objects = combine(kubectl, tmp_path / "built", "standalone", ["dijob", "high-availability"])
    container = one(objects, "Deployment", "training-operator")["spec"]["template"]["spec"]["containers"][0]
    assert {"--di-server-address=di-server.$(MY_POD_NAMESPACE):8080", "--di-webhooks"} <= set(container["command"])
    (server,) = one(objects, "Deployment", "di-server")["spec"]["template"]["spec"]["containers"]
    assert "--agconfig-namespace=$(MY_POD_NAMESPACE)" in server["args"]
    assert server["image"] == container["image"]
    assert one(objects, "ClusterRoleBinding", "di-server-cluster-rolebinding")["subjects"][0]["namespace"] == "kubeflow"


def test_flags_in_manifests_exist():
    for name in ("di-operator", "di-server", "di-webhook"):
        done = subprocess.run(
            [ROOT / ".venv" / "bin" / "trainop", name, "--help"], capture_output=True, text=True, check=True
        )
        (deployment,) = (
            each
            for each in yaml.safe_load_all(files()["overlays/di-system/deployments.yaml"])
            if each["metadata"]["name"] == name
        )
        for argument in deployment["spec"]["template"]["spec"]["containers"][0].get("args", ()):
            assert argument.partition("=")[0] in done.stderr, (name, argument)
