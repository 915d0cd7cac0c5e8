"""The page of a cluster (`trainop ui --behind-proxy`), and the rights that its users need.

Its own account has none, and its pod gets no token: everything is read with those of the users.
"""

from __future__ import annotations

from trainop import __version__
from trainop.manifests.names import IMAGE, NAME, RBAC
from trainop.manifests.overlays import Component, Needed
from trainop.manifests.rbac import page_reader
from trainop.manifests.workload import CONTAINER_SECURITY, POD_SECURITY, RESOURCES, probe
from trainop.runtime import Json

COMPONENT = "page"
_NAME = f"{NAME}-page"
_PORT = 8080
_LABELS = {"control-plane": _NAME}
_CA = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where programs look for the CA of the API server."""


def page_components() -> dict[str, Component]:
    """The page of all namespaces, and that of the operator's own."""
    everywhere, here = (Needed(f"{RBAC}/v1", kind, NAME) for kind in ("ClusterRole", "Role"))
    images = [{"name": IMAGE, "newTag": __version__}]
    own = ["--namespace=$(MY_POD_NAMESPACE)"]
    return {
        COMPONENT: Component(objects=[*_objects([]), page_reader("ClusterRole")], needs=[everywhere], images=images),
        f"{COMPONENT}-namespaced": Component(
            objects=[*_objects(own), page_reader("Role")], needs=[here], images=images
        ),
    }


def _objects(flags: list[str]) -> list[Json]:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": _NAME},
        "automountServiceAccountToken": False,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _NAME, "labels": dict(_LABELS)},
        "spec": {"selector": dict(_LABELS), "ports": [{"name": "http", "port": 80, "targetPort": _PORT}]},
    }
    return [account, _deployment(flags), service, _network_policy()]


def _deployment(flags: list[str]) -> Json:
    variables = [{"name": "MY_POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]
    container = {
        "name": "page",
        "image": IMAGE,
        "command": ["/trainop", "ui", "--behind-proxy", f"--listen=:{_PORT}", *flags],
        "env": variables,
        "ports": [{"containerPort": _PORT, "name": "http", "protocol": "TCP"}],
        "resources": RESOURCES,
        "livenessProbe": probe("/healthz", 15, 20, _PORT),
        "readinessProbe": probe("/healthz", 2, 10, _PORT),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "ca", "mountPath": _CA, "readOnly": True}],
    }
    pod = {
        "serviceAccountName": _NAME,
        "automountServiceAccountToken": False,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": [{"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _NAME, "labels": dict(_LABELS)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(_LABELS)},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
        },
    }


def _network_policy() -> Json:
    """Admits pods of the page's own namespace, where the proxy is. A sample: admit your proxy if it is elsewhere."""
    rule = {"from": [{"podSelector": {}}], "ports": [{"port": _PORT, "protocol": "TCP"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": _NAME, "labels": dict(_LABELS)},
        "spec": {"podSelector": {"matchLabels": dict(_LABELS)}, "policyTypes": ["Ingress"], "ingress": [rule]},
    }
