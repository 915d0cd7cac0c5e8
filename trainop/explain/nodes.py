"""Whether any node of a cluster could run a pod, by what the pod's spec demands and the nodes have when they are empty.

Source: kube-scheduler's plugins NodeAffinity, TaintToleration and NodeResourcesFit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainop.engine.fields import as_object
from trainop.engine.placement import capacity, is_near, is_selected, refusing_taints
from trainop.engine.pod_resources import pod_requests
from trainop.runtime import Json


def nodes_for(spec: Json, nodes: Sequence[Json]) -> list[int]:
    """The indices of the nodes that could run the pod."""
    allowed = [
        node for node in nodes if is_selected(spec, node) and is_near(spec, node) and not refusing_taints(spec, node)
    ]
    fitting = {id(node) for node in _fit(allowed, spec)[0]}
    return [index for index, node in enumerate(nodes) if id(node) in fitting]


def describe_nodes(spec: Json, nodes: Sequence[Json]) -> Iterator[str]:
    """`.field: why no node fits`: the first demand that leaves none."""
    if not nodes:
        yield ": the cluster has no nodes"
        return
    selected = [node for node in nodes if is_selected(spec, node)]
    if not selected:
        pairs = ", ".join(f"{name}={value}" for name, value in as_object(spec.get("nodeSelector")).items())
        yield f".nodeSelector: none of {len(nodes)} nodes has the labels {pairs}"
        return
    near = [node for node in selected if is_near(spec, node)]
    if not near:
        yield f".affinity.nodeAffinity: none of {len(selected)} nodes matches what is required"
        return
    tolerated = [node for node in near if not refusing_taints(spec, node)]
    if not tolerated:
        taints = sorted({_describe(taint) for node in near for taint in refusing_taints(spec, node)})
        named = ", ".join(taints[:5])
        yield f".tolerations: all {len(near)} nodes that match have taints that are not tolerated: {named}"
        return
    yield from _fit(tolerated, spec)[1]


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


def _describe(taint: Json) -> str:
    return f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
