"""Whether a node may run a pod, by labels, affinity and taints: each predicate is one of kube-scheduler's filters.

Source: kubernetes `component-helpers/scheduling/corev1/nodeaffinity`, `component-helpers/scheduling/corev1/helpers.go`.
Specs are read as they are: what is malformed matches nothing.
"""

from __future__ import annotations

from fractions import Fraction

from trainop.engine.fields import as_list, as_object
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_quantity

_HARD = {"NoSchedule", "NoExecute"}


def is_selected(spec: Json, node: Json) -> bool:
    """Whether the node has all labels of `nodeSelector`."""
    return as_object(spec.get("nodeSelector")).items() <= _labels(node).items()


def is_near(spec: Json, node: Json) -> bool:
    """Whether the node matches the required node affinity."""
    required = as_object(as_object(spec.get("affinity")).get("nodeAffinity"))
    terms = as_object(required.get("requiredDuringSchedulingIgnoredDuringExecution")).get("nodeSelectorTerms")
    return terms is None or any(_matches(term, node) for term in as_list(terms))


def refusing_taints(spec: Json, node: Json) -> list[Json]:
    """The taints that keep the pod away."""
    taints = as_list(as_object(node.get("spec")).get("taints"))
    return [each for each in taints if each.get("effect") in _HARD and not is_tolerated(spec, each)]


def is_tolerated(spec: Json, taint: Json) -> bool:
    return any(_tolerates(each, taint) for each in as_list(spec.get("tolerations")))


def capacity(node: Json, name: str) -> Fraction:
    """The amount of a resource that pods on the node can have."""
    try:
        return read_quantity(as_object(as_object(node.get("status")).get("allocatable")).get(name, 0)).amount
    except ValueError:
        return Fraction(0)


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


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
