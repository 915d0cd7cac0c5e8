"""Brings objects into a cluster as `kubectl apply --server-side` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from trainop.run.documents import BadInputError, Document
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.transport import Request
from trainop.runtime.errors import AlreadyExistsError, ApiError, NotFoundError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Resource


async def install(client: Client, definitions: Iterable[Json]) -> None:
    """Create or update CRDs; the embedded API server serves them as soon as it has them."""
    for definition in definitions:
        name = definition["metadata"]["name"]
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, None, definition, kind=PatchKind.APPLY, force=True)


async def apply(client: Client, documents: Sequence[Document]) -> None:
    """Apply all objects in order; namespaces that they name are made. Raises `BadInputError` for what is refused."""
    for document in documents:
        resource = await _resource(client, document)
        namespace = document.key.namespace if resource.namespaced else None
        if namespace:
            await _make_namespace(client, namespace)
        try:
            await client.patch(resource, document.key.name, namespace, document.raw, kind=PatchKind.APPLY, force=True)
        except ApiError as error:
            raise BadInputError(f"{document.where}: {document.kind} {document.key.name}: {error}") from error


async def _resource(client: Client, document: Document) -> Resource:
    """Where objects of this kind live, by discovery."""
    group, _, version = document.api_version.rpartition("/")
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        answer = await client.request(Request("GET", path))
        served = msgspec.json.decode(answer.body)["resources"]
    except NotFoundError:
        served = []
    for entry in served:
        if entry["kind"] == document.kind and "/" not in entry["name"]:
            return Resource(group, version, entry["name"], document.kind, entry["namespaced"])
    raise BadInputError(
        f"{document.where}: kind {document.kind} of {document.api_version} is not known here; "
        "is it spelt right, or is its CRD missing from the files before it?"
    )


async def _make_namespace(client: Client, name: str) -> None:
    try:
        await client.get(NAMESPACES, name)
    except NotFoundError:
        try:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except AlreadyExistsError:
            return
