"""A job that has finished on the same data before: it makes room for the one that is asked for now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from trainop.run.check import Job
from trainop.runtime.client.client import Client
from trainop.runtime.errors import ConflictError, NotFoundError
from trainop.runtime.objects.metadata import Json

_PATIENCE = 60.0
_LOOK_AGAIN = 0.05


async def clear_finished(client: Client, jobs: Sequence[Job], say: Callable[[str], None]) -> None:
    """Deletes those that have ended, with their pods; those that have not will continue.

    Raises `OSError` for what does not go away.
    """
    for document, framework in jobs:
        try:
            found = await client.get(framework.resource, document.key.name, document.key.namespace)
        except NotFoundError:
            continue
        ended = finished(found)
        if not ended:
            say(f"{document.kind} {document.key.name} has not finished here before: it continues")
            continue
        say(f"{document.kind} {document.key.name} has run here before ({ended}): it runs anew")
        try:
            async with asyncio.timeout(_PATIENCE):
                await _delete(client, (document, framework), found["metadata"]["uid"])
        except TimeoutError:
            raise OSError(f"{document.kind} {document.key.name} of an earlier run cannot be removed") from None


def finished(job: Json) -> str:
    """Succeeded or Failed, with the time; nothing if it has not ended."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in {"Succeeded", "Failed"} and condition["status"] == "True":
            return f"{condition['type']} at {condition.get('lastTransitionTime')}"
    return ""


async def _delete(client: Client, job: Job, uid: str) -> None:
    """Returns when the job is gone, and every pod of it before."""
    document, framework = job
    place = (framework.resource, document.key.name, document.key.namespace)
    try:
        await client.delete(*place, uid=uid, propagation="Foreground")
        while True:
            await client.get(*place)
            await asyncio.sleep(_LOOK_AGAIN)
    except (NotFoundError, ConflictError):
        return
