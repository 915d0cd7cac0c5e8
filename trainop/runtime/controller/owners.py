"""Sets controller owner references, with the validation of controller-runtime.

The garbage collector resolves an owner reference by UID within the child's namespace. It treats an owner in another
namespace as missing, and deletes the child; such references must therefore never be written.
"""

from __future__ import annotations

from typing import Any, overload

from trainop.runtime.errors import ReconcileError
from trainop.runtime.objects.metadata import HasMetadata, Json, Metadata, Resource, Unstructured, owner_reference
from trainop.runtime.objects.models import M, Model, is_model, to_json, to_model


class OwnerError(ReconcileError):
    """The owner must not become the controller of the child."""


@overload
def set_controller(owner: HasMetadata | Model, resource: Resource, child: Json) -> Json: ...
@overload
def set_controller(owner: HasMetadata | Model, resource: Resource, child: M) -> M: ...
def set_controller(owner: HasMetadata | Model, resource: Resource, child: Json | Model) -> Json | Model:
    """Returns a copy of the manifest `child` with `owner`, an object of `resource`, as its controller. Both may be
    models of kubernetes_asyncio.

    An existing reference to the same UID is replaced; other references are kept. Raises `OwnerError` if the owner has
    no name or UID, if a namespaced owner and the child are not in the same namespace, or if the child has another
    controller. Unlike controller-runtime's `controllerutil.SetControllerReference`, an owner of the same name with
    another UID is another controller.
    """
    if not isinstance(child, dict):
        return to_model(type(child), set_controller(owner, resource, to_json(child)))
    of_child: dict[str, Any] = child.get("metadata") or {}
    of_owner = _metadata_of(owner)
    if not of_owner.name or not of_owner.uid:
        raise OwnerError(f"the owner {resource.kind} {of_owner.key} has no name or no UID: it was never stored")
    if resource.namespaced:
        _check_namespaces(of_owner, of_child.get("namespace") or "")
    references: list[Json] = of_child.get("ownerReferences") or []
    for reference in references:
        if reference.get("controller") and reference.get("uid") != of_owner.uid:
            raise OwnerError(f"already controlled by {reference.get('kind')} {reference.get('name')}")
    ours = owner_reference(resource.api_version, resource.kind, of_owner.name, of_owner.uid)
    others = [reference for reference in references if reference.get("uid") != of_owner.uid]
    return {**child, "metadata": {**of_child, "ownerReferences": [*others, ours]}}


def _metadata_of(owner: Any) -> Metadata:
    metadata: Metadata = Unstructured(to_json(owner)).metadata if is_model(owner) else owner.metadata
    return metadata


def _check_namespaces(owner: Metadata, namespace: str) -> None:
    if not owner.namespace:
        raise OwnerError(f"the owner {owner.name} has no namespace, but its kind is namespaced")
    if not namespace:
        raise OwnerError(f"a namespaced owner ({owner.key}) cannot own a cluster-scoped child or one without namespace")
    if namespace != owner.namespace:
        raise OwnerError(f"an owner in namespace {owner.namespace} cannot own a child in namespace {namespace}")
