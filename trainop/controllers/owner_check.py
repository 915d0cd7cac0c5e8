"""Jobs that may be gone although the cache still shows them.

A child that vanishes may be the garbage collector's work: then its job is gone, and the watch of jobs is just behind
that of pods. Children made anew would vanish again, as fast as the API server answers. So the job itself is looked at
before they are made.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from trainop.runtime.client.client import Client
from trainop.runtime.client.decoding import read_object
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import Metadata, Unstructured
from trainop.runtime.objects.resource import Resource

log = structlog.get_logger(__name__)


REMEMBERED = 1000
"""Jobs in doubt. Those whose children vanished longest ago are forgotten: their end has long been seen."""


class OwnerCheck:
    """Of one controller, which doubts also while another replica leads: it may lead next."""

    def __init__(self, client: Client, resource: Resource) -> None:
        self._client = client
        self._resource = resource
        self._doubted: dict[str, None] = {}
        """UIDs of jobs, in the order in which a child of each was first seen to go."""
        self._own: dict[str, set[str]] = {}
        """UIDs of children that we delete ourselves."""

    def forget(self, uid: str) -> None:
        self._doubted.pop(uid, None)
        self._own.pop(uid, None)

    def expect(self, job: Unstructured, children: Collection[str]) -> None:
        """We are about to delete these, so that their end tells nothing of the job."""
        if children:
            self._own.setdefault(job.metadata.uid, set()).update(children)

    def observe_deleted(self, child: Metadata) -> None:
        """For the delete handler of each child kind."""
        owner = child.controller
        if owner is None:
            return
        own = self._own.get(owner.uid, set())
        if child.uid in own:
            own.discard(child.uid)
            return
        self._doubted[owner.uid] = None
        if len(self._doubted) > REMEMBERED:
            del self._doubted[next(iter(self._doubted))]

    async def confirm(self, job: Unstructured) -> bool:
        """Whether the job may have new children, for it is there, and as it was seen. Asks the API server if that is in
        doubt, and raises its errors."""
        metadata = job.metadata
        if metadata.uid not in self._doubted:
            return True
        try:
            found = await self._client.get(self._resource, metadata.name, metadata.namespace)
        except NotFoundError:
            return False
        live = read_object(self._resource, found).metadata
        if (live.uid, live.resource_version) != (metadata.uid, metadata.resource_version):
            log.debug("job has changed or is gone, the cache does not show it yet")
            return False
        self._doubted.pop(metadata.uid, None)
        return True
