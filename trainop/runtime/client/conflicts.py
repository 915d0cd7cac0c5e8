"""Read, change, write: again and again until nobody else wrote in between."""

from __future__ import annotations

from trainop.runtime.client.client import Client
from trainop.runtime.errors import ConflictError
from trainop.runtime.objects.jsonpatch import equal_json
from trainop.runtime.objects.metadata import Change, Json, apply_change
from trainop.runtime.objects.resource import Resource

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
    """The object as it is after `change`, which gets a copy of what the API server has, and changes it in place (and
    returns None) or returns what should be. Nothing is written if that is the same, and only `status` is written with
    `subresource="status"`.

    After a conflict both start again, five times in all. Raises `ConflictError` then, which a reconcile may answer with
    `Result(requeue=True)`, and whatever else `Client` raises.
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
