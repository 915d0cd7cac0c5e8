"""Jobs that may be gone although the cache still shows them.

A child that vanishes may be the garbage collector's work: then its job is gone, and the watch of jobs is just behind
that of pods. Children made anew would vanish again, as fast as the API server answers. So the job itself is looked at
before they are made.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from trainop.controllers.job_state import JobStates
from trainop.runtime.client.client import Client
from trainop.runtime.client.decoding import read_object
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import Metadata, Unstructured
from trainop.runtime.objects.resource import Resource

log = structlog.get_logger(__name__)


class OwnerCheck:
    """Of one controller, which doubts also while another replica leads: it may lead next."""

    def __init__(self, client: Client, resource: Resource, states: JobStates) -> None:
        self._client = client
        self._resource = resource
        self._states = states

    def expect(self, job: Unstructured, children: Collection[str]) -> None:
        """We are about to delete these, so that their end tells nothing of the job."""
        if children:
            state = self._states.ensure(job.metadata.uid)
            state.deleting = (state.deleting or set()).union(children)

    def observe_deleted(self, child: Metadata) -> None:
        """For the delete handler of each child kind."""
        owner = child.controller
        if owner is None:
            return
        state = self._states.observe(owner.uid)
        if state.deleting and child.uid in state.deleting:
            state.deleting.discard(child.uid)
        else:
            state.owner_in_doubt = True

    async def confirm(self, job: Unstructured) -> bool:
        """Whether the job may have new children, for it is there, and as it was seen. Asks the API server if that is in
        doubt, and raises its errors."""
        metadata, state = job.metadata, self._states.find(job.metadata.uid)
        if state is None or not state.owner_in_doubt:
            return True
        try:
            found = await self._client.get(self._resource, metadata.name, metadata.namespace)
        except NotFoundError:
            return False
        live = read_object(self._resource, found).metadata
        if (live.uid, live.resource_version) != (metadata.uid, metadata.resource_version):
            log.debug("job has changed or is gone, the cache does not show it yet")
            return False
        state.owner_in_doubt = False
        return True
