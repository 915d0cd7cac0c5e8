"""Copies a Secret to all namespaces with the labels of a SharedSecret; docs/runtime-tutorial.md explains it."""

import contextlib
import sys

from trainop.runtime import (
    NAMESPACES,
    SECRETS,
    Changed,
    Context,
    Json,
    Key,
    NotFoundError,
    OperationResult,
    Operator,
    ReconcileError,
    Resource,
    Result,
    Unstructured,
    Watch,
    by_label,
    create_or_patch,
    decode_unstructured,
)

FINALIZER = "example.com/shared-secret"
ORIGIN = "example.com/shared-from"

SHARED = Resource("example.com", "v1", "sharedsecrets", "SharedSecret")
ALL_SECRETS = Watch(SECRETS, decode_unstructured, indices={"origin": by_label(ORIGIN)})

operator = Operator("shared-secrets", metrics="0", health="0")  # (10)


async def clean_up(ctx: Context, shared: Unstructured) -> None:  # (2)
    await delete_copies(ctx, shared, set())


async def reconcile(ctx: Context, shared: Unstructured) -> Result | None:  # (1)
    key = Key(shared.metadata.namespace, shared.raw["spec"]["secret"])
    source = ctx.store(ALL_SECRETS).get(key)  # (3)
    if source is None:
        ctx.event(shared, "Warning", "SecretMissing", f"secret {key.name} does not exist")  # (4)
        return None
    labels = shared.raw["spec"]["namespaceLabels"].items()
    keep = set()
    for namespace in ctx.store(NAMESPACES).list():  # (3)
        name = namespace.metadata.name
        if name == key.namespace or namespace.metadata.terminating or not labels <= namespace.metadata.labels.items():
            continue
        await copy(ctx, shared, source, name)
        keep.add(name)
    await delete_copies(ctx, shared, keep)
    patch = {"status": {"copies": len(keep)}}
    await ctx.client.patch(SHARED, shared.metadata.name, key.namespace, patch, subresource="status")  # (6)
    return Result(requeue_after=3600)  # (7)


async def copy(ctx: Context, shared: Unstructured, source: Unstructured, namespace: str) -> None:
    name = source.metadata.name

    def change(copied: Json) -> None:
        labels = copied["metadata"].setdefault("labels", {})
        if "uid" in copied["metadata"] and labels.get(ORIGIN) != origin_of(shared):
            raise ReconcileError(f"secret {name} in namespace {namespace} is not a copy")
        labels[ORIGIN] = origin_of(shared)
        copied["data"] = source.raw.get("data", {})

    named = {"metadata": {"name": name, "namespace": namespace}}
    result, _ = await create_or_patch(ctx.client, SECRETS, named, change)  # (5)
    if result is not OperationResult.UNCHANGED:
        ctx.event(shared, "Normal", "Copied", f"{result.value} in namespace {namespace}")  # (4)


async def delete_copies(ctx: Context, shared: Unstructured, keep: set[str]) -> None:
    for copied in ctx.store(ALL_SECRETS).by_index("origin", origin_of(shared)):  # (3)
        known = copied.metadata
        if known.namespace in keep and known.name == shared.raw["spec"]["secret"]:
            continue
        with contextlib.suppress(NotFoundError):
            await ctx.client.delete(SECRETS, known.name, known.namespace, uid=known.uid)  # (8)


def origin_of(shared: Unstructured) -> str:
    return f"{shared.metadata.namespace}.{shared.metadata.name}"


def for_secret(ctx: Context, secret: Unstructured) -> list[Key]:  # (9)
    keys = []
    for shared in ctx.store(SHARED).list():
        is_source = secret.metadata.key == (shared.metadata.namespace, shared.raw["spec"]["secret"])
        if is_source or secret.metadata.labels.get(ORIGIN) == origin_of(shared):
            keys.append(shared.metadata.key)
    return keys


def for_namespace(ctx: Context, _namespace: Unstructured) -> list[Key]:  # (9)
    return [shared.metadata.key for shared in ctx.store(SHARED).list()]


shared_secrets = operator.for_(SHARED, Changed(lambda shared: shared.metadata.generation))  # (11)
shared_secrets.watches(ALL_SECRETS, for_secret).watches(NAMESPACES, for_namespace)  # (9)
shared_secrets.finalizes(FINALIZER, clean_up).reconcile(reconcile)  # (2)

if __name__ == "__main__":
    sys.exit(operator.run())  # (10)
