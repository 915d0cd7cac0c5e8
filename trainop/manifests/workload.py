"""The operator's Deployment, its Service and its service account."""

from __future__ import annotations

from trainop.manifests.names import IMAGE, LABELS, METRICS_PORT, NAME, PROBE_PORT, WEBHOOK_PORT
from trainop.runtime.objects.metadata import Json

RESOURCES: Json = {"requests": {"cpu": "100m", "memory": "128Mi"}}
"""No limits: a large cluster needs more, see docs/performance.md."""

POD_SECURITY: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""With `POD_SECURITY`, what the Pod Security Standard `restricted` demands."""


def service_account() -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}}


def namespace_object(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def service() -> Json:
    """The Service for scraping metrics and for webhooks."""
    annotations = {
        "prometheus.io/path": "/metrics",
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
    }
    ports = [
        {"name": "monitoring-port", "port": METRICS_PORT, "targetPort": METRICS_PORT},
        {"name": "webhook-server", "port": 443, "protocol": "TCP", "targetPort": WEBHOOK_PORT},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": {"app": NAME}, "annotations": annotations},
        "spec": {"type": "ClusterIP", "selector": dict(LABELS), "ports": ports},
    }


def deployment(image: str = IMAGE) -> Json:
    """The Deployment of the operator: one replica. More replicas need `--leader-elect`."""
    template = {
        "metadata": {"labels": dict(LABELS), "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "serviceAccountName": NAME,
            "terminationGracePeriodSeconds": 10,
            "securityContext": POD_SECURITY,
            "containers": [_container(image)],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "spec": {"replicas": 1, "selector": {"matchLabels": dict(LABELS)}, "template": template},
    }


def _container(image: str) -> Json:
    return {
        "name": NAME,
        "image": image,
        # Users append flags with a JSON patch that adds to command/1.
        "command": ["/manager"],
        "env": pod_variables(),
        "ports": [
            {"containerPort": METRICS_PORT},
            {"containerPort": WEBHOOK_PORT, "name": "webhook-server", "protocol": "TCP"},
        ],
        "resources": RESOURCES,
        "livenessProbe": probe("/healthz", 15, 20),
        "readinessProbe": probe("/readyz", 10, 15),
        "securityContext": CONTAINER_SECURITY,
    }


def pod_variables() -> list[Json]:
    """What a program needs to know of its pod."""
    fields = {"NAMESPACE": "namespace", "NAME": "name", "UID": "uid"}
    return [
        {"name": f"MY_POD_{name}", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
        for name, field in fields.items()
    ]


def probe(path: str, delay: int, period: int, port: int = PROBE_PORT) -> Json:
    request = {"path": path, "port": port}
    return {"httpGet": request, "initialDelaySeconds": delay, "periodSeconds": period, "timeoutSeconds": 3}
