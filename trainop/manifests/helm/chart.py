"""The files of a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainop import __version__
from trainop.manifests.helm.pod import LABEL
from trainop.manifests.helm.template import Action, Expression, Node, find, put, replace, template
from trainop.manifests.helm.values import Section, Value, values_schema, values_yaml
from trainop.manifests.text import GENERATED, HEADER, to_yaml
from trainop.runtime import Json

NAMESPACE_NAME = "($.Values.namespaceOverride | default $.Release.Namespace)"
NAMESPACE = Expression(f"{NAMESPACE_NAME} | quote")
"""That of the operator."""
_CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `refusals` are combinations of values that cannot work: condition -> what to do instead."""

    folder: str
    name: str
    description: str
    values: Sequence[Value | Section]
    templates: Mapping[str, Sequence[Node]]
    refusals: Mapping[str, str]
    notes: str
    crds: Sequence[Json]

    def files(self) -> dict[str, str]:
        """The content of all files, by path below the manifests."""
        metadata = {
            "apiVersion": "v2",
            "name": self.name,
            "description": self.description,
            "type": "application",
            "version": __version__,
            "appVersion": __version__,
            "kubeVersion": ">=1.27.0-0",
        }
        files = {
            "Chart.yaml": HEADER + to_yaml(metadata),
            "values.yaml": f"{HEADER}\n{values_yaml(self.values)}",
            "values.schema.json": values_schema(self.values, f"Values of the chart {self.name}"),
            "templates/NOTES.txt": self.notes,
            # Helm creates what is in this folder, and neither changes nor deletes it.
            **{f"crds/{each['metadata']['name']}.yaml": HEADER + to_yaml(each) for each in self.crds},
            **{f"templates/{name}.yaml": _HEADER + template(found) for name, found in self.templates.items()},
        }
        if self.refusals:
            files["templates/refusals.yaml"] = _HEADER + "".join(map(_refusal, self.refusals, self.refusals.values()))
        return {f"{self.folder}/{path}": text for path, text in files.items()}


def labels(chart: str) -> dict[str, Node]:
    """Those that all objects have in addition to their own, by which selectors never select."""
    return {
        f"{LABEL}name": chart,
        f"{LABEL}instance": Expression("$.Release.Name | quote"),
        f"{LABEL}version": Expression("$.Chart.AppVersion | quote"),
        f"{LABEL}managed-by": Expression("$.Release.Service | quote"),
        "helm.sh/chart": Expression('printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" | quote'),
    }


def placed(chart: str, found: Iterable[Json], namespace: Expression = NAMESPACE) -> list[Node]:
    """The objects with the labels of the release, and in its namespace if they have one."""
    return [_placed(chart, item, namespace) for item in found]


def _placed(chart: str, item: Json, namespace: Expression) -> Node:
    added = labels(chart)
    metadata = {**item["metadata"], "labels": {**added, **item["metadata"].get("labels", {})}}
    if item["kind"] not in _CLUSTER_SCOPED:
        metadata["namespace"] = namespace
    found = {**item, "metadata": metadata}
    for index, _ in enumerate(item.get("subjects", ())):
        found = put(found, ("subjects", index, "namespace"), NAMESPACE)
    for index, _ in enumerate(item.get("webhooks", ())):
        found = replace(found, ("webhooks", index, "clientConfig", "service", "namespace"), NAMESPACE)
    if item["kind"] == "Deployment":
        own = {name: label for name, label in added.items() if name in _OF_PODS}
        found = put(found, _POD_LABELS, {**own, **find(found, _POD_LABELS)})
    return found


_POD_LABELS = ("spec", "template", "metadata", "labels")
_OF_PODS = {f"{LABEL}name", f"{LABEL}instance"}
_HEADER = f"{{{{- /* {GENERATED}; change trainop/manifests/. */ -}}}}\n"


def _refusal(condition: str, text: str) -> str:
    return f'{{{{- if {condition} }}}}\n{{{{- fail "{text}" }}}}\n{{{{- end }}}}\n'


def when(condition: str, content: Node) -> Node:
    """Documents, items or entries that a release has if the condition holds."""
    return {Action(f"if {condition}"): content}
