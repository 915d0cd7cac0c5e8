"""The caches of gang scheduling: PodGroups and PriorityClasses. They exist only if it is on.

PodGroups are watched without a label selector, because those of the former Go operators have no labels. Only the few
fields that plans read are kept of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec
import structlog

from trainop.engine.fields import conditions_of
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.seen import ChildMetadata, PodGroup, PriorityClass, SeenGang, Snapshot
from trainop.engine.status import GANG_READY
from trainop.engine.steps.gang import UNAVAILABLE
from trainop.runtime import (
    Cache,
    Changed,
    Client,
    HasMetadata,
    Informer,
    Key,
    Metadata,
    NotFoundError,
    Resource,
    Unstructured,
)

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)

CRD_MISSING = "crd might be missing, please install crd"
"""The words of training-operator."""

decode_pod_group: Callable[[bytes], PodGroup] = msgspec.json.Decoder(PodGroup).decode
decode_priority_class: Callable[[bytes], PriorityClass] = msgspec.json.Decoder(PriorityClass).decode

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GangCaches:
    """Read access to the objects of a gang scheduler."""

    scheduler: GangScheduler
    groups: Informer[PodGroup]
    classes: Informer[PriorityClass]
    """Forbidden in an installation without cluster-wide permissions."""

    def show(self, seen: Snapshot) -> Snapshot:
        """Adds what a plan reads, without the last refusal."""
        key, store = seen.job.metadata.key, self.groups.store
        error = store.unreadable.get(key)
        remains = error.remains if error else None
        found = PodGroup(_child_metadata(remains.metadata)) if remains else store.get(key)
        return self._add(seen, found, fault=error.fault if error else "")

    async def show_live(self, client: Client, seen: Snapshot) -> Snapshot:
        """As `show`, with the PodGroup read from the API server. Raises API errors."""
        if self._obstacle(
            seen.job.metadata.namespace
        ):  # the read would show what no watch confirms, or be forbidden too
            return self.show(seen)
        name, namespace = seen.job.metadata.name, seen.job.metadata.namespace
        try:
            found = await client.get(self.groups.resource, name, namespace)
            return self._add(seen, msgspec.convert(found, PodGroup))
        except NotFoundError:
            return self._add(seen, None)
        except msgspec.ValidationError as error:
            return self._add(seen, None, fault=str(error))

    def _add(self, seen: Snapshot, group: PodGroup | None, fault: str = "") -> Snapshot:
        companions = {**seen.companions, self.groups.resource: () if group is None else (group,)}
        gang = SeenGang(
            unavailable=self._obstacle(seen.job.metadata.namespace), fault=fault, priorities=self._priorities()
        )
        return replace(seen, companions=companions, gang=gang)

    def _obstacle(self, namespace: str) -> str:
        """Why PodGroups cannot be read; empty if they can."""
        resource = self.groups.resource
        if not self.groups.served:
            kind = f"{resource.api_version} {resource.kind}"
            if self.scheduler.absence:
                return f"the API server does not serve {kind}: {self.scheduler.absence}"
            return f"the CustomResourceDefinition {resource} ({kind}) is not installed"
        if self.groups.permitted_in(namespace):
            return ""
        return f"the operator has no permission to list and watch {resource}"

    def _priorities(self) -> dict[str, int] | None:
        """A cache that is no longer kept up to date will do, because PriorityClasses never change their value."""
        if self.classes.forbidden and not len(self.classes.store):
            return None
        return {each.metadata.name: each.value for each in self.classes.store.list()}


def _child_metadata(metadata: Metadata) -> ChildMetadata:
    """As decoded from the object itself."""
    return msgspec.convert(msgspec.to_builtins(metadata), ChildMetadata)


def open_gang_caches(scheduler: GangScheduler, cache: Cache) -> GangCaches:
    """Opens the informers, which all controllers share."""
    groups = cache.informer(scheduler.groups, decode_pod_group, optional=True)
    classes = cache.informer(PRIORITY_CLASSES, decode_priority_class)
    groups.may_be_forbidden = classes.may_be_forbidden = True
    return GangCaches(scheduler, groups, classes)


def waits_for_groups(job: Unstructured) -> bool:
    """Whether the status of the job says that it waits until PodGroups can be read."""
    return any((each.get("type"), each.get("reason")) == (GANG_READY, UNAVAILABLE) for each in conditions_of(job))


def _relevant(group: PodGroup) -> object:
    return group.metadata.owner_references, group.metadata.terminating, group.spec, group.status


GROUP_CHANGES = Changed(_relevant)
"""Drops updates of PodGroups that no plan depends on, such as their counters of running pods."""


class NoKeys:
    """Maps nothing: a PriorityClass is read when a PodGroup is made, and never changes its value."""

    def keys(self, _obj: HasMetadata, /) -> Iterable[Key]:
        return ()

    def keys_of_lost(self, _key: Key, /) -> Iterable[Key]:
        return ()


class CrdCheck:
    """Reports once, after the start, if the kind of the gang scheduler is not served. Jobs then wait for it."""

    def __init__(self, caches: GangCaches) -> None:
        self._groups = caches.groups
        self._absence = caches.scheduler.absence

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._groups.wait_synced()
        if not self._groups.served:
            resource = self._groups.resource
            what = (
                f"the kind is not served: {self._absence}"
                if self._absence
                else "crd might be missing, please install crd"
            )
            log.error(what, apiVersion=resource.api_version, kind=resource.kind)
        await asyncio.Event().wait()
