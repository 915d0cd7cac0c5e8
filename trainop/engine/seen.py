"""What a plan depends on: the job and its children as one pass sees them, in a `Snapshot`.

Pods and services are decoded to the few fields that plans read, as tens of thousands of them are held in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern

import msgspec

from trainop.runtime.objects.metadata import Metadata, PartialObject, Unstructured
from trainop.runtime.objects.resource import Resource
from trainop.runtime.texts import LONGEST_REASON, cut

LABELS = "training.kubeflow.org/"
"""With this all labels begin that the operator sets and reads."""

ROUTINE_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})

# What is read of a pod ------------------------------------------------------------------------------------------------


MAX_STATUS_MESSAGE_LENGTH = 768
"""Bytes of a container's or a condition's message that are kept: an event has room for so much, and the names."""

MANY_CONTAINERS = 16
"""Statuses of a pod above which those are not kept that only say that a container runs, or is to start."""


class Terminated(msgspec.Struct, frozen=True, rename="camel", gc=False):
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        _cut_words(self)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        _cut_words(self)


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()

    @property
    def is_significant(self) -> bool:
        """It says more than that the container runs, or is to start."""
        state = self.state
        return bool(self.restart_count or state.terminated or (state.waiting and state.waiting.message))


class PodCondition(msgspec.Struct, frozen=True, rename="camel", gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    phase: str = "Pending"
    reason: str = ""
    conditions: tuple[PodCondition, ...] = ()
    """Once there are container statuses, without `ROUTINE_CONDITIONS`: the containers tell more."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    """Of more than `MANY_CONTAINERS` the first, and those that are `telling`."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    """The same."""

    def __post_init__(self) -> None:
        """Forget what every pod has and nobody reads: it would be a third of a pod's memory."""
        set_field = msgspec.structs.force_setattr
        if self.container_statuses and self.conditions:
            kept = tuple(condition for condition in self.conditions if condition.type not in ROUTINE_CONDITIONS)
            set_field(self, "conditions", kept)
        for condition in self.conditions:
            _cut_words(condition)
        if len(self.container_statuses) > MANY_CONTAINERS:
            set_field(self, "container_statuses", _some_of(self.container_statuses))
        if len(self.init_container_statuses) > MANY_CONTAINERS:
            set_field(self, "init_container_statuses", _some_of(self.init_container_statuses))


def _cut_words(said: Terminated | Waiting | PodCondition) -> None:
    """Long texts are cut when they are decoded: thousands of pods may have hundreds of containers each."""
    if len(said.message) > MAX_STATUS_MESSAGE_LENGTH // 4:  # characters, each of at most four bytes
        msgspec.structs.force_setattr(said, "message", cut(said.message, MAX_STATUS_MESSAGE_LENGTH))
    if len(said.reason) > LONGEST_REASON // 4:
        msgspec.structs.force_setattr(said, "reason", cut(said.reason, LONGEST_REASON))


def _some_of(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    return (statuses[0], *(status for status in statuses[1:] if status.is_significant))


class ChildMetadata(Metadata, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Of a pod or service: without annotations and without labels that are not ours. Users put what they like into
    both, up to the size of an object, and each replica has a copy."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict, name="")
    """Always empty: no field of an object is called so."""

    def _kept_labels(self) -> dict[str, str]:
        return {intern(label): intern(value) for label, value in self.labels.items() if label.startswith(LABELS)}


class Pod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a v1 Pod that plans depend on, and no more: ten thousand of these are held in memory."""

    metadata: ChildMetadata = ChildMetadata()
    status: PodStatus = PodStatus()

    def exit_code(self, container: str) -> int | None:
        """Of the container of that name; None if it has not terminated, or nothing is known of it."""
        for each in self.status.container_statuses:
            if each.name == container and each.state.terminated is not None:
                return each.state.terminated.exit_code
        return None


class UnreadablePod(Pod, frozen=True, gc=False):
    """A pod of which only the metadata can be read. It has its slot, is in no phase that counts, and can be deleted."""

    status: PodStatus = PodStatus(phase="Unknown")
    fault: str = ""
    """What is wrong with the rest."""


class Service(PartialObject, frozen=True, gc=False):
    """Of a service only the metadata matters."""

    metadata: ChildMetadata = ChildMetadata()


# What a plan depends on -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that plans depend on (`trainop/settings.py` tells their flags)."""

    cluster_domain: str = ""
    """Appended to the service names in TF_CONFIG, from env CUSTOM_CLUSTER_DOMAIN."""
    pytorch_init_image: str = "alpine:3.10"
    pytorch_init_template: str | None = None
    """Text of the init-container template file; None is the built-in one."""
    pytorch_init_max_tries: int = 100
    force_delete_after: float | None = None
    """Seconds beyond its grace period after which a pod stuck terminating is deleted by force; None is never."""
    service_mode: str = "replica"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one pass looks at, from one moment: no await lies between its parts.

    `pods` and `services` are those in the job's namespace that the job's UID controls, or that the job's selector
    matches, whoever owns them; what belongs to the job is for the plan to say.
    """

    job: Unstructured
    pods: tuple[Pod, ...]
    services: tuple[Service, ...]
    now: datetime
    options: Options = field(default_factory=Options)
    companions: Mapping[Resource, Sequence[Unstructured]] = field(default_factory=dict)
    """Of the kinds that the framework names, with the same condition."""
    unreadable: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`Pod` or `Service` -> the names of those in the namespace of which not even the metadata can be read, whoever
    they belong to -> what is wrong with them."""
    wall: datetime | None = None
    """The wall clock, for comparison with what the API server has just stamped; `now` if it is the same."""
