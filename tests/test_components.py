"""The parts of an installation that users choose: high availability, components, and their own patches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kustomize import PAIRS, build, combine, fitting
from trainop.controllers.counters import JobMetrics
from trainop.manifests.alerts import ALERTS, PROGRAMS
from trainop.manifests.tree import files

LABELS = {"control-plane": "kubeflow-training-operator"}
EXPORTED_BY_PROMETHEUS = {"up"}


def objects_of(component: str) -> list[Any]:
    return list(yaml.safe_load_all(files()[f"components/{component}/{component}.yaml"]))


def find(objects: list[Any], kind: str) -> Any:
    (found,) = (item for item in objects if item["kind"] == kind)
    return found


def pod_of(objects: list[Any]) -> Any:
    named = [item for item in objects if item["metadata"]["name"] == "training-operator"]
    return find(named, "Deployment")["spec"]["template"]["spec"]


def test_the_pod_meets_the_restricted_pod_security_standard():
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    pod = pod_of(list(yaml.safe_load_all(files()["base/deployment.yaml"])))
    (container,) = pod["containers"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]) == {"requests"}, "a limit would end the operator of a large cluster"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_high_availability_is_two_replicas_that_elect_a_leader_on_different_nodes(kubectl: str):
    objects = build(kubectl, Path(__file__).parent.parent / "manifests" / "overlays" / "high-availability")
    assert find(objects, "Deployment")["spec"]["replicas"] == 2
    pod = pod_of(objects)
    assert "--leader-elect" in pod["containers"][0]["command"]
    assert [(each["topologyKey"], each["labelSelector"]) for each in pod["topologySpreadConstraints"]] == [
        ("kubernetes.io/hostname", {"matchLabels": LABELS}),
        ("topology.kubernetes.io/zone", {"matchLabels": LABELS}),
    ]
    budget = find(objects, "PodDisruptionBudget")
    assert budget["metadata"]["namespace"] == "kubeflow"
    assert budget["spec"]["selector"] == {"matchLabels": LABELS}
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_json_patches_of_training_operators_users_apply_with_every_component(kubectl: str, tmp_path: Path):
    scheme = [{"op": "add", "path": "/spec/template/spec/containers/0/command/1", "value": "--enable-scheme=TFJob"}]
    limits = {"op": "add", "path": "/spec/template/spec/containers/0/resources", "value": {"limits": {"cpu": "1"}}}
    target = {"kind": "Deployment", "name": "training-operator"}
    patches = [{"target": target, "patch": yaml.safe_dump([*scheme, limits])}]
    objects = combine(kubectl, tmp_path, "standalone", fitting("standalone"), patches)
    (container,) = pod_of(objects)["containers"]
    assert container["command"][:2] == ["/manager", "--enable-scheme=TFJob"]
    assert "--leader-elect" in container["command"]
    assert container["resources"] == {"limits": {"cpu": "1"}}
    kinds = {item["kind"] for item in objects}
    assert {"NetworkPolicy", "ServiceMonitor", "PrometheusRule", "ConfigMap", "PodDisruptionBudget"} <= kinds
    for item in objects:
        spread = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
        if item["kind"] not in spread and "webhooks" not in item:
            assert item["metadata"]["namespace"] == "kubeflow", item["kind"]


def test_the_network_policy_admits_every_port_that_others_call(kubectl: str):
    policy = find(objects_of("network-policy"), "NetworkPolicy")
    assert policy["spec"]["podSelector"] == {"matchLabels": LABELS}
    (container,) = pod_of(list(yaml.safe_load_all(files()["base/deployment.yaml"])))["containers"]
    admitted = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    component = yaml.safe_load(files()["components/progress/kustomization.yaml"])
    (patch,) = (each["patch"] for each in component["patches"] if each.get("target", {}).get("kind") == "Deployment")
    opened = [each["value"] for each in yaml.safe_load(patch) if each["path"].endswith("/ports/-")]
    ports = [*container["ports"], *opened]
    assert admitted == {port["containerPort"] for port in ports}


def test_the_service_monitor_selects_the_service_and_its_port():
    """The endpoint over TLS is of a port that `secure-metrics` names."""
    monitor = find(objects_of("service-monitor"), "ServiceMonitor")["spec"]
    service = find(list(yaml.safe_load_all(files()["base/service.yaml"])), "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("name", "deployments"),
    [
        ("mpi-operator-monitor", "overlays/mpi-operator/deployment.yaml"),
        ("di-monitor", "overlays/di-system/deployments.yaml"),
    ],
)
def test_the_pod_monitors_select_the_pods_and_ports_of_every_program(name: str, deployments: str):
    """Their `job` is that of the alerts."""
    monitors = {each["metadata"]["name"]: each["spec"] for each in objects_of(name)}
    found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(files()[deployments])}
    assert monitors.keys() == found.keys()
    for program, monitor in monitors.items():
        pod = found[program]["spec"]["template"]
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
        assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": program}]
        assert program in PROGRAMS


def test_standard_roles_are_aggregated_and_grant_nothing_but_jobs():
    roles = {role["metadata"]["name"]: role for role in objects_of("user-roles")}
    aggregated = {
        name: sorted(label.rpartition("aggregate-to-")[2] for label in role["metadata"]["labels"])
        for name, role in roles.items()
    }
    assert aggregated == {"training-operator-edit": ["admin", "edit"], "training-operator-view": ["view"]}
    for role in roles.values():
        groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
        assert groups == {"kubeflow.org", "diengine.opendilab.org"}
    assert {verb for rule in roles["training-operator-view"]["rules"] for verb in rule["verbs"]} == {
        "get",
        "list",
        "watch",
    }


def metrics_in(expression: str) -> set[str]:
    """The metric names in an expression: the words before a selector."""
    return set(re.findall(r"(\w+)\{", expression))


def served() -> set[str]:
    families = {family.name: family.type for family in JobMetrics().registry.collect()}
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    return {name + suffix for name, type_ in families.items() for suffix in suffixes.get(type_, [""])}


def dashboard() -> Any:
    return json.loads(find(objects_of("grafana-dashboard"), "ConfigMap")["data"]["training-operator.json"])


def test_alerts_and_dashboard_use_metrics_that_the_operator_serves():
    expressions = [alert.expression for alert in ALERTS]
    expressions += [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    for expression in expressions:
        used = metrics_in(expression)
        assert used, expression
        assert used <= served() | EXPORTED_BY_PROMETHEUS, expression


def test_the_dashboard_has_the_parts_that_grafana_needs():
    """Grafana's JSON model: unique panel ids, panels on a grid of 24 columns that do not overlap, a data source that is
    a variable, and a fixed uid."""
    model = dashboard()
    assert model["uid"]
    assert len(model["uid"]) <= 40
    assert model["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in model["templating"]["list"]}
    assert variables["datasource"] == {**variables["datasource"], "type": "datasource", "query": "prometheus"}
    assert [panel["id"] for panel in model["panels"]] == list(range(1, len(model["panels"]) + 1))
    cells: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & cells, panel["title"]
        cells |= covered
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            named = set(re.findall(r"\$(\w+)", target["expr"]))
            assert named <= {*variables, "__rate_interval"}, target["expr"]


def test_every_component_is_described():
    page = (Path(__file__).parent.parent / "docs" / "install.md").read_text(encoding="utf-8")
    assert [name for name in PAIRS if f"`{name.removeprefix('components/')}`" not in page] == []
