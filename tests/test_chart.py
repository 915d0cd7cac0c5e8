"""The Helm charts install the objects of the kustomizations.

Values and templates are compared as texts here. `make test-chart` renders them with helm and compares the objects; it
is apart because helm is built from Go modules, which takes minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kustomize import build
from trainop import __version__
from trainop.manifests.helm.chart import Chart
from trainop.manifests.helm.charts import charts
from trainop.manifests.helm.template import Action, Expression, Lines, find, put, replace, template
from trainop.manifests.helm.values import Section, Value, leaves, values_schema, values_yaml
from trainop.manifests.tree import files

MANIFESTS = Path(__file__).parent.parent / "manifests"
CHARTS = [pytest.param(chart, id=chart.folder) for chart in charts()]


def templates(chart: Chart) -> dict[str, str]:
    found = (MANIFESTS / chart.folder / "templates").iterdir()
    return {path.name: path.read_text(encoding="utf-8") for path in found}


def names(tree: Any, prefix: str = "") -> Iterable[str]:
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


@pytest.mark.parametrize("chart", CHARTS)
def test_templates_use_every_value_and_no_other(chart: Chart):
    used = {name for text in templates(chart).values() for name in re.findall(r"\.Values\.([\w.]+)", text)}
    values = leaves(chart.values)
    sections = {path.partition(".")[0] for path in values} - set(values)
    assert used - sections == set(values)


@pytest.mark.parametrize("chart", CHARTS)
def test_the_file_of_values_has_all_defaults_and_the_schema_all_values(chart: Chart):
    folder = MANIFESTS / chart.folder
    shipped = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((folder / "values.schema.json").read_text(encoding="utf-8"))
    for path in leaves(chart.values):
        described = schema
        for step in path.split("."):
            assert described["additionalProperties"] is False, path
            described = described["properties"][step]
    given = [row for row in chart.values if isinstance(row, Value)]
    assert {path for path in names(shipped) if path in leaves(chart.values)} == {row.path for row in given}
    for row in given:
        assert find(shipped, row.path.split(".")) == row.default


@pytest.mark.parametrize("chart", CHARTS)
def test_every_block_of_a_template_ends(chart: Chart):
    for name, text in templates(chart).items():
        begun = len(re.findall(r"\{\{-? *(?:if|with|range) ", text))
        assert begun == len(re.findall(r"\{\{- end \}\}", text)), name


@pytest.mark.parametrize("chart", CHARTS)
def test_the_chart_has_the_version_and_the_crds_of_the_operator(chart: Chart):
    folder = MANIFESTS / chart.folder
    metadata = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    assert (metadata["version"], metadata["appVersion"]) == (__version__, __version__)
    found = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (folder / "crds").iterdir()}
    tree = files()
    assert found == {name: yaml.safe_load(tree[f"crds/{name}"]) for name in found}
    groups = {"chart": "", "chart-mpi-operator": "mpijobs", "chart-di-system": "diengine"}
    expected = {path.name for path in (MANIFESTS / "crds").glob("*.*.yaml") if groups[chart.folder] in path.name}
    assert set(found) == expected


def test_templates_name_every_object_of_the_standalone_overlay(kubectl: str):
    text = "\n".join(templates(charts()[0]).values())
    for item in build(kubectl, MANIFESTS / "overlays" / "standalone"):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind not in {"CustomResourceDefinition", "Namespace"}:
            assert re.search(rf"^kind: {kind}\nmetadata:\n  name: {name}$", text, re.MULTILINE), (kind, name)


@pytest.mark.parametrize("chart", CHARTS)
def test_selectors_select_by_no_label_that_the_chart_adds(chart: Chart):
    """They cannot be changed: an upgrade from a chart without these labels would fail."""
    text = "".join(templates(chart).values())
    selectors = re.findall(r"^( *)(?:matchLabels|selector):\n((?:\1  .*\n)+)", text, re.MULTILINE)
    assert selectors
    added = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "helm.sh/chart", "app.kubernetes.io/managed-by"}
    for _, lines in selectors:
        assert not any(label in lines for label in added), lines


def test_nodes_stand_in_mappings_and_lists():
    named = {"name": "a", "value": Expression("$.x")}
    tree = {
        "plain": ["{{ theirs }}"],
        "computed": Expression("$.a"),
        "lines": Lines("toYaml $.b"),
        Action("if $.c"): {"d": "e", Lines("toYaml $.f"): None},
        "list": [named, {Action("range $.g"): [Expression(".")]}, Lines("toYaml $.h")],
    }
    assert (
        template([{"a": 1}, {Action("if $.z"): [tree]}])
        == """\
---
a: 1
{{- if $.z }}
---
plain:
  - '{{ "{{" }} theirs }}'
computed: {{ $.a }}
lines:
  {{- toYaml $.b | nindent 2 }}
{{- if $.c }}
d: e
{{- toYaml $.f | nindent 0 }}
{{- end }}
list:
  - name: a
    value: {{ $.x }}
  {{- range $.g }}
  - {{ . }}
  {{- end }}
  {{- toYaml $.h | nindent 2 }}
{{- end }}
"""
    )


def test_a_value_is_placed_by_path_and_the_tree_stays_as_it_is():
    tree = {"a": [{"b": 1}, {"c": 2}]}
    assert put(tree, ("a", 1, "c"), 3) == {"a": [{"b": 1}, {"c": 3}]}
    assert put(tree, ("x", "y"), 1) == {**tree, "x": {"y": 1}}
    assert tree == {"a": [{"b": 1}, {"c": 2}]}
    with pytest.raises(LookupError, match="nothing at"):
        replace(tree, ("a", 0, "c"), 3)


def test_one_table_gives_values_and_schema():
    text, optional = {"type": "string"}, Value("c", "", {"type": "string"})
    rows: list[Value | Section] = [
        Value("a.b", "x", text, "About b."),
        Section("a", "About a.", [optional]),
        Value("d", [], {"type": "array"}),
    ]
    assert (
        values_yaml(rows)
        == """\
# About a.
a:
  # About b.
  b: x

d: []
"""
    )
    schema = json.loads(values_schema(rows, "T"))
    assert schema["additionalProperties"] is False
    assert schema["properties"] == {
        "a": {
            "description": "About a.",
            "type": "object",
            "additionalProperties": False,
            "properties": {"b": {"description": "About b.", **text}, "c": text},
        },
        "d": {"type": "array"},
        "global": {"type": "object"},
    }
