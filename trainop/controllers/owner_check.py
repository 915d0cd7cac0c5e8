"""Reads jobs and children from the API server where the caches may be outdated.

Above all it checks that a job still exists before children are recreated.

When children disappear that the operator did not delete, the garbage collector may have deleted them together with
their job, and the watch of jobs may lag behind that of pods. Recreated children would be collected again, in a hot
loop. So the job is read from the API server first.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from trainop.controllers.job_state import JobStates
from trainop.engine.actions import Adopt
from trainop.runtime import ApiError, Client, Metadata, NotFoundError, ReconcileError, Resource, Unstructured
from trainop.runtime.lowlevel import read_object

log = structlog.get_logger(__name__)


class AdoptionError(ReconcileError):
    """An orphan could not be adopted."""

    def __init__(self, job: Unstructured, orphan: Adopt, reason: str) -> None:
        """With upstream's message."""
        name = f"{job.metadata.namespace}/{orphan.name}"
        super().__init__(f"can't adopt {orphan.resource.kind} {name} ({orphan.uid}): {reason}")


class OwnerCheck:
    """One per controller. Also tracks deletions while on standby, because the replica may become leader."""

    def __init__(self, client: Client, resource: Resource, states: JobStates) -> None:
        self._client = client
        self._resource = resource
        self._states = states

    def expect_deleted(self, job: Unstructured, children: Collection[str]) -> None:
        """Registers children that the operator is about to delete: their deletion is no sign that the job is gone."""
        if children:
            state = self._states.ensure(job.metadata.uid)
            state.deleting = (state.deleting or set()).union(children)

    def observe_deleted(self, child: Metadata) -> None:
        """Call from the delete handler of each child kind."""
        owner = child.controller
        if owner is None:
            return
        state = self._states.observe(owner.uid)
        if state.deleting and child.uid in state.deleting:
            state.deleting.discard(child.uid)
        else:
            state.owner_unconfirmed = True

    async def confirm(self, job: Unstructured) -> bool:
        """Whether children may be created: the job exists, and the cache holds its current version. Reads the job from
        the API server if a child has disappeared, and raises its errors."""
        metadata, state = job.metadata, self._states.find(job.metadata.uid)
        if state is None or not state.owner_unconfirmed:
            return True
        try:
            found = await self._client.get(self._resource, metadata.name, metadata.namespace)
        except NotFoundError:
            return False
        live = read_object(self._resource, found).metadata
        if (live.uid, live.resource_version) != (metadata.uid, metadata.resource_version):
            log.debug("job changed or deleted, cache is stale")
            return False
        state.owner_unconfirmed = False
        return True


async def find_obstacle(client: Client, resource: Resource, job: Unstructured) -> str | None:
    """Why the job may not adopt children; None if it may. Reads the job from the API server, because a deleted or
    terminating job must not get new children (kubernetes `pkg/controller/controller_ref_manager.go`)."""
    key = job.metadata.key
    try:
        found = await client.get(resource, key.name, key.namespace)
    except (ApiError, ConnectionError, TimeoutError) as error:
        return f"can't recheck DeletionTimestamp: {error}"
    live = read_object(resource, found).metadata
    if live.uid != job.metadata.uid:
        return f"original Job {key} is gone: got uid {live.uid}, wanted {job.metadata.uid}"
    if live.terminating:
        return f"{key} has just been deleted at {live.deletion_timestamp}"
    return None


async def controls_live(client: Client, resource: Resource, name: str, job: Unstructured) -> bool:
    """Whether the API server has an object of this name that the job controls. Raises API errors."""
    try:
        found = await client.get(resource, name, job.metadata.namespace)
    except NotFoundError:
        return False
    return read_object(resource, found).metadata.controlled_by(job.metadata.uid)
