"""Finalizers: the API server keeps a deleted object until `metadata.finalizers` is empty.

The rules of Kubernetes (https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/): add the name
before the first effect outside the object, clean up once `metadata.deletionTimestamp` is set, then remove the name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from trainop.runtime.client.client import Client
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.errors import ConflictError, NotFoundError
from trainop.runtime.objects.metadata import HasMetadata, Json
from trainop.runtime.objects.resource import Resource

TRIES = 5
"""Attempts to remove a finalizer; each further one follows a write by somebody else in between."""

LOOK_AGAIN = Result(requeue=True)
"""The cache does not show the finalizer yet."""

CleanUp: TypeAlias = Callable[[], Awaitable[Result | None]]
"""Undoes the effects of an object. Idempotent: it runs again if the process ends before the finalizer is removed.
Returns a `Result` with `requeue` or `requeue_after` while something is left, or raises to be retried with back-off."""


async def finalizing(
    client: Client, resource: Resource, obj: HasMetadata, finalizer: str, clean_up: CleanUp
) -> Result | None:
    """To be called first in a reconcile with the cached object. None: the object lives and has the finalizer, so go on.
    Otherwise the reconcile ends with the `Result` returned:

    - A live object without the finalizer gets it by a patch that names the UID and resourceVersion of `obj`. The
      reconcile runs again when the cache shows it (`requeue`), also after a conflict; so no effect precedes it.
    - For a deleted object with the finalizer, `clean_up` runs. If that has finished, the finalizer is removed; whatever
      else is in `metadata.finalizers` by then stays.
    - For a deleted object without it, nothing is left to do.

    An object that is gone, or replaced by one with another UID, is not touched. `finalizer` is a qualified name such as
    `example.com/bucket`. Raises what `clean_up` and `Client` raise; `ConflictError` only if the finalizer could not be
    removed in five attempts.
    """
    metadata = obj.metadata
    ours = finalizer in metadata.finalizers
    if not metadata.terminating:
        return None if ours else await _add(client, resource, obj, finalizer)
    if not ours:
        return DONE
    result = await clean_up()
    if result is not None and result != DONE:
        return result
    await _remove(client, resource, obj, finalizer)
    return DONE


async def _add(client: Client, resource: Resource, obj: HasMetadata, finalizer: str) -> Result:
    known = obj.metadata
    patch = _patch(known.uid, known.resource_version, [*known.finalizers, finalizer])
    try:
        await client.patch(resource, known.name, known.namespace, patch)
    except ConflictError:
        return LOOK_AGAIN
    except NotFoundError:
        return DONE
    return LOOK_AGAIN


async def _remove(client: Client, resource: Resource, obj: HasMetadata, finalizer: str) -> None:
    known = obj.metadata
    version, finalizers = known.resource_version, list(known.finalizers)
    with contextlib.suppress(NotFoundError):
        for remaining in reversed(range(TRIES)):
            left = [name for name in finalizers if name != finalizer]
            try:
                await client.patch(resource, known.name, known.namespace, _patch(known.uid, version, left))
                break
            except ConflictError:
                if not remaining:
                    raise
            current = (await client.get(resource, known.name, known.namespace))["metadata"]
            version, finalizers = current["resourceVersion"], current.get("finalizers") or []
            if current["uid"] != known.uid or finalizer not in finalizers:
                break


def _patch(uid: str, version: str, finalizers: list[str]) -> Json:
    """A merge patch, refused with a conflict for any other object or version."""
    return {"metadata": {"uid": uid, "resourceVersion": version, "finalizers": finalizers}}
