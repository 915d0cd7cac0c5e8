"""The caches of the operator's own integration with Kueue. They are opened only for kinds that it queues.

Workloads are watched without a label selector: those of Kueue's own integrations have other labels, and a job with one
of them is not queued a second time. Only the few fields that plans read are kept of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from trainop.controllers.gang import PRIORITY_CLASSES, decode_priority_class
from trainop.engine.kueue import (
    FLAVORS,
    JOB_UID,
    QUEUE,
    WORKLOAD_CLASSES,
    WORKLOADS,
    Flavor,
    SeenQueue,
    Workload,
    WorkloadClass,
)
from trainop.engine.seen import PriorityClass, Snapshot
from trainop.runtime import Cache, Changed, Client, Informer, Unstructured, by_controller

decode_workload: Callable[[bytes], Workload] = msgspec.json.Decoder(Workload).decode
decode_flavor: Callable[[bytes], Flavor] = msgspec.json.Decoder(Flavor).decode
decode_class: Callable[[bytes], WorkloadClass] = msgspec.json.Decoder(WorkloadClass).decode


@dataclass(frozen=True, slots=True)
class QueueCaches:
    """Read access to the objects of Kueue, and to PriorityClasses."""

    workloads: Informer[Workload]
    flavors: Informer[Flavor]
    classes: Informer[WorkloadClass]
    priorities: Informer[PriorityClass]
    """Forbidden in an installation without cluster-wide permissions: classes then count as missing."""

    def show(self, seen: Snapshot) -> Snapshot:
        """Adds what the plan of a job reads."""
        uid, namespace = seen.job.metadata.uid, seen.job.metadata.namespace
        found = (each for each in self.workloads.store.by_index("owner", uid) if each.metadata.namespace == namespace)
        faults = (
            f"Workload {key.name} cannot be read: {error.fault}"
            for key, error in self.workloads.store.unreadable.items()
            if key.namespace == namespace and error.remains and error.remains.metadata.controlled_by(uid)
        )
        return self._add(seen, tuple(found), next(faults, ""))

    async def show_live(self, client: Client, seen: Snapshot) -> Snapshot:
        """As `show`, with the Workloads read from the API server. Raises API errors."""
        if self.obstacle(seen.job.metadata.namespace):
            return self.show(seen)
        uid = seen.job.metadata.uid
        listing = await client.list(WORKLOADS, seen.job.metadata.namespace, label_selector=f"{JOB_UID}={uid}")
        try:
            found = [msgspec.convert(each, Workload) for each in listing.items]
        except msgspec.ValidationError as error:
            return self._add(seen, (), f"a Workload of the job cannot be read: {error}")
        return self._add(seen, tuple(each for each in found if each.metadata.controlled_by(uid)))

    def _add(self, seen: Snapshot, workloads: tuple[Workload, ...], fault: str = "") -> Snapshot:
        if QUEUE not in seen.job.metadata.labels:
            return replace(seen, queue=SeenQueue(workloads=workloads))
        priorities = self.priorities.store.list()
        queue = SeenQueue(
            unavailable=self.obstacle(seen.job.metadata.namespace) or fault,
            workloads=workloads,
            flavors=_by_name(self.flavors),
            classes={each.metadata.name: each.value for each in self.classes.store.list()},
            priorities={each.metadata.name: each.value for each in priorities},
            default_class=next((each.metadata.name for each in priorities if each.global_default), ""),
        )
        return replace(seen, queue=queue)

    def obstacle(self, namespace: str) -> str:
        """Why jobs of a namespace cannot be queued; empty if they can."""
        for informer in (self.workloads, self.flavors):
            resource = informer.resource
            if not informer.permitted_in(namespace):
                return f"the operator has no permission to list and watch {resource}, which its component kueue grants"
            if not informer.served:
                what = f"{resource.api_version} {resource.kind}"
                return f"the API server does not serve {what}, which Kueue 0.15 or later has"
        return ""


def _by_name(informer: Informer[Any]) -> Mapping[str, Any]:
    return {each.metadata.name: each for each in informer.store.list()}


def open_queue_caches(cache: Cache) -> QueueCaches:
    """Opens the informers, which all controllers share."""
    owner = {"owner": by_controller}
    found = QueueCaches(
        cache.informer(WORKLOADS, decode_workload, indices=owner, optional=True, permission_optional=True),
        cache.informer(FLAVORS, decode_flavor, optional=True, permission_optional=True),
        cache.informer(WORKLOAD_CLASSES, decode_class, optional=True, permission_optional=True),
        cache.informer(PRIORITY_CLASSES, decode_priority_class),
    )
    informers: tuple[Informer[Any], ...] = (found.workloads, found.flavors, found.classes, found.priorities)
    for informer in informers:
        informer.may_be_forbidden = True
    return found


def _relevant(workload: Workload) -> object:
    metadata = workload.metadata
    return metadata.owner_references, metadata.annotations, metadata.terminating, workload.spec, workload.status


WORKLOAD_CHANGES = Changed(_relevant)
"""Drops updates of Workloads that no plan depends on."""


def waits_in_queue(job: Unstructured) -> bool:
    """Whether the job has a queue."""
    return QUEUE in job.metadata.labels
