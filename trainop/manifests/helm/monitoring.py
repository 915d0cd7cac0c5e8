"""Prometheus: its namespace in NetworkPolicies, and what it scrapes and evaluates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainop.manifests import secure_metrics
from trainop.manifests.helm import schemas
from trainop.manifests.helm.chart import labels, placed, when
from trainop.manifests.helm.template import Action, Expression, Lines, Node, put, replace
from trainop.manifests.helm.values import Value
from trainop.runtime import Json

NAMESPACE = Value("networkPolicy.monitoringNamespace", "monitoring", schemas.STRING, "The namespace of Prometheus.")
_NAME = "kubernetes.io/metadata.name"
"""The label that each namespace has; the policies select no other namespace than that of Prometheus by it."""
_ENDPOINTS = ("endpoints", "podMetricsEndpoints")
"""Where monitors of services and of pods have their interval."""
_TLS = "tlsConfig"
_TRUST = (
    "With components.secureMetrics: whom Prometheus trusts. For a certificate of your own (--metrics-cert-dir) give "
    "`ca` and `serverName`, and set `insecureSkipVerify: false`."
)


def admitting(node: Node) -> Node:
    """The policy with the namespace of the values, wherever it selects a namespace by name."""
    if isinstance(node, Mapping):
        chosen = Expression(f"$.Values.{NAMESPACE.path} | quote")
        return {name: chosen if name == _NAME else admitting(value) for name, value in node.items()}
    return [admitting(item) for item in node] if isinstance(node, list) else node


def values(chart: str, name: str, found: Iterable[Json]) -> list[Value]:
    """The values of a component whose objects others select by their labels; those that have one also an interval."""
    objects = list(found)
    own = {label: "" for each in objects for label in each["metadata"].get("labels", {})}
    schema = schemas.without({**labels(chart), **own}, schemas.TEXTS)
    rows = [Value(f"{name}.labels", {}, schema, "By which they are selected, such as release: kube-prometheus-stack.")]
    if any(field in each.get("spec", {}) for each in objects for field in _ENDPOINTS):
        rows.append(Value(f"{name}.interval", "30s", schemas.STRING))
    if any(_TLS in endpoint for each in objects for endpoint in each.get("spec", {}).get("endpoints", ())):
        rows.append(Value(f"{name}.{_TLS}", dict(secure_metrics.TLS), schemas.TLS, _TRUST))
    return rows


def selected(chart: str, name: str, found: Iterable[Json]) -> list[Node]:
    """The objects of the component, with its values."""
    return [when(f"$.Values.components.{name}", [_selected(each, name) for each in placed(chart, found)])]


def _selected(item: Node, name: str) -> Node:
    added = {Action(f"with $.Values.{name}.labels"): {Lines("toYaml ."): None}}
    found = put(item, ("metadata", "labels"), {**item["metadata"]["labels"], **added})
    for field in _ENDPOINTS:
        for index, _ in enumerate(found.get("spec", {}).get(field, ())):
            interval = Expression(f"$.Values.{name}.interval | quote")
            found = replace(found, ("spec", field, index, "interval"), interval)
            if _TLS in found["spec"][field][index]:
                given = Lines(f"toYaml $.Values.{name}.{_TLS}")
                found = replace(found, ("spec", field, index, _TLS), given)
    return found
