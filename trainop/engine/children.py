"""The pods and services of a job: how the caches find them, which of them belong to the job (cf. client-go's
ControllerRefManager), and which replica slot each pod holds.

Ownership decides adoption and release, and which names are occupied by objects of others. A slot is a role and an
index, and at most one pod of the job holds it: pods are assigned to slots by their labels and their name. Tallies,
restarts and scaling are decided per slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from typing import Generic, NamedTuple, TypeVar

import msgspec

from trainop.engine.actions import Adopt, Event, Release
from trainop.engine.addresses import child_name, child_namer, service_name
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE, Framework, Tally, selector
from trainop.engine.job import Job, Role
from trainop.engine.seen import Pod, Service, Snapshot, UnreadablePod
from trainop.runtime import PODS, SERVICES, Decoder, HasMetadata, Metadata, Resource
from trainop.runtime.lowlevel import MAX_DETAIL, cut, read_time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChildSelection:
    """The labels of the pods and services of a kind, and their decoders."""

    watch: str
    """The label selector of the watches: only children that it matches are cached."""
    controller_label: str
    """The label whose value is the name of the controller."""
    job_label: str
    """The label whose value is the name of the job."""
    constant_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of all children."""
    decode_pod: Decoder[Pod]
    decode_service: Decoder[Service]

    def labels(self, controller: str, job_name: str) -> dict[str, str]:
        """The labels of all pods and services of a job."""
        own = {self.controller_label: controller, self.job_label: job_name.replace("/", "-")}
        return {**self.constant_labels, **own}

    def by_job(self, child: HasMetadata) -> Iterable[str]:
        """Index function: the job that the labels of a child name."""
        metadata = child.metadata
        controller, job = metadata.labels.get(self.controller_label), metadata.labels.get(self.job_label)
        return () if controller is None or job is None else (f"{metadata.namespace}/{controller}/{job}",)

    def index_value(self, namespace: str, controller: str, job_name: str) -> str:
        """What `by_job` yields for the children of a job."""
        return f"{namespace}/{controller}/{job_name.replace('/', '-')}"

    def is_of(self, controller: str, child: Metadata) -> bool:
        """Whether the labels of a child name this controller, so that the caches have it."""
        return child.labels.get(self.controller_label) == controller


_decode_whole_pod: Callable[[bytes], Pod] = msgspec.json.Decoder(Pod).decode
_decode_metadata: Callable[[bytes], Service] = msgspec.json.Decoder(Service).decode

decode_service: Callable[[bytes], Service] = msgspec.json.Decoder(Service).decode


def decode_pod(raw: bytes) -> Pod:
    """Decodes a pod; returns an `UnreadablePod` if only its metadata is valid. Raises `msgspec.MsgspecError` or
    `ValueError` if not even that."""
    try:
        return _decode_whole_pod(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        return UnreadablePod(_decode_metadata(raw).metadata, fault=cut(str(error), MAX_DETAIL))


TRAINING_CHILDREN = ChildSelection(
    watch=OPERATOR_NAME,
    controller_label=OPERATOR_NAME,
    job_label=JOB_NAME,
    decode_pod=decode_pod,
    decode_service=decode_service,
)
"""The labels of training-operator and mpi-operator."""


class ChildEvents(NamedTuple):
    """Reasons and messages of the events about pods and services. Format strings with fields `kind` (`Pod`), `noun`
    (`pod`), `name`, and `error` if there was one."""

    created: tuple[str, str] = ("SuccessfulCreate{kind}", "Created {noun}: {name}")
    not_created: tuple[str, str] = ("FailedCreate{kind}", "Error creating: {error}")
    deleted: tuple[str, str] = ("SuccessfulDelete{kind}", "Deleted {noun}: {name}")
    not_deleted: tuple[str, str] = ("FailedDelete{kind}", "Error deleting: {error}")

    def event(self, texts: tuple[str, str], kind: str, name: str, error: object = None) -> Event:
        """The event about a child of this kind: Normal, or with an error Warning."""
        about = {"kind": kind, "noun": kind.lower(), "name": name, "error": error}
        type_ = "Normal" if error is None else "Warning"
        return Event(type_, texts[0].format_map(about), texts[1].format_map(about))


@dataclass(slots=True)
class RoleSlots:
    """The slots of one role."""

    role: Role
    pods: dict[int, Pod] = field(default_factory=dict)
    """Index -> the pod that holds the slot and is not terminating; only indices below `replicas`."""
    terminating: dict[int, Pod] = field(default_factory=dict)
    """Index -> a terminating pod that still occupies the slot's name."""
    surplus: list[Pod] = field(default_factory=list)
    """Pods, not terminating, with an index of `replicas` or above or with another name than their slot. Never
    counted."""

    def vacancies(self) -> Iterator[int]:
        """The indices without a pod, terminating ones included."""
        if len(self.pods) < self.role.replicas:
            for index in range(self.role.replicas):
                if index not in self.pods and index not in self.terminating:
                    yield index

    def all_pods(self) -> Iterator[Pod]:
        """The pods in slots, terminating ones included."""
        yield from self.pods.values()
        yield from self.terminating.values()

    @property
    def full(self) -> bool:
        """Every slot has a pod that is not terminating."""
        return len(self.pods) == self.role.replicas

    def tally(self, void: Collection[str] = ()) -> Tally:
        """Counts the pods by phase, as in replicaStatuses. Terminating pods count only if they have succeeded. `void`:
        the UIDs of pods whose success does not count."""
        tally = Tally()
        for pod in self.pods.values():
            if pod.metadata.uid in void:
                continue
            match pod.status.phase:
                case "Running":
                    tally.active += 1
                case "Succeeded":
                    tally.succeeded += 1
                case "Failed":
                    tally.failed += 1
        gone = [
            index
            for index, pod in self.terminating.items()
            if pod.status.phase == "Succeeded" and pod.metadata.uid not in void
        ]
        tally.succeeded += sum(index not in self.pods for index in gone)
        first = self.pods.get(0) or self.terminating.get(0)
        first_counts = first is not None and first.metadata.uid not in void
        tally.first_completed = first is not None and first_counts and _has_completed(first, self.role.container)
        return tally


def _has_completed(pod: Pod, container: str) -> bool:
    """Phase Succeeded alone is not enough (training-operator `pkg/controller.v1/tensorflow/tfjob_controller.go`,
    `IsWorker0Completed` and `getContainerExitCode`, where a code that is not reported counts as another than 0)."""
    return pod.status.phase == "Succeeded" and pod.exit_code(container) == 0


@dataclass(slots=True)
class Arrangement:
    """All pods of a job by slot."""

    all_slots: list[RoleSlots]
    """In the framework's order of roles."""
    pods_of_removed_roles: list[Pod] = field(default_factory=list)
    """Pods, not terminating, of roles that the spec no longer has."""
    pods_without_slot: list[Pod] = field(default_factory=list)
    """Pods whose labels replica-type and replica-index are missing or invalid."""


def arrange(job: Job, pods: Iterable[Pod]) -> Arrangement:
    """Assigns the pods that the job owns to slots, by labels and name."""
    all_slots = {role.label: RoleSlots(role) for role in job.roles}
    name_of = {label: child_namer(job.name, slots.role) for label, slots in all_slots.items()}
    arrangement = Arrangement(list(all_slots.values()))
    for pod in pods:
        role, index = read_place(pod.metadata.labels)
        slots = all_slots.get(role or "")
        if slots is not None and not slots.role.indexed:
            index = 0
        if index is None or role is None:
            arrangement.pods_without_slot.append(pod)
        elif slots is None:
            if not pod.metadata.terminating:
                arrangement.pods_of_removed_roles.append(pod)
        else:
            _place(slots, index, pod, name_of[role](index))
    return arrangement


def find_surplus(job: Job, children: Iterable[HasMetadata]) -> set[str]:
    """The names of the children whose slot the spec does not have. Empty if the spec has errors, because the roles are
    then uncertain."""
    if job.errors:
        return set()
    replicas = {role.label: role.replicas for role in job.roles}
    places = [(child.metadata.name, *read_place(child.metadata.labels)) for child in children]
    return {name for name, role, index in places if role and index is not None and index >= replicas.get(role, 0)}


def read_place(labels: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The role label and the index in the labels of a child; each None if missing or invalid. An index has at most ten
    ASCII digits. The pod of a role that is not `indexed` has no index."""
    return labels.get(REPLICA_TYPE), _parse_index(labels.get(REPLICA_INDEX, ""))


@lru_cache(maxsize=16_384)  # called for every child in every reconcile, with few distinct values
def _parse_index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _place(slots: RoleSlots, index: int, pod: Pod, name: str) -> None:
    """Assigns a pod of the role. `name` is the name of the slot's pod."""
    is_in_slot = index < slots.role.replicas and pod.metadata.name == name
    if not pod.metadata.terminating:
        if is_in_slot:
            slots.pods[index] = pod
        else:
            slots.surplus.append(pod)
    elif is_in_slot:
        slots.terminating[index] = pod


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
