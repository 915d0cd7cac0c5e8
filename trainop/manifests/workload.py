"""The operator's Deployment, its Service and its service account."""

from __future__ import annotations

from collections.abc import Sequence

from trainop.manifests.availability import LEADER_FLAG
from trainop.manifests.names import IMAGE, LABELS, METRICS_PORT, NAME, PROBE_PORT, WEBHOOK_PORT
from trainop.manifests.secure_metrics import PORT
from trainop.programs.settings import Settings
from trainop.runtime import Json

RESOURCES: Json = {"requests": {"cpu": "100m", "memory": "128Mi"}}
"""No limits: a large cluster needs more, see docs/performance.md."""

POD_SECURITY: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
GRACE_SECONDS = int(Settings().graceful_shutdown_timeout) + 10
"""Before the kubelet kills a pod. A program stops within its own timeout (`--graceful-shutdown-timeout`); after that it
records the last events."""
JSON_LOGS = "--zap-devel=false"
"""The programs' own default is the console format, as upstream."""
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
        {"name": PORT, "port": METRICS_PORT, "targetPort": METRICS_PORT},
        {"name": "webhook-server", "port": 443, "protocol": "TCP", "targetPort": WEBHOOK_PORT},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": {"app": NAME}, "annotations": annotations},
        "spec": {"type": "ClusterIP", "selector": dict(LABELS), "ports": ports},
    }


def deployment(image: str = IMAGE, flags: Sequence[str] = (JSON_LOGS, LEADER_FLAG)) -> Json:
    """The Deployment of the operator: one replica, which elects itself as leader nevertheless. A rolling update runs
    the old and the new pod side by side, and so does a node that is lost."""
    template = {
        "metadata": {"labels": dict(LABELS), "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "serviceAccountName": NAME,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": POD_SECURITY,
            "containers": [_container(image, flags)],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "spec": {"replicas": 1, "selector": {"matchLabels": dict(LABELS)}, "template": template},
    }


def _container(image: str, flags: Sequence[str]) -> Json:
    return {
        "name": NAME,
        "image": image,
        # Users add flags with a JSON patch to command/1, or to command/- to replace one of these: the last one counts.
        "command": ["/manager", *flags],
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
