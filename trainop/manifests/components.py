"""Kustomize components: parts of an installation that any overlay can include."""

from __future__ import annotations

from collections.abc import Sequence

from trainop.manifests import availability
from trainop.manifests.alerts import prometheus_rule, service_monitor
from trainop.manifests.dashboard import dashboard_config_map
from trainop.manifests.names import LABELS, METRICS_PORT, NAME, WEBHOOK_PORT
from trainop.manifests.overlays import component, json_patch
from trainop.manifests.rbac import standard_user_roles, transport_roles
from trainop.runtime.objects.metadata import Json


def network_policy() -> Json:
    """Admits the scrapes of Prometheus, and the API server's calls of webhooks. The kubelet's probes come from the
    node of the pod, which network policies do not restrict. A sample: adjust the namespace of Prometheus."""
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "spec": {
            "podSelector": {"matchLabels": dict(LABELS)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [monitoring], "ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
                {"ports": [{"port": WEBHOOK_PORT, "protocol": "TCP"}]},  # the API server is no pod that can be selected
            ],
        },
    }


def objects() -> dict[str, list[Json]]:
    """The objects that each component adds."""
    return {
        "high-availability": [availability.disruption_budget()],
        "network-policy": [network_policy()],
        "service-monitor": [service_monitor()],
        "prometheus-rule": [prometheus_rule()],
        "grafana-dashboard": [dashboard_config_map()],
        "user-roles": standard_user_roles(),
        **transport_roles(),
    }


def component_files() -> dict[str, Sequence[Json]]:
    """The files of all components, by path."""
    patches = {"high-availability": [json_patch({"kind": "Deployment", "name": NAME}, availability.operations())]}
    files: dict[str, Sequence[Json]] = {}
    for name, found in objects().items():
        files[f"components/{name}/kustomization.yaml"] = [component(patches.get(name, ()), [f"{name}.yaml"])]
        files[f"components/{name}/{name}.yaml"] = found
    return files
