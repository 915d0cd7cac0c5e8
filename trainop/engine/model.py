"""The words of the engine: what is seen of a job and its children, and what a plan may ask for.

A `Snapshot` is all that a plan may depend on; a `Plan` is all that the shell carries out. Both are values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import TypeAlias

import msgspec

from trainop.runtime.objects.metadata import Json, Metadata, PartialObject, Unstructured
from trainop.runtime.objects.resource import Resource
from trainop.runtime.texts import LONGEST_REASON, cut

LABELS = "training.kubeflow.org/"
"""With this all labels begin that the operator sets and reads."""

ROUTINE_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})

# What is read of a pod ------------------------------------------------------------------------------------------------


LONGEST_MESSAGE = 768
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
    def telling(self) -> bool:
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
            telling = tuple(condition for condition in self.conditions if condition.type not in ROUTINE_CONDITIONS)
            set_field(self, "conditions", telling)
        for condition in self.conditions:
            _cut_words(condition)
        if len(self.container_statuses) > MANY_CONTAINERS:
            set_field(self, "container_statuses", _some_of(self.container_statuses))
        if len(self.init_container_statuses) > MANY_CONTAINERS:
            set_field(self, "init_container_statuses", _some_of(self.init_container_statuses))


def _cut_words(said: Terminated | Waiting | PodCondition) -> None:
    """Long texts are cut when they are decoded: thousands of pods may have hundreds of containers each."""
    if len(said.message) > LONGEST_MESSAGE // 4:  # characters, each of at most four bytes
        msgspec.structs.force_setattr(said, "message", cut(said.message, LONGEST_MESSAGE))
    if len(said.reason) > LONGEST_REASON // 4:
        msgspec.structs.force_setattr(said, "reason", cut(said.reason, LONGEST_REASON))


def _some_of(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    return (statuses[0], *(status for status in statuses[1:] if status.telling))


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


# What a plan asks for -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreatePod:
    """`encode` makes the manifest as JSON when it is to be sent, so that there are no more of them than requests."""

    name: str
    encode: Callable[[], bytes] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateService:
    """As `CreatePod`."""

    name: str
    encode: Callable[[], bytes] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeletePod:
    """`uid` is the precondition: a successor of the same name is never hit. `force` means grace period 0."""

    name: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteService:
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Make a companion what `manifest` says, by server-side apply. `uid` is that of the object that was seen; it is
    empty if none was, and then an object of this name that belongs to somebody else is left alone."""

    resource: Resource
    manifest: Json
    uid: str = ""
    essential: bool = True
    """Pods cannot do without it: the job fails if the API server refuses it."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Of a companion."""

    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Put our owner reference on an orphan, after one live look per pass that the job is still there."""

    kind: str
    """`Pod` or `Service`."""
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Take our owner reference off an object whose labels no longer match."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """The time to live after finishing is over."""


Action: TypeAlias = CreatePod | CreateService | DeletePod | DeleteService | Apply | Delete | Adopt | Release | DeleteJob


@dataclass(frozen=True, slots=True)
class Event:
    """About the job; `type` is Normal or Warning. Long texts are cut."""

    type: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", cut(self.reason, LONGEST_REASON))
        object.__setattr__(self, "message", cut(self.message))


@dataclass(frozen=True, slots=True)
class Count:
    """Steps of a counter: of jobs `created`, `successful`, `failed`, `restarted` (once a pod), and `failed_pods`."""

    counter: str
    by: int = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that states what is so, not what changed: reported once for each new `identity` and message."""

    identity: str
    event: Event
    routine: bool = False
    """Every pod that does well has one: told only if asked for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one snapshot, in this order: annotations, then status and actions as `status_first` says.

    A terminal status is written before clean-up begins; otherwise actions go first and status follows. Events and
    counts of `transitions` are reported once status and annotations are written, `notices` when they are new.
    """

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """Merged into the job's annotations under its resourceVersion, before anything else; None removes."""
    status: Json | None = None
    """The whole new status; None if it is to stay as it is."""
    status_first: bool = False
    actions: tuple[Action, ...] = ()
    transitions: tuple[Event | Count, ...] = ()
    notices: tuple[Notice, ...] = ()
    begun: bool = field(default=False, compare=False)
    """The job has had pods: what the API server refuses does not end it."""
    again_in: float | None = None
    """Seconds until the next look is due even if nothing happens: a deadline, a time to live."""
