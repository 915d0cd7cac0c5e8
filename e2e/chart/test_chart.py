"""The charts rendered by helm: a release has the objects of the kustomizations, and every value an effect. `make
test-chart` runs this."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.chart.release import CHARTS, Objects, Row, by_name, helm, merged, render, try_to_render
from e2e.cluster.places import binary
from tests.kustomize import MANIFESTS, build, write
from trainop import __version__

OURS, MPI, DI = CHARTS
LABELS = {
    "app.kubernetes.io/instance": "r",
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
}
COMPONENTS = {
    "dijob": "dijob",
    "eviction-responder": "evictionResponder",
    "grafana-dashboard": "grafanaDashboard",
    "kueue": "kueue",
    "mpi-exec": "mpiExec",
    "mpi-ssh": "mpiSsh",
    "network-policy": "networkPolicy",
    "prometheus-rule": "prometheusRule",
    "secure-metrics": "secureMetrics",
    "progress": "progress",  # here, because both add flags
    "service-monitor": "serviceMonitor",
    "train-jobs": "trainJobs",
    "user-roles": "userRoles",
}
"""Component -> the value of our chart that adds it."""


@pytest.fixture
def kubectl() -> str:
    return str(binary("kubectl"))


def on(*names: str) -> Any:
    return {"components": dict.fromkeys(names, True)}


@pytest.mark.parametrize(
    ("chart", "kustomization", "values"),
    [
        (OURS, ("standalone", []), {}),
        (OURS, ("high-availability", []), {"replicas": 2}),
        (OURS, ("namespaced", []), {"namespaced": True}),
        (OURS, ("standalone", list(COMPONENTS)), on(*COMPONENTS.values())),
        (OURS, ("standalone", ["service-monitor"]), on("serviceMonitor")),
        (OURS, ("standalone", ["required-webhooks"]), {"webhooks": {"failurePolicy": "Fail"}}),
        (OURS, ("namespaced", ["high-availability"]), {"namespaced": True, "replicas": 2}),
        (MPI, ("mpi-operator", []), {}),
        (MPI, ("mpi-operator", ["user-roles", "overlays/mpi-operator/exec"]), on("userRoles", "exec")),
        (
            MPI,
            ("mpi-operator", ["mpi-operator-monitor", "prometheus-rule"]),
            on("podMonitor", "prometheusRule"),
        ),
        (DI, ("di-system", ["di-monitor", "prometheus-rule"]), on("podMonitor", "prometheusRule")),
        (DI, ("di-system", []), {}),
        (DI, ("di-system", ["di-server-nodeport", "di-network-policy"]), on("nodePort", "networkPolicy")),
    ],
)
def test_a_release_equals_the_kustomization(
    kubectl: str, tmp_path: Path, chart: Row, kustomization: tuple[str, list[str]], values: Any
) -> None:
    """An overlay with components, but for labels, by which no selector selects."""
    rendered = render(chart, values, tmp_path)
    overlay, components = kustomization
    write(tmp_path / "own", overlay, components, namespace=chart.namespace)
    built = by_name(build(kubectl, tmp_path / "own"))
    expected = {key: item for key, item in built.items() if key[0] != "Namespace"}
    assert set(rendered) == set(expected)
    for key, item in expected.items():
        assert without_labels(rendered[key], item) == item, key


def without_labels(rendered: Any, expected: Any) -> Any:
    """The object without the labels that `expected` lacks; those of the release must be among them."""
    found = copy.deepcopy(rendered)
    assert LABELS.items() <= found["metadata"]["labels"].items()
    assert "app.kubernetes.io/name" in found["metadata"]["labels"]
    remove_further_labels(found["metadata"], expected["metadata"])
    if found["kind"] == "Deployment":
        assert found["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "r"
        remove_further_labels(found["spec"]["template"]["metadata"], expected["spec"]["template"]["metadata"])
    return found


def remove_further_labels(found: Any, expected: Any) -> None:
    own = expected.get("labels", {})
    kept = {name: value for name, value in found["labels"].items() if name in own}
    found["labels"] = kept
    if not kept:
        del found["labels"]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.folder)
def test_helm_finds_no_fault(chart: Row) -> None:
    done = helm("lint", MANIFESTS / chart.folder, "--strict", "--kube-version=1.34.0")
    assert done.returncode == 0, done.stdout


def paths(tree: Any, prefix: str = "") -> Iterable[str]:
    """Every name in a values file, with those above it."""
    for name, value in tree.items():
        path = f"{prefix}.{name}".lstrip(".")
        yield path
        if isinstance(value, dict):
            yield from paths(value, path)


OPEN = ("podAnnotations", "httpGet", "seccompProfile", "capabilities", "requests")
"""Groups in which users choose the names, or whose names the API server checks."""


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.folder)
def test_a_misspelt_value_is_refused(chart: Row, tmp_path: Path) -> None:
    """All in one file, because helm names every fault: one for each value, at every depth."""
    shipped = yaml.safe_load((MANIFESTS / chart.folder / "values.yaml").read_text(encoding="utf-8"))
    wanted = [path for path in paths(shipped) if not any(f".{each}." in f".{path}" for each in OPEN)]
    misspelt: Any = {}
    for path in wanted:
        *above, name = path.split(".")
        group = misspelt
        for step in above:
            group = group.setdefault(step, {})
        group[f"{name}X"] = 1
    done = try_to_render(chart, misspelt, tmp_path)
    assert done.returncode != 0
    unnamed = [path for path in wanted if f"'{path.rpartition('.')[2]}X'" not in done.stderr]
    assert unnamed == []
    assert done.stderr.count("X'") == len(wanted)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"namespaced": True, **on("dijob")}, "components.dijob needs rights in all namespaces"),
        ({"namespaces": ["a"], **on("dijob")}, "components.dijob needs rights in all namespaces"),
        ({"namespaced": True, **on("kueue")}, "components.kueue needs to read ResourceFlavors"),
        ({"namespaces": ["a"], **on("kueue")}, "components.kueue needs to read ResourceFlavors"),
        ({"namespaced": True, **on("progress")}, "components.progress has the certificate of the webhooks"),
        ({"namespaced": True, **on("secureMetrics")}, "components.secureMetrics needs the right to review tokens"),
        ({"namespaces": ["a"], **on("secureMetrics")}, "components.secureMetrics needs the right to review tokens"),
        ({"webhooks": {"enabled": False, "failurePolicy": "Fail"}}, "webhooks.failurePolicy is Fail, but"),
        ({"namespaced": True, "webhooks": {"failurePolicy": "Fail"}}, "webhooks.failurePolicy is Fail, but"),
        ({"namespaces": ["a"], "certManager": {"enabled": True}}, "certManager.enabled makes a certificate"),
        ({"schemes": ["TorchJob"]}, "/schemes/0"),
        ({"podLabels": {"control-plane": "mine"}}, "control-plane"),
        ({"env": [{"name": "MY_POD_NAMESPACE", "value": "x"}]}, "/env/0/name"),
        ({"image": {"tag": 1.10}}, "/image/tag"),
        ({"serviceMonitor": {"labels": {"app": "mine"}}}, "app"),
        ({"replicas": -1}, "/replicas"),
    ],
)
def test_values_that_cannot_work_are_refused(values: Any, sentence: str, tmp_path: Path) -> None:
    done = try_to_render(OURS, values, tmp_path)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_a_release_can_have_permissions_in_several_namespaces(tmp_path: Path) -> None:
    values = {"namespaces": ["a", "b"], **on("mpiSsh", "mpiExec", "trainJobs")}
    rendered = render(OURS, values, tmp_path)
    assert not {key for key in rendered if key[0].startswith("Cluster")}
    components = ("mpi-exec", "mpi-ssh", "train-jobs")
    roles = {"training-operator", *(f"training-operator-{name}" for name in components)}
    for kind in ("Role", "RoleBinding"):
        assert {(namespace, name) for each, namespace, name in rendered if each == kind} == {
            *((namespace, name) for namespace in "ab" for name in roles),
            ("kubeflow", "training-operator-leader-election"),
        }
    bindings = [item for key, item in rendered.items() if key[0] == "RoleBinding"]
    assert {subject["namespace"] for item in bindings for subject in item["subjects"]} == {"kubeflow"}
    assert command(rendered)[3:] == ["--namespace=a,b", "--webhook-server-port=0"]


def command(rendered: Objects) -> list[str]:
    found = rendered["Deployment", "kubeflow", "training-operator"]["spec"]["template"]["spec"]["containers"][0]
    listed: list[str] = found["command"]
    return listed


def test_the_values_of_a_section_replace_those_at_the_top(tmp_path: Path) -> None:
    top = {"nodeSelector": {"a": "b"}, "priorityClassName": "high", "tolerations": [{"key": "x"}]}
    own = {"nodeSelector": {"c": "d"}, "tolerations": []}
    rendered = render(OURS, merged(on("dijob"), top, {"diServer": own}), tmp_path)
    pods = {
        name: rendered["Deployment", "kubeflow", name]["spec"]["template"]["spec"] for name in OURS.deployments.values()
    }
    assert pods["training-operator"]["nodeSelector"] == {"a": "b"}
    assert pods["training-operator"]["tolerations"] == [{"key": "x"}]
    assert pods["di-server"]["nodeSelector"] == {"c": "d"}
    assert "tolerations" not in pods["di-server"]
    assert pods["di-server"]["priorityClassName"] == "high"
