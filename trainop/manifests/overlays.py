"""Kustomizations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from trainop.controllers.admission import configurations_of, webhooks_of
from trainop.manifests.names import NAME, NAMESPACE, RBAC, WEBHOOK_ROLE
from trainop.manifests.text import to_yaml
from trainop.programs.schemes import kinds_with_webhooks
from trainop.runtime import Json


def kustomization(resources: Sequence[str], *, namespace: str = "", images: Sequence[Json] = ()) -> Json:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": list(resources),
        **({"images": list(images)} if images else {}),
    }


class Needed(NamedTuple):
    """An object without which a component would do nothing, or too little."""

    api_version: str
    kind: str
    name: str

    def patch(self) -> Json:
        """Changes nothing; kustomize fails if there is no such object."""
        target = to_yaml({"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": self.name}})
        return {"patch": f"# Changes nothing. If this is not found, the component does not fit the overlay.\n{target}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of a kustomization that others include under `components`. `also` are paths of components that it
    includes."""

    objects: Sequence[Json] = ()
    needs: Sequence[Needed] = ()
    patches: Sequence[Json] = ()
    replacements: Sequence[Json] = ()
    images: Sequence[Json] = ()
    also: Sequence[str] = ()

    def files(self, folder: str) -> dict[str, Sequence[Json]]:
        """Its files, by path."""
        name = f"{folder.rpartition('/')[2]}.yaml"
        lists = {
            "components": [*self.also],
            "resources": [name] if self.objects else [],
            "patches": [*(each.patch() for each in self.needs), *self.patches],
            "replacements": [*self.replacements],
            "images": [*self.images],
        }
        about = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
        found: dict[str, Sequence[Json]] = {
            f"{folder}/kustomization.yaml": [about | {key: value for key, value in lists.items() if value}]
        }
        return found | ({f"{folder}/{name}": self.objects} if self.objects else {})


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
    cluster-scoped."""
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
        {"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": flag}
        for flag in ("--namespace=$(MY_POD_NAMESPACE)", "--webhook-server-port=0")
    ]
    return {
        **kustomization(["../../base", "role.yaml"], namespace=NAMESPACE),
        "patches": [*deletions, json_patch({"kind": "Deployment", "name": NAME}, flags)],
    }
