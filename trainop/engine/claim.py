"""Which of the objects seen belong to the job (client-go's ControllerRefManager, for pods and services alike)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Generic, TypeVar

from trainop.engine.actions import Adopt, Release
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME, Framework, selector
from trainop.engine.job import Job
from trainop.engine.manifests import child_name
from trainop.engine.seen import Pod, Service, Snapshot
from trainop.engine.slots import read_place
from trainop.runtime.clock import read_time
from trainop.runtime.objects.metadata import Metadata

MAX_NAMES = 10
"""Objects that an event names."""

ChildT = TypeVar("ChildT", Pod, Service)


@dataclass(slots=True)
class Claimed(Generic[ChildT]):
    """The objects of one kind, sorted by whose they are."""

    ours: list[ChildT] = field(default_factory=list)
    """Controlled by the job's UID."""
    claims: list[Adopt | Release] = field(default_factory=list)
    orphans: dict[str, ChildT] = field(default_factory=dict)
    """By name: orphans about to be adopted. They keep their names, and count only in a later pass, once they are ours:
    the API server may refuse the adoption."""
    being_removed: dict[str, ChildT] = field(default_factory=dict)
    """By name: not ours, but terminating or a predecessor's, so that the name will be free in a while."""
    foreign: dict[str, ChildT] = field(default_factory=dict)
    """By name: not ours, and here to stay."""
    unexpected: list[Metadata] = field(default_factory=list)
    """Those of them that have the job's labels nevertheless."""

    def uids(self) -> Iterator[str]:
        """Of those that are ours, or were and may be again."""
        return (child.metadata.uid for child in (*self.ours, *self.orphans.values()))


@dataclass(slots=True)
class Children:
    pods: Claimed[Pod]
    services: Claimed[Service]


def claim(framework: Framework, job: Job, seen: Snapshot) -> Children:
    """Sort what is seen. The job itself is not being deleted."""
    labels = selector(framework, job.name)
    return Children(
        pods=_claim(framework, job, labels, "Pod", seen.pods),
        services=_claim(framework, job, labels, "Service", seen.services),
    )


def _claim(
    framework: Framework, job: Job, labels: dict[str, str], kind: str, objects: Iterable[ChildT]
) -> Claimed[ChildT]:
    claimed: Claimed[ChildT] = Claimed()
    operator, name = labels[OPERATOR_NAME], labels[JOB_NAME]
    uid = job.metadata.uid
    for child in objects:
        metadata = child.metadata
        owner, found = metadata.controller, metadata.labels
        matches = found.get(OPERATOR_NAME) == operator and found.get(JOB_NAME) == name
        if owner is not None and owner.uid == uid:
            if matches:
                claimed.ours.append(child)
            else:
                claimed.claims.append(Release(kind, metadata.name, metadata.uid))
                claimed.foreign[metadata.name] = child
        elif owner is None and matches and not metadata.terminating and _may_adopt(job, metadata):
            claimed.claims.append(Adopt(kind, metadata.name, metadata.uid))
            claimed.orphans[metadata.name] = child
        elif metadata.terminating or _belongs_to_previous_job(framework, job, metadata):
            claimed.being_removed[metadata.name] = child
        else:
            claimed.foreign[metadata.name] = child
            if matches:
                claimed.unexpected.append(metadata)
    return claimed


def _may_adopt(job: Job, orphan: Metadata) -> bool:
    """Only what the job itself may have made and lost: it has the name of its slot, and is no older than the job.

    Labels alone prove nothing, as everybody who may create pods can write them: a pod that waits for a job yet to be
    created would become its master, and end it. What cannot be told apart is a pod that somebody makes under the name
    of a slot while the job is there (or within the same second): whoever may create pods in a namespace can take a slot
    before the operator does, with or without the owner reference. Only RBAC and admission policies prevent that.
    """
    label, index = read_place(orphan.labels)
    role = next((role for role in job.roles if role.label == label), None)
    if role is None or index is None or orphan.name != child_name(job.name, role, index):
        return False
    created, job_created = read_time(orphan.creation_timestamp), read_time(job.metadata.creation_timestamp)
    return job_created is None or (created is not None and created >= job_created)


def join_names(objects: Iterable[Metadata]) -> str:
    """The names of the oldest of them: a text that stays the same while more come."""
    oldest = nsmallest(MAX_NAMES + 1, ((each.creation_timestamp or "", each.name) for each in objects))
    names = ", ".join(name for _, name in oldest[:MAX_NAMES])
    return f"{names} and others" if len(oldest) > MAX_NAMES else names


def _belongs_to_previous_job(framework: Framework, job: Job, metadata: Metadata) -> bool:
    """Its owner was an earlier job of the same kind and name, so that garbage collection is about to remove it."""
    owner = metadata.controller
    return owner is not None and owner.kind == framework.kind and owner.name == job.name
