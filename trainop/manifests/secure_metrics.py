"""Metrics over TLS, for callers that the API server permits to read them (`--metrics-secure`)."""

from __future__ import annotations

from trainop.manifests.names import NAME, RBAC
from trainop.manifests.overlays import Component, Needed, json_patch
from trainop.manifests.rbac import secure_metrics_roles
from trainop.runtime import Json

FLAG = "--metrics-secure"
PORT, SECURE_PORT = "monitoring-port", "https-metrics"
"""Names of the Service's port. A ServiceMonitor has an endpoint for each, and scrapes the one that is there."""
TLS: Json = {"insecureSkipVerify": True}
"""The operator's own certificate is made at each start, and signed by nobody that Prometheus could know."""


def endpoints() -> list[Json]:
    """Those of the ServiceMonitor. Only the one over TLS gets the token of Prometheus."""
    common = {"path": "/metrics", "interval": "30s"}
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  a path
    return [
        {"port": PORT, **common},
        {"port": SECURE_PORT, **common, "scheme": "https", "bearerTokenFile": token, "tlsConfig": dict(TLS)},
    ]


def secure_metrics() -> Component:
    """For operators of all namespaces. The annotations of the Service go: who scrapes by them has no token."""
    flag = {"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": FLAG}
    service = [
        {"op": "remove", "path": "/metadata/annotations"},
        {"op": "replace", "path": "/spec/ports/0/name", "value": SECURE_PORT},
    ]
    return Component(
        objects=secure_metrics_roles(),
        needs=[Needed(f"{RBAC}/v1", "ClusterRole", NAME), Needed("v1", "Service", NAME)],
        patches=[
            json_patch({"kind": "Deployment", "name": NAME}, [flag]),
            json_patch({"kind": "Service", "name": NAME}, service),
        ],
    )
