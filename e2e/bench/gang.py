"""The simulated gang scheduler: Volcano's PodGroups, each of which has room at once."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import msgspec

from trainop.engine.gang_scheduler import VOLCANO_GROUPS
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import Json, Key, PartialObject

CONCURRENCY = 8


def podgroup_crd() -> Json:
    """As much of Volcano's CRD as the operators need. Volcano 1.10 has no subresource for the status either."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": VOLCANO_GROUPS.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
    }
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(VOLCANO_GROUPS)},
        "spec": {"group": VOLCANO_GROUPS.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


@dataclass
class GangScheduler:
    """Sets the phase of each new PodGroup to Inqueue, for which operators wait before they create pods."""

    client: Client
    admitted: int = 0
    _waiting: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        """Watches PodGroups and admits them until cancelled."""
        decode = msgspec.json.Decoder(PartialObject).decode
        groups = Informer(self.client, VOLCANO_GROUPS, decode, metadata_only=True)
        groups.add_handler(self)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(groups.run())
            for _ in range(CONCURRENCY):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._waiting.get()
            body = {"status": {"phase": "Inqueue"}}
            with contextlib.suppress(NotFoundError):  # the operator has deleted it
                await self.client.patch(VOLCANO_GROUPS, key.name, key.namespace, body, metadata_only=True)
                self.admitted += 1

    # Informer handler

    def add(self, obj: PartialObject, initial: bool) -> None:
        self._waiting.put_nowait(obj.metadata.key)

    def update(self, old: PartialObject, new: PartialObject) -> None:
        """Ignored: the operator changes nothing that matters here."""

    def delete(self, obj: PartialObject | None, key: Key, final_state_unknown: bool) -> None:
        """Ignored: there is nothing to clean up."""
