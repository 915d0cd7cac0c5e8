"""Kustomize components: parts of an installation that overlays can include. kustomize refuses those that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from trainop.manifests import availability, di, mpi_operator, service_mode
from trainop.manifests.alerts import pod_monitor, prometheus_rule, service_monitor
from trainop.manifests.dashboard import dashboard_config_map
from trainop.manifests.names import LABELS, METRICS_PORT, NAME, PROGRESS_PORT, RBAC, WEBHOOK_PORT
from trainop.manifests.overlays import Component, Needed, json_patch
from trainop.manifests.page import page_components
from trainop.manifests.progress import progress
from trainop.manifests.rbac import component_roles, namespace_admin_role, standard_user_roles
from trainop.manifests.secure_metrics import secure_metrics
from trainop.manifests.webhook import required_webhooks
from trainop.runtime import Json

DEPLOYMENT = Needed("apps/v1", "Deployment", NAME)
CRD = Needed("apiextensions.k8s.io/v1", "CustomResourceDefinition", "pytorchjobs.kubeflow.org")
EVERYWHERE, HERE = (Needed(f"{RBAC}/v1", kind, NAME) for kind in ("ClusterRole", "Role"))
"""The rights of an operator in all namespaces, and in its own."""


def network_policy() -> Json:
    """Admits the scrapes of Prometheus, the API server's calls of webhooks, and the reports of pods. The kubelet's
    probes come from the node of the pod, which network policies do not restrict. A sample: adjust the namespace of
    Prometheus."""
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
                {"from": [{"namespaceSelector": {}}], "ports": [{"port": PROGRESS_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def objects() -> dict[str, Sequence[Json]]:
    """The objects that each component adds."""
    return {name: each.objects for name, each in components().items() if each.objects}


def components() -> dict[str, Component]:
    """The components of training-operator, by name."""
    everywhere = {name: Component(objects=roles, needs=[EVERYWHERE]) for name, roles in component_roles().items()}
    here = {
        f"{name}-namespaced": Component(objects=roles, needs=[HERE]) for name, roles in component_roles("Role").items()
    }
    return {
        "high-availability": Component(
            objects=[availability.disruption_budget()],
            needs=[DEPLOYMENT],
            patches=[json_patch({"kind": "Deployment", "name": NAME}, availability.operations())],
        ),
        "required-webhooks": required_webhooks(),
        "network-policy": Component(objects=[network_policy()], needs=[DEPLOYMENT]),
        "service-monitor": Component(objects=[service_monitor()], needs=[Needed("v1", "Service", NAME)]),
        "secure-metrics": secure_metrics(),
        "progress": progress(),
        service_mode.COMPONENT: service_mode.service_mode_job(),
        "prometheus-rule": Component(objects=[prometheus_rule()]),
        "mpi-operator-monitor": Component(
            objects=[pod_monitor(mpi_operator.NAME, {"app": mpi_operator.NAME}, "metrics")],
            needs=[Needed("apps/v1", "Deployment", mpi_operator.NAME)],
        ),
        "di-monitor": Component(
            objects=[pod_monitor(name, {"control-plane": name}, port) for name, port in di.MONITORED.items()],
            needs=[Needed("apps/v1", "Deployment", name) for name in di.MONITORED],
        ),
        "grafana-dashboard": Component(objects=[dashboard_config_map()]),
        "user-roles": Component(objects=standard_user_roles()),
        # Only with the CRDs, because an administrator of the cluster applies both.
        "namespace-admins": Component(objects=[namespace_admin_role()], needs=[CRD]),
        **page_components(),
        **everywhere,
        **here,
    }
