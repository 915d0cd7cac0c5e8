"""Kustomizations."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from trainop.manifests.names import NAME, NAMESPACE, RBAC
from trainop.manifests.text import to_yaml
from trainop.runtime.objects.metadata import Json


def kustomization(resources: Sequence[str], *, namespace: str = "", images: Sequence[Json] = ()) -> Json:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": list(resources),
        **({"images": list(images)} if images else {}),
    }


def namespaced_kustomization() -> Json:
    """An installation with permissions only in its own namespace. The CRDs must be applied by an administrator."""
    no_cluster_role = [
        {"patch": to_yaml({**item, "$patch": "delete"})}
        for item in (
            {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": NAME}}
            for kind in ("ClusterRole", "ClusterRoleBinding")
        )
    ]
    own_namespace = {
        "op": "add",
        "path": "/spec/template/spec/containers/0/command/1",
        "value": "--namespace=$(MY_POD_NAMESPACE)",
    }
    one_namespace = {
        "target": {"kind": "Deployment", "name": NAME},
        "patch": yaml.safe_dump([own_namespace], width=120),
    }
    return {
        **kustomization(["../../base", "role.yaml"], namespace=NAMESPACE),
        "patches": [*no_cluster_role, one_namespace],
    }
