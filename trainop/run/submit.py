"""Creates or updates objects in a cluster, as `kubectl apply --server-side` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

import trainop
from trainop.run.documents import BadInputError, Document
from trainop.run.readable import describe_refusal
from trainop.runtime import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    AlreadyExistsError,
    ApiError,
    Client,
    Json,
    NotFoundError,
    PatchKind,
    Resource,
)
from trainop.runtime.lowlevel import Request

TRAINER_NAMESPACE, TRAINER_VERSION = "kubeflow-system", "kubeflow-trainer-public"
"""Where the SDK looks for the version of the control plane; without it, each client begins with a warning."""


async def install(client: Client, definitions: Iterable[Json]) -> None:
    """Creates or updates CRDs. The embedded API server serves their resources immediately."""
    for definition in definitions:
        name = definition["metadata"]["name"]
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, None, definition, kind=PatchKind.APPLY, force=True)


async def install_train_jobs(client: Client) -> None:
    """Creates or updates the CRDs of TrainJobs and the shipped runtimes, whose nodes work in folders of their own."""
    from trainop.kinds.trainjob.crd import train_job_crds  # noqa: PLC0415  # seldom needed
    from trainop.kinds.trainjob.names import CLUSTER_RUNTIMES  # noqa: PLC0415  # the same
    from trainop.kinds.trainjob.runtimes import shipped_runtimes  # noqa: PLC0415  # the same

    await install(client, train_job_crds())
    for runtime in shipped_runtimes(scratch=True):
        name = runtime["metadata"]["name"]
        await client.patch(CLUSTER_RUNTIMES, name, None, runtime, kind=PatchKind.APPLY, force=True)
    await ensure_namespace(client, TRAINER_NAMESPACE)
    public = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": TRAINER_VERSION, "namespace": TRAINER_NAMESPACE},
        "data": {"kubeflow_trainer_version": f"trainop {trainop.__version__}"},
    }
    await client.patch(CONFIG_MAPS, TRAINER_VERSION, TRAINER_NAMESPACE, public, kind=PatchKind.APPLY, force=True)


async def apply(client: Client, documents: Sequence[Document]) -> None:
    """Applies all objects in order, and creates missing namespaces. Raises `BadInputError` if one is rejected."""
    for document in documents:
        resource = await find_resource(client, document)
        namespace = document.key.namespace if resource.namespaced else None
        if namespace:
            try:
                await ensure_namespace(client, namespace)
            except ApiError as error:
                lines = (line.replace("metadata.name:", "metadata.namespace:") for line in describe_refusal(error))
                raise _refused(document, lines) from error
        try:
            await client.patch(resource, document.key.name, namespace, document.raw, kind=PatchKind.APPLY, force=True)
        except ApiError as error:
            raise _refused(document, describe_refusal(error)) from error


def _refused(document: Document, lines: Iterable[str]) -> BadInputError:
    return BadInputError("\n".join(map(document.complain, lines)))


async def find_resource(client: Client, document: Document) -> Resource:
    """The resource of the object's kind, by discovery."""
    group, _, version = document.api_version.rpartition("/")
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        answer = await client.request(Request("GET", path))
        resources = msgspec.json.decode(answer.body)["resources"]
    except NotFoundError:
        resources = []
    for entry in resources:
        if entry["kind"] == document.kind and "/" not in entry["name"]:
            return Resource(group, version, entry["name"], document.kind, entry["namespaced"])
    raise BadInputError(
        document.complain(
            f"kind: {document.kind} is unknown in {document.api_version}; "
            "check the spelling, or apply its CRD in an earlier file"
        )
    )


async def ensure_namespace(client: Client, name: str) -> None:
    """Creates the namespace if it does not exist."""
    try:
        await client.get(NAMESPACES, name)
    except NotFoundError:
        try:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except AlreadyExistsError:
            return
