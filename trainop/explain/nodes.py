"""Whether any node of a cluster could run a pod, by what the pod's spec demands and the nodes have when they are empty.

Source: kube-scheduler's plugins NodeAffinity, TaintToleration and NodeResourcesFit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from trainop.engine.fields import as_list, as_object
from trainop.engine.pod_resources import pod_requests
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_quantity

_HARD = {"NoSchedule", "NoExecute"}


def nodes_for(spec: Json, nodes: Sequence[Json]) -> list[int]:
    """The indices of the nodes that could run the pod."""
    fitting = {id(node) for node in _fit(_open(_near(_selected(nodes, spec), spec), spec), spec)[0]}
    return [index for index, node in enumerate(nodes) if id(node) in fitting]


def describe_nodes(spec: Json, nodes: Sequence[Json]) -> Iterator[str]:
    """`.field: why no node fits`: the first demand that leaves none."""
    if not nodes:
        yield ": the cluster has no nodes"
        return
    selected = _selected(nodes, spec)
    if not selected:
        pairs = ", ".join(f"{name}={value}" for name, value in as_object(spec.get("nodeSelector")).items())
        yield f".nodeSelector: none of {len(nodes)} nodes has the labels {pairs}"
        return
    near = _near(selected, spec)
    if not near:
        yield f".affinity.nodeAffinity: none of {len(selected)} nodes matches what is required"
        return
    tolerated = _open(near, spec)
    if not tolerated:
        taints = sorted({taint for node in near for taint in _refusing(node, spec)})
        named = ", ".join(taints[:5])
        yield f".tolerations: all {len(near)} nodes that match have taints that are not tolerated: {named}"
        return
    yield from _fit(tolerated, spec)[1]


def capacity(node: Json, name: str) -> Fraction:
    """The amount of a resource that pods on the node can have."""
    try:
        return read_quantity(as_object(as_object(node.get("status")).get("allocatable")).get(name, 0)).amount
    except ValueError:
        return Fraction(0)


def _selected(nodes: Sequence[Json], spec: Json) -> list[Json]:
    selector = as_object(spec.get("nodeSelector"))
    return [node for node in nodes if selector.items() <= _labels(node).items()]


def _near(nodes: Sequence[Json], spec: Json) -> list[Json]:
    """The nodes that match the required node affinity."""
    required = as_object(as_object(spec.get("affinity")).get("nodeAffinity"))
    terms = as_object(required.get("requiredDuringSchedulingIgnoredDuringExecution")).get("nodeSelectorTerms")
    return [node for node in nodes if terms is None or any(_matches(term, node) for term in as_list(terms))]


def _open(nodes: Sequence[Json], spec: Json) -> list[Json]:
    return [node for node in nodes if not _refusing(node, spec)]


def _fit(nodes: Sequence[Json], spec: Json) -> tuple[list[Json], list[str]]:
    """The nodes that have what the pod requests, and if there are none the first resource of which all have too
    little."""
    fitting = list(nodes)
    for name, asked in sorted(pod_requests(spec).items()):
        enough = [node for node in fitting if capacity(node, name) >= asked.amount]
        if fitting and not enough and asked.amount:
            largest = max(fitting, key=lambda node: capacity(node, name))
            text = as_object(as_object(largest.get("status")).get("allocatable")).get(name, "none")
            return [], [f".containers: a pod asks for {asked} {name}; the most that a node which fits has is {text}"]
        fitting = enough
    return fitting, []


def _labels(node: Json) -> Json:
    return as_object(as_object(node.get("metadata")).get("labels"))


def _matches(term: Json, node: Json) -> bool:
    """An empty term matches nothing."""
    by_label, by_field = as_list(term.get("matchExpressions")), as_list(term.get("matchFields"))
    fields = {"metadata.name": as_object(node.get("metadata")).get("name")}
    return bool(by_label or by_field) and all(
        _holds(each, values)
        for each, values in [*((e, _labels(node)) for e in by_label), *((e, fields) for e in by_field)]
    )


def _holds(expression: Json, values: Json) -> bool:
    actual, wanted = values.get(str(expression.get("key"))), expression.get("values") or []
    operator = str(expression.get("operator"))
    if operator in {"In", "NotIn"}:
        return (actual in wanted) == (operator == "In")
    if operator in {"Exists", "DoesNotExist"}:
        return (actual is not None) == (operator == "Exists")
    try:
        one, other = int(str(actual)), int(str(wanted[0]))
    except (ValueError, IndexError):
        return False
    return one > other if operator == "Gt" else one < other


def _refusing(node: Json, spec: Json) -> list[str]:
    """The taints that keep the pod away."""
    taints = as_list(as_object(node.get("spec")).get("taints"))
    tolerations = as_list(spec.get("tolerations"))
    return [
        f"{each.get('key')}={each.get('value', '')}:{each.get('effect')}"
        for each in taints
        if each.get("effect") in _HARD and not any(_tolerates(toleration, each) for toleration in tolerations)
    ]


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
