"""Namespaces: their strategy, and the admission plugin NamespaceLifecycle."""

from __future__ import annotations

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind, Strategy
from trainop.local.api.registry.names import dns_label
from trainop.runtime import NAMESPACES, Json

UNDELETABLE = frozenset({"default", "kube-system", "kube-public"})
SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def admit(backend: Backend, kind: Kind, metadata: Json) -> None:
    """Reject a creation in a missing or terminating namespace (admission plugin NamespaceLifecycle)."""
    if not kind.resource.namespaced:
        return
    name = metadata.get("namespace", "")
    namespace = backend.store.get(NAMESPACES.plural, ("", name))
    if namespace is None:
        raise status_errors.not_found(NAMESPACES, name)
    if namespace.value["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {name} because it is being terminated"
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {name} is being terminated",
            "field": "metadata.namespace",
        }
        raise status_errors.forbidden(kind.resource, metadata.get("name", ""), why, [cause])


class NamespaceStrategy(Strategy):
    """`spec.finalizers` blocks the removal of a namespace until its content is deleted."""

    has_status = True

    def check_name(self, name: str) -> list[str]:
        return dns_label(name)

    def blocks_removal(self, value: Json) -> bool:
        return bool((value.get("spec") or {}).get("finalizers"))

    def default(self, value: Json) -> None:
        metadata = value["metadata"]
        if name := metadata.get("name"):
            metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": name}

    def prepare_create(self, value: Json) -> None:
        value["spec"] = {"finalizers": ["kubernetes"]}
        value["status"] = {"phase": "Active"}

    def prepare_update(self, value: Json, old: Json) -> None:
        value["spec"] = old.get("spec", {})
