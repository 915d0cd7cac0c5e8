"""The Helm chart rendered by helm: a release has the objects of the kustomizations. `make test-chart` runs this."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.places import binary
from tests.kustomize import MANIFESTS, combine

CHART = MANIFESTS / "chart"
VALUES = {
    "dijob": "dijob",
    "grafana-dashboard": "grafanaDashboard",
    "mpi-exec": "mpiExec",
    "mpi-ssh": "mpiSsh",
    "network-policy": "networkPolicy",
    "prometheus-rule": "prometheusRule",
    "service-monitor": "serviceMonitor",
    "user-roles": "userRoles",
}
"""Component -> the value that adds it."""


@pytest.fixture
def kubectl() -> str:
    return str(binary("kubectl"))


def by_name(objects: Iterable[Any]) -> dict[tuple[str, str], Any]:
    return {(item["kind"], item["metadata"]["name"]): item for item in objects if item}


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("helm"), *map(str, arguments)], capture_output=True, check=False, text=True)


def render(*settings: str) -> dict[tuple[str, str], Any]:
    """The objects of a release in the namespace `kubeflow`."""
    flags = [part for setting in settings for part in ("--set", setting)]
    done = helm("template", "r", CHART, "--namespace=kubeflow", "--include-crds", "--kube-version=1.34.0", *flags)
    assert done.returncode == 0, done.stderr
    return by_name(yaml.safe_load_all(done.stdout))


def without_namespace(objects: Iterable[Any]) -> dict[tuple[str, str], Any]:
    """The objects but the namespace, which `helm install --create-namespace` creates."""
    return {key: item for key, item in by_name(objects).items() if key[0] != "Namespace"}


@pytest.mark.parametrize(
    ("overlay", "components", "settings"),
    [
        ("standalone", [], []),
        ("high-availability", [], ["replicas=2"]),
        ("namespaced", [], ["namespaced=true"]),
        ("standalone", list(VALUES), [f"components.{name}=true" for name in VALUES.values()]),
        ("standalone", ["required-webhooks"], ["webhooks.failurePolicy=Fail"]),
        ("namespaced", ["high-availability"], ["namespaced=true", "replicas=2"]),
    ],
)
def test_a_release_equals_the_kustomization(
    kubectl: str, tmp_path: Path, overlay: str, components: list[str], settings: list[str]
) -> None:
    rendered = render(*settings)
    expected = without_namespace(combine(kubectl, tmp_path, overlay, components))
    assert set(rendered) == set(expected)
    for key, item in expected.items():
        assert rendered[key] == item, key


def test_values_reach_the_deployment() -> None:
    rendered = render(
        *("image.repository=mine/trainop", "image.tag=9", "image.pullPolicy=Always", "imagePullSecrets[0].name=s"),
        *("namespaceOverride=training", "leaderElection=true", "schemes={TFJob,JAXJob}", "gangSchedulerName=volcano"),
        *("args={--pod-events}", "webhooks.enabled=false", "resources.limits.memory=1Gi", "nodeSelector.a=b"),
        *("tolerations[0].key=k", "priorityClassName=system-cluster-critical"),
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
    )
    assert "ValidatingWebhookConfiguration" not in {kind for kind, _ in rendered}
    deployment = rendered["Deployment", "training-operator"]
    assert {item["metadata"].get("namespace") for item in rendered.values()} == {"training", None}
    assert deployment["metadata"]["namespace"] == "training"
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == [
        *("/manager", "--leader-elect", "--webhook-server-port=0"),
        *("--enable-scheme=TFJob", "--enable-scheme=JAXJob", "--gang-scheduler-name=volcano", "--pod-events"),
    ]
    assert (container["image"], container["imagePullPolicy"]) == ("mine/trainop:9", "Always")
    requests = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["resources"]["requests"]
    assert container["resources"] == {"requests": requests, "limits": {"memory": "1Gi"}}
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["tolerations"] == [{"key": "k"}]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [{"weight": 1}]


def test_helm_finds_no_fault() -> None:
    done = helm("lint", CHART, "--strict", "--kube-version=1.34.0")
    assert done.returncode == 0, done.stdout
