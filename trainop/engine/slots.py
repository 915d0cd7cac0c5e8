"""Every replica has a slot, told by role and index; pods are sorted into the slots by their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from trainop.engine.framework import REPLICA_INDEX, REPLICA_TYPE, Tally
from trainop.engine.job import Job, Role
from trainop.engine.manifests import child_namer
from trainop.engine.seen import Pod
from trainop.runtime.objects.metadata import HasMetadata


@dataclass(slots=True)
class RoleSlots:
    """The slots of one role."""

    role: Role
    pods: dict[int, Pod] = field(default_factory=dict)
    """Index -> the living pod of the slot; only indices below `replicas`."""
    terminating: dict[int, Pod] = field(default_factory=dict)
    """Index -> a terminating pod that still has the slot's name."""
    surplus: list[Pod] = field(default_factory=list)
    """Living pods beyond `replicas`, and those that have another name than their slot: they never count."""

    def vacancies(self) -> Iterator[int]:
        """Indices that no pod occupies, not even a terminating one."""
        if len(self.pods) < self.role.replicas:
            for index in range(self.role.replicas):
                if index not in self.pods and index not in self.terminating:
                    yield index

    @property
    def full(self) -> bool:
        """Every slot has its living pod."""
        return len(self.pods) == self.role.replicas

    def tally(self, container: str) -> Tally:
        """Count the pods as replicaStatuses do: by phase, terminating ones only if they have succeeded. `container` is
        the one whose exit code counts."""
        tally = Tally()
        for pod in self.pods.values():
            match pod.status.phase:
                case "Running":
                    tally.active += 1
                case "Succeeded":
                    tally.succeeded += 1
                case "Failed":
                    tally.failed += 1
        gone = [index for index, pod in self.terminating.items() if pod.status.phase == "Succeeded"]
        tally.succeeded += sum(index not in self.pods for index in gone)
        first = self.pods.get(0) or self.terminating.get(0)
        tally.first_completed = first is not None and _has_completed(first, container)
        return tally


def _has_completed(pod: Pod, container: str) -> bool:
    """Phase Succeeded alone is not enough (training-operator `pkg/controller.v1/tensorflow/tfjob_controller.go`,
    `IsWorker0Completed` and `getContainerExitCode`, where a code that is not reported counts as another than 0)."""
    return pod.status.phase == "Succeeded" and pod.exit_code(container) == 0


@dataclass(slots=True)
class Arrangement:
    """All pods of a job in their places."""

    all_slots: list[RoleSlots]
    """In the framework's order of roles."""
    pods_of_removed_roles: list[Pod] = field(default_factory=list)
    """Living pods of roles that the spec does not have any more."""
    unreadable: list[Pod] = field(default_factory=list)
    """Pods whose labels tell no slot."""


def arrange(job: Job, pods: Iterable[Pod]) -> Arrangement:
    """Sort the job's own pods into slots, by labels and name."""
    all_slots = {role.label: RoleSlots(role) for role in job.roles}
    name_of = {label: child_namer(job.name, slots.role) for label, slots in all_slots.items()}
    arrangement = Arrangement(list(all_slots.values()))
    for pod in pods:
        role, index = read_place(pod.metadata.labels)
        if index is None or role is None:
            arrangement.unreadable.append(pod)
        elif (slots := all_slots.get(role)) is None:
            if not pod.metadata.terminating:
                arrangement.pods_of_removed_roles.append(pod)
        else:
            _place(slots, index, pod, name_of[role](index))
    return arrangement


def find_surplus(job: Job, children: Iterable[HasMetadata]) -> set[str]:
    """The names of those whose slot the spec does not have (any more). None while it is doubtful what it has."""
    if job.errors:
        return set()
    replicas = {role.label: role.replicas for role in job.roles}
    places = [(child.metadata.name, *read_place(child.metadata.labels)) for child in children]
    return {name for name, role, index in places if role and index is not None and index >= replicas.get(role, 0)}


def read_place(labels: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The role and the index that the labels of a child tell; each None if it is not told. An index is a natural
    number of at most ten digits."""
    return labels.get(REPLICA_TYPE), _parse_index(labels.get(REPLICA_INDEX, ""))


@lru_cache(maxsize=16_384)  # asked of every child in every pass, and there are few different ones
def _parse_index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _place(slots: RoleSlots, index: int, pod: Pod, name: str) -> None:
    """`name` is that of the slot; a namespace has one living pod of it."""
    is_in_slot = index < slots.role.replicas and pod.metadata.name == name
    if not pod.metadata.terminating:
        if is_in_slot:
            slots.pods[index] = pod
        else:
            slots.surplus.append(pod)
    elif is_in_slot:
        slots.terminating[index] = pod
