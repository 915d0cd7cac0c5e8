"""Read-modify-write of one object with retries on conflict (client-go `retry.RetryOnConflict`)."""

from __future__ import annotations

from trainop.runtime.client.client import Client
from trainop.runtime.errors import ConflictError
from trainop.runtime.objects.jsonpatch import equal_json
from trainop.runtime.objects.metadata import Change, Json, Resource, apply_change

TRIES = 5


async def update(
    client: Client,
    resource: Resource,
    name: str,
    namespace: str | None,
    change: Change,
    *,
    subresource: str | None = None,
) -> Json:
    """Reads the object, applies `change` to a copy, replaces the object, and returns it as stored.

    `change` edits its argument in place and returns None, or returns the new object. If it changes nothing, nothing is
    written. With `subresource="status"`, only the status is written.

    A conflict restarts from the read; there are five attempts in all. Raises `ConflictError` if the last one fails (a
    reconciler may then return `Result(requeue=True)`), and what `Client` raises.
    """
    for remaining in reversed(range(TRIES)):
        current = await client.get(resource, name, namespace)
        wanted = apply_change(current, change)
        if equal_json(wanted, current):
            return current
        try:
            return await client.replace(resource, wanted, subresource=subresource)
        except ConflictError:
            if not remaining:
                raise
    raise AssertionError("unreachable: the last try returns or raises")
