"""Finalizers: cleanup before an object is deleted.

The API server keeps a deleted object until `metadata.finalizers` is empty. A controller therefore adds its finalizer
before the first external effect, cleans up once `metadata.deletionTimestamp` is set, and then removes the finalizer
(https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from trainop.runtime.client.client import Client
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.errors import ConflictError, NotFoundError
from trainop.runtime.objects.metadata import HasMetadata, Json, Resource

TRIES = 5
"""Maximum attempts to remove a finalizer; each further attempt follows a concurrent write."""

REQUEUE = Result(requeue=True)
"""Returned until the cache reflects the finalizer."""

CleanUp: TypeAlias = Callable[[], Awaitable[Result | None]]
"""Removes the external effects of an object. Must be idempotent: it runs again if the process ends before the finalizer
is removed. Returns a `Result` with `requeue` or `requeue_after` while it is incomplete; an exception causes a retry
with back-off."""


async def finalizing(
    client: Client, resource: Resource, obj: HasMetadata, finalizer: str, clean_up: CleanUp
) -> Result | None:
    """Adds the finalizer, or cleans up and removes it. Call first in a reconcile, with the cached object.

    Returns None if the object is not being deleted and has the finalizer: the reconcile continues. Otherwise the
    reconcile must end with the returned `Result`:

    - An object without the finalizer gets it, by a patch with the UID and resourceVersion of `obj`. The reconcile is
      requeued until the cache reflects it, so that no effect precedes the finalizer.
    - For an object being deleted, `clean_up` runs. When it is complete, the finalizer is removed; other finalizers
      stay.
    - For an object being deleted without the finalizer, nothing is done.

    An object that no longer exists, or was replaced by one with another UID, is not touched. `finalizer` is a qualified
    name such as `example.com/bucket`. Raises what `clean_up` and `Client` raise; `ConflictError` only if the finalizer
    could not be removed in five attempts.
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
        return REQUEUE
    except NotFoundError:
        return DONE
    return REQUEUE


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
    """A merge patch that causes a conflict for any other object or version."""
    return {"metadata": {"uid": uid, "resourceVersion": version, "finalizers": finalizers}}
