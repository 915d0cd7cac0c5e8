"""Whether the node has room for a pod, and if not why, in the words of kube-scheduler. Pure functions.

The filters are NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit, in this order; as in Kubernetes,
the first that fails names the reasons. Source: kubernetes `pkg/scheduler/framework/plugins`,
`pkg/scheduler/framework/types.go` (`FitError`), and for preemption `pkg/scheduler/framework/preemption`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from trainop.engine.placement import capacity, is_near, is_selected, is_tolerated, refusing_taints
from trainop.engine.pod_resources import pod_requests
from trainop.runtime import Json

Amounts: TypeAlias = dict[str, Fraction]
"""Resource name -> amount; `pods` is the number of pods."""

PODS = "pods"
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NO_NODE = "no nodes available to schedule pods"
_UNHELPFUL = "Preemption is not helpful for scheduling."
AWAITED = "No preemption victims found for incoming pod."
"""What the message of a pod contains for which there is room when others have ended."""


@dataclass(frozen=True, slots=True)
class Leniency:
    """Which requests do not count."""

    overcommit: bool = False
    """CPU, memory, huge pages and ephemeral storage."""
    allow_cpu: bool = False
    """Extended resources, such as GPUs, of which the node has fewer than the pod requests."""


STRICT = Leniency()
_SHARED = {"cpu", "memory", "ephemeral-storage"}


def is_extended(name: str) -> bool:
    """Whether a resource is one of a vendor (`pkg/apis/core/v1/helper/helpers.go`, `IsExtendedResourceName`)."""
    return "/" in name and "kubernetes.io/" not in name


def is_shared(name: str) -> bool:
    """Whether processes share the resource if they request more of it than there is."""
    return name in _SHARED or name.startswith("hugepages-")


def requested(spec: Json) -> Amounts:
    """What the pod requests, and one pod."""
    return {name: each.amount for name, each in pod_requests(spec).items() if each.amount} | {PODS: Fraction(1)}


def counted(amounts: Amounts, node: Json, leniency: Leniency) -> Amounts:
    """Those of the requests that count."""
    return {
        name: amount
        for name, amount in amounts.items()
        if not (leniency.overcommit and is_shared(name))
        and not (leniency.allow_cpu and is_extended(name) and amount > capacity(node, name))
    }


def find_obstacle(spec: Json, amounts: Amounts, node: Json | None, used: Mapping[str, Fraction]) -> str:
    """Why the pod cannot have the node, as the message of its condition PodScheduled; empty if it can.

    `amounts` are the requests that count, and `used` those of the pods that have the node.
    """
    if node is None:
        return _NO_NODE
    reasons, hopeless = _reasons(spec, amounts, node, used)
    if not reasons:
        return ""
    joined = ", ".join(sorted(f"1 {reason}" for reason in reasons))
    preemption = _UNHELPFUL if hopeless else AWAITED
    return f"0/1 nodes are available: {joined}. preemption: 0/1 nodes are available: 1 {preemption}"


def _reasons(spec: Json, amounts: Amounts, node: Json, used: Mapping[str, Fraction]) -> tuple[list[str], bool]:
    """The reasons, and whether they would be the same on the empty node."""
    if (node.get("spec") or {}).get("unschedulable") and not is_tolerated(spec, _CORDON):
        return ["node(s) were unschedulable"], True
    if refusing_taints(spec, node):
        return ["node(s) had untolerated taint(s)"], True
    if not (is_selected(spec, node) and is_near(spec, node)):
        return ["node(s) didn't match Pod's node affinity/selector"], True
    rooms = {name: capacity(node, name) for name in amounts}
    short = [name for name, amount in amounts.items() if amount + used.get(name, 0) > rooms[name]]
    hopeless = any(amounts[name] > rooms[name] for name in short)
    return ["Too many pods" if name == PODS else f"Insufficient {name}" for name in short], hopeless
