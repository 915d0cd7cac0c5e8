"""Two replicas, spread over nodes, of which one stays during a drain. Every Deployment elects a leader."""

from __future__ import annotations

from trainop.manifests.names import LABELS, NAME
from trainop.runtime import Json

REPLICAS = 2
LEADER_FLAG = "--leader-elect"


def disruption_budget() -> Json:
    """One replica at a time may be evicted. A replica that is not ready never blocks a drain."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": dict(LABELS)},
        },
    }


def spread() -> list[Json]:
    """Constraints that place the replicas on different nodes, and in different zones if possible."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(LABELS)},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def operations() -> list[Json]:
    """The JSON patch of the Deployment."""
    return [
        {"op": "replace", "path": "/spec/replicas", "value": REPLICAS},
        {"op": "add", "path": "/spec/template/spec/topologySpreadConstraints", "value": spread()},
    ]
