"""Several jobs at once, and a check by watch history that none of their pods was created twice."""

from __future__ import annotations

import json
from collections import Counter

from tests.server.world import CORE, Json, World, replicas


def names(jobs: int, workers: int) -> set[str]:
    return {f"j{job}-worker-{worker}" for job in range(jobs) for worker in range(workers)}


def create_jobs(world: World, jobs: int, workers: int) -> None:
    for number in range(jobs):
        world.create_job(f"j{number}", {"Worker": replicas(workers)})


def uids(pods: dict[str, Json]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def version(world: World) -> int:
    """The current resourceVersion of the server."""
    return int(world.ask("GET", f"{CORE}/pods")["metadata"]["resourceVersion"])


def pods_made(world: World, since: int) -> Counter[str]:
    """The number of pods created under each name since a resourceVersion, deleted ones included.

    The server must not have restarted since then, because its watch cache would have lost the history.
    """
    body = world.ask("GET", f"{CORE}/pods?watch=1&timeoutSeconds=1&resourceVersion={since}")
    # a single line is a JSON document, which `ask` has already decoded
    events = [body] if isinstance(body, dict) else [json.loads(line) for line in str(body).splitlines()]
    assert all(event["type"] != "ERROR" for event in events), events
    return Counter(event["object"]["metadata"]["name"] for event in events if event["type"] == "ADDED")
