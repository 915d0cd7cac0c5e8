"""A job as `kubectl apply` makes it, for the tests of the operator's rights."""

from __future__ import annotations

import copy

from tests.server.world import Json, World
from trainop.runtime.objects.metadata import LAST_APPLIED


def live_as_applied(world: World, jobs: str, job: Json) -> None:
    """The job gets a status. As the cache does not hold the annotation of `kubectl apply`, that is a patch."""
    applied = copy.deepcopy(job)
    metadata = applied["metadata"]
    metadata |= {"name": "applied", "annotations": {**metadata.get("annotations", {}), LAST_APPLIED: "{}"}}
    path = f"{jobs}/{metadata['name']}"
    world.ask("POST", jobs, applied)
    world.wait(lambda: world.ask("GET", path).get("status"), f"the status of {path}")
    world.ask("DELETE", path)
    world.wait(lambda: world.try_to("GET", path).status == 404, f"the deletion of {path}")
