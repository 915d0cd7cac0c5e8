"""Kustomizations."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from trainop.controllers.admission import configurations_of, webhooks_of
from trainop.manifests.names import NAME, NAMESPACE, RBAC, WEBHOOK_ROLE
from trainop.manifests.text import to_yaml
from trainop.operator import kinds_with_webhooks
from trainop.runtime.objects.metadata import Json


def kustomization(resources: Sequence[str], *, namespace: str = "", images: Sequence[Json] = ()) -> Json:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": list(resources),
        **({"images": list(images)} if images else {}),
    }


def component(patches: Sequence[Json] = (), resources: Sequence[str] = ()) -> Json:
    """A part of a kustomization that others include under `components`."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        **({"resources": list(resources)} if resources else {}),
        **({"patches": list(patches)} if patches else {}),
    }


def json_patch(target: Json, operations: Sequence[Json]) -> Json:
    return {"target": target, "patch": yaml.safe_dump(list(operations), width=120, sort_keys=False)}


def deletion(api_version: str, kind: str, name: str) -> Json:
    """The patch that leaves an object out."""
    return {"patch": to_yaml({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "$patch": "delete"})}


def high_availability() -> Json:
    """The overlay `standalone` with the component of the same name."""
    base = kustomization(["../standalone"], namespace=NAMESPACE)
    return {**base, "components": ["../../components/high-availability"]}


def namespaced_kustomization() -> Json:
    """An installation with permissions only in its own namespace, without webhooks, whose configuration is
    cluster-scoped. The CRDs must be applied by an administrator."""
    left_out = [
        (RBAC, "ClusterRole", NAME),
        (RBAC, "ClusterRoleBinding", NAME),
        (RBAC, "Role", WEBHOOK_ROLE),
        (RBAC, "RoleBinding", WEBHOOK_ROLE),
        *(
            (each.resource.group, each.resource.kind, each.name)
            for each in configurations_of(webhooks_of(kinds_with_webhooks()))
        ),
    ]
    deletions = [deletion(f"{group}/v1", kind, name) for group, kind, name in left_out]
    flags = [
        {"op": "add", "path": "/spec/template/spec/containers/0/command/1", "value": flag}
        for flag in ("--webhook-server-port=0", "--namespace=$(MY_POD_NAMESPACE)")
    ]
    return {
        **kustomization(["../../base", "role.yaml"], namespace=NAMESPACE),
        "patches": [*deletions, json_patch({"kind": "Deployment", "name": NAME}, flags)],
    }
