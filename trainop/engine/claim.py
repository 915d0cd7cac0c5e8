"""Ownership: which pods and services of a snapshot belong to the job (cf. client-go's ControllerRefManager).

Decides adoption and release, and which names are occupied by objects of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Generic, TypeVar

from trainop.engine.actions import Adopt, Release
from trainop.engine.addresses import child_name, service_name
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME, Framework, selector
from trainop.engine.job import Job
from trainop.engine.seen import Pod, Service, Snapshot
from trainop.engine.slots import read_place
from trainop.runtime import PODS, SERVICES, Metadata, Resource
from trainop.runtime.lowlevel import read_time

MAX_NAMES = 10
"""Names of objects that one event lists."""

ChildT = TypeVar("ChildT", Pod, Service)


@dataclass(slots=True)
class Claimed(Generic[ChildT]):
    """The objects of one kind by ownership."""

    owned: list[ChildT] = field(default_factory=list)
    """The job is their controller, by UID."""
    claims: list[Adopt | Release] = field(default_factory=list)
    """Adoptions and releases to carry out."""
    orphans: dict[str, ChildT] = field(default_factory=dict)
    """Name -> orphan about to be adopted. It occupies its name but is counted only in a later reconcile, because the
    API server may refuse the adoption."""
    being_removed: dict[str, ChildT] = field(default_factory=dict)
    """Name -> object of another owner that is terminating, or whose owner was a previous job of this name: the name
    will become free."""
    foreign: dict[str, ChildT] = field(default_factory=dict)
    """Name -> object of another owner that is not about to be deleted."""
    unexpected: list[Metadata] = field(default_factory=list)
    """The `foreign` objects that match the job's selector."""

    def uids(self) -> Iterator[str]:
        """The UIDs of owned objects and of orphans about to be adopted."""
        return (child.metadata.uid for child in (*self.owned, *self.orphans.values()))


@dataclass(slots=True)
class Children:
    """The pods and services of a snapshot by ownership."""

    pods: Claimed[Pod]
    services: Claimed[Service]
    shared_service: str = ""
    """The name of the service of the whole job, which may or may not exist."""

    @property
    def has_pods(self) -> bool:
        """Whether pods of the job exist, including pods that lost its labels or its owner reference."""
        return bool(self.pods.owned or self.pods.claims)


def claim(framework: Framework, job: Job, seen: Snapshot) -> Children:
    """Determines the ownership of all children in the snapshot. The job must not be terminating."""
    labels = selector(framework, job.name)
    return Children(
        pods=_claim(framework, job, labels, PODS, seen.pods),
        services=_claim(framework, job, labels, SERVICES, seen.services),
        shared_service=service_name(job.name),
    )


def _claim(
    framework: Framework, job: Job, labels: dict[str, str], resource: Resource, objects: Iterable[ChildT]
) -> Claimed[ChildT]:
    claimed: Claimed[ChildT] = Claimed()
    operator, name = labels[OPERATOR_NAME], labels[JOB_NAME]
    uid = job.metadata.uid
    for child in objects:
        metadata = child.metadata
        owner, found = metadata.controller, metadata.labels
        matches = found.get(OPERATOR_NAME) == operator and found.get(JOB_NAME) == name
        is_orphan = framework.adopts and owner is None and matches
        if metadata.controlled_by(uid):
            if matches:
                claimed.owned.append(child)
            else:
                claimed.claims.append(Release(resource, metadata.name, metadata.uid))
                claimed.foreign[metadata.name] = child
        elif is_orphan and not metadata.terminating and _may_adopt(job, resource, metadata):
            claimed.claims.append(Adopt(resource, metadata.name, metadata.uid))
            claimed.orphans[metadata.name] = child
        elif metadata.terminating or _belongs_to_previous_job(framework, job, metadata):
            claimed.being_removed[metadata.name] = child
        else:
            claimed.foreign[metadata.name] = child
            if matches:
                claimed.unexpected.append(metadata)
    return claimed


def _may_adopt(job: Job, resource: Resource, orphan: Metadata) -> bool:
    """Whether an orphan may have been created for this job: it has the name of its slot, or is the service of the whole
    job, and is not older than the job.

    Labels alone are no proof, because any user who may create pods can set them: a pod created before the job could
    become its master and end it. A pod that a user creates under the name of a slot during the job's lifetime (or in
    the second of its creation) cannot be distinguished; such a user could also set the owner reference. Only RBAC and
    admission policies prevent that.
    """
    if not (_is_in_slot(job, orphan) or (resource == SERVICES and is_shared_service(job.name, orphan))):
        return False
    created, job_created = read_time(orphan.creation_timestamp), read_time(job.metadata.creation_timestamp)
    return job_created is None or (created is not None and created >= job_created)


def _is_in_slot(job: Job, child: Metadata) -> bool:
    label, index = read_place(child.labels)
    role = next((role for role in job.roles if role.label == label), None)
    if role is not None and not role.indexed:
        index = 0
    return role is not None and index is not None and child.name == child_name(job.name, role, index)


def is_shared_service(job_name: str, service: Metadata) -> bool:
    """Whether a service of the job is that of the whole job: it has the name, and no labels of a replica."""
    return service.name == service_name(job_name) and read_place(service.labels) == (None, None)


def join_names(objects: Iterable[Metadata]) -> str:
    """The names of the `MAX_NAMES` oldest objects, so that the text does not change when newer ones appear."""
    oldest = nsmallest(MAX_NAMES + 1, ((each.creation_timestamp or "", each.name) for each in objects))
    names = ", ".join(name for _, name in oldest[:MAX_NAMES])
    return f"{names} and others" if len(oldest) > MAX_NAMES else names


def _belongs_to_previous_job(framework: Framework, job: Job, metadata: Metadata) -> bool:
    """Whether its owner is a previous job of the same kind and name: garbage collection is about to delete it."""
    owner = metadata.controller
    return owner is not None and owner.kind == framework.kind and owner.name == job.name
