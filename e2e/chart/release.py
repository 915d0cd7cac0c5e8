"""Renders the shipped charts with helm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from e2e.cluster.places import binary
from tests.kustomize import MANIFESTS


class Row(NamedTuple):
    """A chart, the overlay with the same objects, the namespace of both, and its Deployments by section of the values.
    The section of the first may be empty: its values stand at the top."""

    folder: str
    overlay: str
    namespace: str
    deployments: dict[str, str]


CHARTS = (
    Row("chart", "standalone", "kubeflow", {"": "training-operator", "diServer": "di-server"}),
    Row("chart-mpi-operator", "mpi-operator", "mpi-operator", {"": "mpi-operator"}),
    Row(
        "chart-di-system",
        "di-system",
        "di-system",
        {"operator": "di-operator", "server": "di-server", "webhook": "di-webhook"},
    ),
)
Objects = dict[tuple[str, str, str], Any]
"""By kind, namespace (empty for what has none) and name."""


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("helm"), *map(str, arguments)], capture_output=True, check=False, text=True)


def by_name(objects: Iterable[Any]) -> Objects:
    found: Objects = {}
    for item in objects:
        if item:
            metadata = item["metadata"]
            key = (item["kind"], metadata.get("namespace", ""), metadata["name"])
            assert key not in found, key
            found[key] = item
    return found


def try_to_render(chart: Row, values: Any, folder: Path, *, crds: bool = True) -> subprocess.CompletedProcess[str]:
    """`values` as a file in `folder`, as users give them."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return helm(
        *("template", "r", MANIFESTS / chart.folder, f"--namespace={chart.namespace}"),
        *("--kube-version=1.34.0", f"--values={file}"),
    )


def render(chart: Row, values: Any, folder: Path) -> Objects:
    """The objects of a release named `r`, without CRDs, which helm does not render."""
    done = try_to_render(chart, values, folder)
    assert done.returncode == 0, done.stderr
    return by_name(yaml.safe_load_all(done.stdout))


def nested(path: str, value: Any) -> Any:
    """`a.b` and a value as the tree that a values file has."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def merged(*trees: Any) -> Any:
    """Trees of values in one; later ones take precedence."""
    found: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = merged(found[name], value) if both else value
    return found
