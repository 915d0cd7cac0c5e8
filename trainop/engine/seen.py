"""`Snapshot`: the only input of a plan, that is the job, its children, the settings and the time of one reconcile.

Also defines the structs that pods and services are decoded to. They contain only the fields that plans read, because
the caches hold tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Any

import msgspec

from trainop.engine.gang_scheduler import GangScheduler
from trainop.runtime.objects.metadata import Metadata, PartialObject, Unstructured
from trainop.runtime.objects.resource import Resource
from trainop.runtime.texts import LONGEST_REASON, cut

LABELS = "training.kubeflow.org/"
"""Prefix of all labels that the operator sets and reads."""

ROUTINE_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})
"""Pod conditions that are dropped once there are container statuses."""

# What is read of a pod ------------------------------------------------------------------------------------------------


MAX_STATUS_MESSAGE_LENGTH = 768
"""Bytes that are kept of the message of a container or condition, so that an event has room for it and the names."""

MANY_CONTAINERS = 16
"""Number of container statuses of a pod above which only significant ones are kept."""


class Terminated(msgspec.Struct, frozen=True, rename="camel", gc=False):
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        _truncate(self)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        _truncate(self)


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()

    @property
    def is_significant(self) -> bool:
        """Whether it says more than that the container is running or about to start."""
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
    message: str = ""
    ready: bool = msgspec.field(default=False, name="")
    """Whether the condition Ready is true. No JSON field has this name: it is computed."""
    conditions: tuple[PodCondition, ...] = ()
    """Without `ROUTINE_CONDITIONS` once there are container statuses, which are more specific."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    """All, or above `MANY_CONTAINERS` the first one and the significant ones."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    """The same."""

    def __post_init__(self) -> None:
        """Drops conditions and statuses that plans do not read: about a third of a pod's memory."""
        set_field = msgspec.structs.force_setattr
        if len(self.message) > MAX_STATUS_MESSAGE_LENGTH // 4:
            set_field(self, "message", cut(self.message, MAX_STATUS_MESSAGE_LENGTH))
        if any(condition.type == "Ready" and condition.status == "True" for condition in self.conditions):
            set_field(self, "ready", True)
        if self.container_statuses and self.conditions:
            kept = tuple(condition for condition in self.conditions if condition.type not in ROUTINE_CONDITIONS)
            set_field(self, "conditions", kept)
        for condition in self.conditions:
            _truncate(condition)
        if len(self.container_statuses) > MANY_CONTAINERS:
            set_field(self, "container_statuses", _some_of(self.container_statuses))
        if len(self.init_container_statuses) > MANY_CONTAINERS:
            set_field(self, "init_container_statuses", _some_of(self.init_container_statuses))


def _truncate(state: Terminated | Waiting | PodCondition) -> None:
    """Truncates long texts at decoding, because thousands of pods may have hundreds of containers each."""
    if len(state.message) > MAX_STATUS_MESSAGE_LENGTH // 4:  # characters, each of at most four bytes
        msgspec.structs.force_setattr(state, "message", cut(state.message, MAX_STATUS_MESSAGE_LENGTH))
    if len(state.reason) > LONGEST_REASON // 4:
        msgspec.structs.force_setattr(state, "reason", cut(state.reason, LONGEST_REASON))


def _some_of(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    return (statuses[0], *(status for status in statuses[1:] if status.is_significant))


class ChildMetadata(Metadata, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Metadata of a pod or service without annotations and without labels of other prefixes. Users may put up to the
    size limit of an object into both, and every replica has a copy."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict, name="")
    """Always empty, because no JSON field has this name."""

    def _kept_labels(self) -> dict[str, str]:
        return {intern(label): intern(value) for label, value in self.labels.items() if label.startswith(LABELS)}


class PodSpec(msgspec.Struct, frozen=True, gc=False):
    subdomain: str = ""
    """The service in which the pod has a name of its own."""

    def __post_init__(self) -> None:
        if self.subdomain:  # the same text in all pods of a job
            msgspec.structs.force_setattr(self, "subdomain", intern(self.subdomain))


class Pod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a v1 Pod that plans depend on."""

    metadata: ChildMetadata = ChildMetadata()
    status: PodStatus = PodStatus()
    spec: PodSpec = PodSpec()

    def exit_code(self, container: str) -> int | None:
        """The exit code of a container; None if it has not terminated or has no status."""
        for each in self.status.container_statuses:
            if each.name == container and each.state.terminated is not None:
                return each.state.terminated.exit_code
        return None

    @property
    def never_ran(self) -> bool:
        """Whether no container of a deleted pod was ever started. The kubelet reports such a pod as Failed, and its
        containers with this reason (kubernetes `pkg/kubelet/status`, `TerminatePod`)."""
        ends = [(each.state.terminated, each.restart_count) for each in self.status.container_statuses]
        return bool(ends) and all(end and end.reason == "ContainerStatusUnknown" and not count for end, count in ends)


class UnreadablePod(Pod, frozen=True, gc=False):
    """A pod whose status cannot be decoded. It holds its slot, is not counted in any phase, and can be deleted."""

    status: PodStatus = PodStatus(phase="Unknown")
    fault: str = ""
    """The decoding error."""


class Service(PartialObject, frozen=True, gc=False):
    """A v1 Service; plans read only its metadata."""

    metadata: ChildMetadata = ChildMetadata()


# What is read of a gang scheduler's objects ---------------------------------------------------------------------------


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields of a PodGroup that the operator manages."""

    min_member: int | None = None
    queue: str | None = None
    """Only Volcano has queues and priority classes."""
    priority_class_name: str | None = None
    min_resources: dict[str, Any] | None = None
    schedule_timeout_seconds: int | None = None
    """Only of scheduler-plugins."""

    def as_json(self) -> dict[str, Any]:
        """By the names of the API. A value that the API treats like an absent one is None, or 0 for minMember."""
        return {
            "minMember": self.min_member or 0,
            "queue": self.queue or None,
            "priorityClassName": self.priority_class_name or None,
            "minResources": self.min_resources or None,
            "scheduleTimeoutSeconds": self.schedule_timeout_seconds,
        }


class PodGroupStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str | None = None


class PodGroup(msgspec.Struct, frozen=True, gc=False):
    """The fields of a PodGroup, of Volcano or scheduler-plugins, that plans depend on."""

    metadata: ChildMetadata = ChildMetadata()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class PriorityClass(msgspec.Struct, frozen=True, gc=False):
    """The fields of a v1 PriorityClass that plans depend on."""

    metadata: ChildMetadata = ChildMetadata()
    value: int = 0


# What a plan depends on -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that plans depend on. `trainop/settings.py` defines their flags."""

    cluster_domain: str = ""
    """Appended to the service names in TF_CONFIG, from env CUSTOM_CLUSTER_DOMAIN."""
    pytorch_init_image: str = "alpine:3.10"
    pytorch_init_template: str | None = None
    """Text of the init-container template file; None: the built-in template."""
    pytorch_init_max_tries: int = 100
    force_delete_after: float | None = None
    """Seconds after the end of its grace period at which a terminating pod is force-deleted; None: never."""
    mpi_delivery_image: str = "kubeflow/kubectl-delivery:latest"
    """The image that delivers kubectl to launchers of MPIJobs."""
    mpi_version: str = "v1"
    """The version of MPIJobs that is watched and written: v1, or v2beta1 if the CRD of mpi-operator is installed."""
    mpi_cluster_domain: str = ""
    """Appended to the host names of MPIJobs with transport ssh, from --cluster-domain."""
    mpi_job_ttl: bool = False
    """MPIJobs with transport ssh are deleted after `ttlSecondsAfterFinished`, and not only the Jobs of launchers."""
    di_server_address: str = "di-server.di-system:8080"
    """Passed verbatim to the coordinators of DIJobs."""
    di_graceful_deletion: bool = False
    """Pods of finished DIJobs get their grace period. Otherwise it is 0, as upstream."""
    service_mode: str = "replica"
    """`replica`, `leader` or `job`; default of the annotation service-mode."""
    gang: GangScheduler | None = None
    """None: gang scheduling is off."""

    @property
    def dns_domain(self) -> str:
        """The domain of the cluster's DNS, for search lists, which need the complete name."""
        return self.mpi_cluster_domain or self.cluster_domain or "cluster.local"


@dataclass(frozen=True, slots=True)
class SeenGang:
    """What gang scheduling depends on."""

    group: PodGroup | None = None
    """The PodGroup with the job's name, of any owner."""
    unavailable: str = ""
    """Why PodGroups cannot be read at all, such as a CRD that is not installed."""
    fault: str = ""
    """The decoding error of the PodGroup with the job's name."""
    refused: str = ""
    """The API server's message, if it refused the last write of the PodGroup."""
    retry_in: float = 0.0
    """Seconds until that write is repeated."""
    priorities: Mapping[str, int] | None = None
    """Name -> value of all PriorityClasses; None if they cannot be read."""

    def priority(self, priority_class: str) -> int:
        """The value of a PriorityClass; 0 if it is not known."""
        return (self.priorities or {}).get(priority_class, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The consistent input of one reconcile: it is taken from the caches without an await in between.

    `pods` and `services` are those in the job's namespace that the job's UID controls or that the job's selector
    matches, whatever their owner. The plan determines their ownership (`claim`).
    """

    job: Unstructured
    pods: tuple[Pod, ...]
    services: tuple[Service, ...]
    now: datetime
    options: Options = field(default_factory=Options)
    companions: Mapping[Resource, Sequence[Unstructured]] = field(default_factory=dict)
    """Resource -> objects of the kind's `companion_kinds`, selected in the same way."""
    unreadable: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`Pod` or `Service` -> name -> decoding error, for objects in the namespace whose metadata cannot be decoded.
    Their owner is unknown."""
    wall: datetime | None = None
    """Wall clock, for comparison with recent timestamps of the API server. None: the same as `now`, which follows the
    monotonic clock."""
    gang: SeenGang = SeenGang()
    """Only meaningful with `Options.gang`."""
