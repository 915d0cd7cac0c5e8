"""Replica slots: a slot is a role and an index, and at most one pod of the job holds it.

Pods are assigned to slots by their labels and their name. Tallies, restarts and scaling are decided per slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from trainop.engine.addresses import child_namer
from trainop.engine.framework import REPLICA_INDEX, REPLICA_TYPE, Tally
from trainop.engine.job import Job, Role
from trainop.engine.seen import Pod
from trainop.runtime import HasMetadata


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
