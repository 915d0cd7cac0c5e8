"""The Helm chart installs the objects of the kustomizations.

Values and templates are compared as texts here. `make test-chart` renders them with helm and compares the objects; it
is apart because helm is built from Go modules, which takes minutes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.kustomize import build
from trainop import __version__
from trainop.manifests.tree import files
from trainop.operator import crds

MANIFESTS = Path(__file__).parent.parent / "manifests"
CHART = MANIFESTS / "chart"


def templates() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir()}


def values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def leaves(tree: Any, prefix: str = "") -> set[str]:
    """The paths of all values; below what a template writes as it is, only the first level."""
    if not isinstance(tree, dict) or not tree or prefix == "resources":
        return {prefix}
    return {leaf for name, value in tree.items() for leaf in leaves(value, f"{prefix}.{name}".lstrip("."))}


def test_templates_use_every_value_and_no_other():
    used = {name for text in templates().values() for name in re.findall(r"\.Values\.([\w.]+)", text)}
    assert used == leaves(values())


def test_every_block_of_a_template_ends():
    for name, text in templates().items():
        begun = len(re.findall(r"\{\{-? *(?:if|with|range) ", text))
        assert begun == len(re.findall(r"\{\{- end \}\}", text)), name


def test_the_chart_has_the_version_and_the_crds_of_the_operator():
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (metadata["version"], metadata["appVersion"]) == (__version__, __version__)
    found = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CHART / "crds").iterdir()}
    names = [f"{definition['metadata']['name']}.yaml" for definition in crds()]
    assert found == {name: yaml.safe_load(files()[f"crds/{name}"]) for name in names}


def test_templates_name_every_object_of_the_standalone_overlay(kubectl: str):
    text = "\n".join(templates().values())
    for item in build(kubectl, MANIFESTS / "overlays" / "standalone"):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind not in {"CustomResourceDefinition", "Namespace"}:
            assert re.search(rf"^kind: {kind}\nmetadata:\n  name: {name}$", text, re.MULTILINE), (kind, name)
