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

from trainop.engine.actions import Wait
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.kueue import SeenQueue
from trainop.engine.pod_status import PodStatus
from trainop.engine.progress import ProgressEndpoint
from trainop.runtime import Json, Metadata, PartialObject, Resource, Unstructured

FALLBACK, FILE = "FallbackToLogsOnError", "File"
"""The kubelet takes the termination message from the log of a container that fails without one: up to 2 KiB or 80 lines
(kubernetes `pkg/kubelet/kuberuntime/kuberuntime_container.go`). `File`, the default of Kubernetes: it does not."""

LABELS = "training.kubeflow.org/"
"""Prefix of all labels that the operator sets and reads."""

# What is read of a pod ------------------------------------------------------------------------------------------------


class ChildMetadata(Metadata, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Metadata of a pod or service without annotations and without labels of other prefixes. Users may put up to the
    size limit of an object into both, and every replica has a copy."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict, name="")
    """Always empty, because no JSON field has this name."""

    def _kept_labels(self) -> dict[str, str]:
        return {intern(label): intern(value) for label, value in self.labels.items() if label.startswith(LABELS)}


class PodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    subdomain: str = ""
    """The service in which the pod has a name of its own."""
    node_name: str = ""
    grace: int | None = msgspec.field(default=None, name="terminationGracePeriodSeconds")
    """Seconds between SIGTERM and SIGKILL."""

    def __post_init__(self) -> None:
        if self.subdomain:  # the same text in all pods of a job
            msgspec.structs.force_setattr(self, "subdomain", intern(self.subdomain))
        if self.node_name:  # the same text in all pods of a node
            msgspec.structs.force_setattr(self, "node_name", intern(self.node_name))


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


class _MinCount(msgspec.Struct, frozen=True, rename="camel", gc=False):
    min_count: int = 0


class _SchedulingPolicy(msgspec.Struct, frozen=True, gc=False):
    gang: _MinCount | None = None


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields of a PodGroup that the operator manages."""

    min_member: int | None = None
    queue: str | None = None
    """Only Volcano has queues and priority classes."""
    priority_class_name: str | None = None
    min_resources: dict[str, Any] | None = None
    schedule_timeout_seconds: int | None = None
    """Only of scheduler-plugins."""
    scheduling_policy: _SchedulingPolicy | None = None
    """Only of kube-scheduler, instead of `min_member`."""
    resource_claims: tuple[Json, ...] = ()
    """Only of kube-scheduler."""

    @property
    def least(self) -> int:
        """The number of pods that are scheduled together; 0 if it is not given."""
        gang = self.scheduling_policy.gang if self.scheduling_policy is not None else None
        return gang.min_count if gang is not None else self.min_member or 0

    def as_json(self) -> dict[str, Any]:
        """By the names of the API. A value that the API treats like an absent one is None, or 0 for minMember."""
        return {
            "minMember": self.least,
            "queue": self.queue or None,
            "priorityClassName": self.priority_class_name or None,
            "minResources": self.min_resources or None,
            "scheduleTimeoutSeconds": self.schedule_timeout_seconds,
        }


class PodGroupCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


SCHEDULED = "PodGroupInitiallyScheduled"
"""The condition that kube-scheduler sets. Once it is true it stays true."""


class PodGroupStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str | None = None
    conditions: tuple[PodGroupCondition, ...] = ()
    """Only `SCHEDULED`: Volcano writes its own anew all the time."""

    def __post_init__(self) -> None:
        kept = tuple(each for each in self.conditions if each.type == SCHEDULED)
        msgspec.structs.force_setattr(self, "conditions", kept)

    @property
    def scheduled(self) -> PodGroupCondition | None:
        return self.conditions[0] if self.conditions else None


class PodGroup(msgspec.Struct, frozen=True, gc=False):
    """The fields of a PodGroup, of any scheduler, that plans depend on."""

    metadata: ChildMetadata = ChildMetadata()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class PriorityClass(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields of a v1 PriorityClass that plans depend on."""

    metadata: ChildMetadata = ChildMetadata()
    value: int = 0
    global_default: bool = False


# What is read of an Eviction ------------------------------------------------------------------------------------------

EVICTIONS = Resource("lifecycle.k8s.io", "v1alpha1", "evictions", "Eviction")
"""Of Kubernetes 1.37 (`staging/src/k8s.io/api/lifecycle/v1alpha1/types.go`), not the subresource of pods."""
RESPONDER = "trainop.kubeflow.org/checkpoint"
"""The name of the operator in `spec.evictionResponders` of pods."""


class EvictionPod(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uid: str = ""


class _EvictionTarget(msgspec.Struct, frozen=True, gc=False):
    pod: EvictionPod | None = None


class _EvictionSpec(msgspec.Struct, frozen=True, gc=False):
    target: _EvictionTarget = _EvictionTarget()


class _Requester(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    intent: str = ""


class _TargetResponder(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    state: str = ""


class _EvictionStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    requesters: tuple[_Requester, ...] = ()
    target_responders: tuple[_TargetResponder, ...] = ()
    responders: tuple[Json, ...] = ()


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """The fields of an Eviction that plans depend on. Of one that is not the operator's to answer, only the target."""

    metadata: ChildMetadata = ChildMetadata()
    spec: _EvictionSpec = _EvictionSpec()
    status: _EvictionStatus = _EvictionStatus()

    def __post_init__(self) -> None:
        states = {each.name: each.state for each in self.status.target_responders}
        if states.get(RESPONDER) != "Active" or not self.pod.uid or "completionTime" in self.answer:
            msgspec.structs.force_setattr(self, "status", _EvictionStatus())

    @property
    def pod(self) -> EvictionPod:
        """Its target; without a name if that is no pod."""
        return self.spec.target.pod or EvictionPod()

    @property
    def answer(self) -> Json:
        """What the operator has reported."""
        return next((each for each in self.status.responders if each.get("name") == RESPONDER), {})

    @property
    def active(self) -> bool:
        """Whether it waits for the operator."""
        return bool(self.status.target_responders)

    @property
    def requesters(self) -> str:
        return ", ".join(each.name for each in self.status.requesters if each.intent == "Eviction")


# What a plan depends on -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that plans depend on. `trainop/programs/settings.py` defines their flags."""

    cluster_domain: str = ""
    """Appended to the service names in TF_CONFIG, from env CUSTOM_CLUSTER_DOMAIN."""
    pytorch_init_image: str = "alpine:3.10"
    pytorch_init_template: str | None = None
    """Text of the init-container template file; None: the built-in template."""
    pytorch_init_max_tries: int = 100
    force_delete_after: float | None = None
    """Seconds after the end of its grace period at which a terminating pod is force-deleted; None: never."""
    mpi_delivery_image: str = "ghcr.io/kubeflow/training-v1/kubectl-delivery:latest"
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
    termination_message_policy: str = FALLBACK
    """Of containers whose template names none (`manifests.keep_log_ends`)."""
    service_mode: str = "replica"
    """`replica`, `leader` or `job`; default of the annotation service-mode."""
    gang: GangScheduler | None = None
    """None: gang scheduling is off."""
    progress: ProgressEndpoint | None = None
    """None: nobody takes reports of progress."""
    answers_evictions: bool = False
    """Pods get the operator as a responder. Set for a plan, of a job that asks for it."""
    waiting_after: float = 600.0
    """Seconds after which an unfinished job that does not move says what it waits for; 0: never."""
    installation: str = ""
    """`namespaced`: the rights are those of one namespace. `mpi-operator`: the overlay of that name. Decides which
    component a user is told to add."""

    @property
    def dns_domain(self) -> str:
        """The domain of the cluster's DNS, for search lists, which need the complete name."""
        return self.mpi_cluster_domain or self.cluster_domain or "cluster.local"


@dataclass(frozen=True, slots=True)
class SeenGang:
    """What gang scheduling depends on."""

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
class SeenEvictions:
    """What the Evictions of a job's pods depend on."""

    unavailable: str = ""
    """Why the operator can answer none; empty if it can."""
    found: tuple[Eviction, ...] = ()
    """Those that wait for the operator, of pods of the job, and of pods that the caches do not show and that have names
    like those of the job."""


@dataclass(frozen=True, slots=True)
class Silence:
    """What this process has heard of a job that runs and is watched for stalls, by its monotonic clock."""

    seconds: float
    """Since the last report of this run, or since this process has watched it."""
    reported: float | None = None
    """Seconds since the last report that is surely one of this run; None: this process has seen none."""
    pod: str = ""
    """The pod that sent the last report; empty if another replica of the operator took it."""
    overdue: bool = False
    """It lasts for longer than the job permits and a report may be on its way."""
    look_in: float = 0.0
    """Seconds until it may be overdue."""


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
    companions: Mapping[Resource, Sequence[Any]] = field(default_factory=dict)
    """Resource -> objects of the kind's `companion_kinds`, selected in the same way, as `Unstructured`. With gang
    scheduling also the `PodGroup` with the job's name, of any owner."""
    unreadable: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`Pod` or `Service` -> name -> decoding error, for objects in the namespace whose metadata cannot be decoded.
    Their owner is unknown."""
    wall: datetime | None = None
    """Wall clock, for comparison with recent timestamps of the API server. None: the same as `now`, which follows the
    monotonic clock."""
    gang: SeenGang = SeenGang()
    """Only meaningful with `Options.gang`."""
    obstacle: Wait | None = None
    """What kept the last pass from writing children; None if nothing did, or after a restart of the operator."""
    dropped_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Field path of a pod template -> the fields that the API server dropped from the last pod made of it, as paths in
    the pod. Only templates from which this process has made pods while fields were dropped."""
    serves_rules: bool | None = None
    """Whether the API server keeps the rules for restarts in place of the job's pods; None: it has not shown it to this
    process."""
    evictions: SeenEvictions | None = None
    """None if the job does not ask the operator to answer Evictions, and there are none."""
    queue: SeenQueue | None = None
    """None: the operator does not queue jobs of the kind."""
    silence: Silence | None = None
    """None if the job does not run, or is not watched for stalls."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """Kinds and names of children that the API server has just refused to create, because objects of other owners have
    the names. The caches lack most of these objects."""
