"""Deletes finished jobs of earlier runs with the same `--data` folder, so that they can be run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from trainop.run.check import Job
from trainop.runtime import Client, ConflictError, Json, NotFoundError

_DELETE_TIMEOUT = 60.0
_POLL_INTERVAL = 0.05


async def delete_finished(client: Client, jobs: Sequence[Job], report: Callable[[str], None]) -> None:
    """Deletes the jobs that have finished, with their pods. Unfinished jobs continue.

    Raises `OSError` if a job is not removed within 60 s.
    """
    for document, framework in jobs:
        try:
            found = await client.get(framework.resource, document.key.name, document.key.namespace)
        except NotFoundError:
            continue
        result = finished(found)
        if not result:
            report(f"{document.kind} {document.key.name} did not finish in an earlier run: it continues")
            continue
        report(f"{document.kind} {document.key.name} finished in an earlier run ({result}): it is run again")
        try:
            async with asyncio.timeout(_DELETE_TIMEOUT):
                await _delete(client, (document, framework), found["metadata"]["uid"])
        except TimeoutError:
            raise OSError(f"{document.kind} {document.key.name} of an earlier run cannot be removed") from None


def finished(job: Json) -> str:
    """The terminal condition with its time, e.g. `Succeeded at 2025-06-01T12:00:00Z`; empty if not finished."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in {"Succeeded", "Failed"} and condition["status"] == "True":
            return f"{condition['type']} at {condition.get('lastTransitionTime')}"
    return ""


async def _delete(client: Client, job: Job, uid: str) -> None:
    """Returns when the job and all its pods are deleted."""
    document, framework = job
    place = (framework.resource, document.key.name, document.key.namespace)
    try:
        await client.delete(*place, uid=uid, propagation="Foreground")
        while True:
            await client.get(*place)
            await asyncio.sleep(_POLL_INTERVAL)
    except (NotFoundError, ConflictError):
        return
