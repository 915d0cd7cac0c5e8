"""Kueue's API as far as the operator's own integration reads it: the names, and the structs that objects are decoded to
(kubernetes-sigs/kueue 0.19, `apis/kueue/v1beta2`, `pkg/controller/constants`).

Not the `Workload` of `scheduling.k8s.io`, which belongs to gang scheduling. Of the templates in a Workload, which may
be as large as an object can be, only the labels are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from trainop.runtime import Json, Metadata, Resource

GROUP = "kueue.x-k8s.io"
WORKLOADS = Resource(GROUP, "v1beta2", "workloads", "Workload")
FLAVORS = Resource(GROUP, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
WORKLOAD_CLASSES = Resource(GROUP, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
LOCAL_QUEUES = Resource(GROUP, "v1beta2", "localqueues", "LocalQueue")
OLDER = {each: replace(each, version="v1beta1") for each in (WORKLOADS, LOCAL_QUEUES)}
"""What a Kueue before 0.15 serves instead. Programs that only show these objects fall back to it."""

QUEUE = "kueue.x-k8s.io/queue-name"
"""The label of a job that names its LocalQueue."""
PRIORITY = "kueue.x-k8s.io/priority-class"
"""The label of a job that names its WorkloadPriorityClass."""
EXECUTION_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
"""The label of a job with the seconds for which it may be admitted."""
JOB_UID = "kueue.x-k8s.io/job-uid"
"""The label of a Workload with the UID of its job."""
ELASTIC = "kueue.x-k8s.io/elastic-job"
"""The annotation, with the value `true`, of a job, and of its Workloads, that is resized by a new slice."""
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""The annotation of a slice: NAMESPACE/NAME of the Workload that it is to replace."""
SLICE_NAME = "kueue.x-k8s.io/workload-slice-name"
"""The annotation of a slice and of pods of an elastic job: the name of its first Workload, by which Kueue counts the
pods of all slices."""
WORKLOAD = "kueue.x-k8s.io/workload"
"""The annotation of a pod with the name of its Workload, by which Kueue finds the pods that it places itself."""
POD_SET = "kueue.x-k8s.io/podset"
"""The label of a pod with the name of its pod set."""
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""The scheduling gate that Kueue removes from a pod once it has chosen its place in the topology."""
TOPOLOGY = "kueue.x-k8s.io/podset-"
"""Prefix of the annotations of a template that ask for a topology."""

RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
PODS_READY, REQUEUED = "PodsReady", "Requeued"


class _TemplateMetadata(msgspec.Struct, frozen=True, gc=False):
    labels: dict[str, str] = {}


class _Template(msgspec.Struct, frozen=True, gc=False):
    metadata: _TemplateMetadata = _TemplateMetadata()


class WorkloadPodSet(msgspec.Struct, frozen=True, rename="camel", gc=False):
    name: str = ""
    count: int = 1
    template: _Template = _Template()


class WorkloadSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pod_sets: tuple[WorkloadPodSet, ...] = ()
    queue_name: str = ""
    active: bool = True
    priority_class_ref: dict[str, str] | None = None
    maximum_execution_time_seconds: int | None = None


class WorkloadStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    conditions: tuple[Json, ...] = ()
    """As they are, since a write of one replaces the list."""
    admission: Json | None = None
    admission_checks: tuple[Json, ...] = ()
    reclaimable_pods: tuple[Json, ...] = ()
    accumulated: int = msgspec.field(default=0, name="accumulatedPastExecutionTimeSeconds")


class Workload(msgspec.Struct, frozen=True, gc=False):
    """The fields of a Workload that plans depend on."""

    metadata: Metadata = Metadata()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def find(self, type_: str) -> Json:
        """The condition of that type; empty if there is none."""
        return next((each for each in self.status.conditions if each.get("type") == type_), {})

    def is_true(self, type_: str) -> bool:
        return self.find(type_).get("status") == "True"

    @property
    def slice_name(self) -> str:
        """The name of the first Workload in the chain of slices."""
        return self.metadata.annotations.get(SLICE_NAME, self.metadata.name)

    @property
    def counts(self) -> dict[str, int]:
        """Pod set -> the pods that the Workload asks for."""
        return {each.name: each.count for each in self.spec.pod_sets}

    @property
    def reserves(self) -> bool:
        """Whether it has quota."""
        return self.is_true(RESERVED)

    @property
    def runs(self) -> bool:
        """Whether its pods may run."""
        return self.is_true(ADMITTED) and self.reserves and not self.is_true(EVICTED) and not self.metadata.terminating


class _FlavorSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    node_labels: dict[str, str] = {}
    tolerations: tuple[Json, ...] = ()


class Flavor(msgspec.Struct, frozen=True, gc=False):
    """The fields of a ResourceFlavor that plans depend on."""

    metadata: Metadata = Metadata()
    spec: _FlavorSpec = _FlavorSpec()


class WorkloadClass(msgspec.Struct, frozen=True, gc=False):
    """The fields of a WorkloadPriorityClass that plans depend on."""

    metadata: Metadata = Metadata()
    value: int = 0


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """What the queueing of a job depends on."""

    unavailable: str = ""
    """Why Workloads cannot be read or written; empty if they can."""
    workloads: tuple[Workload, ...] = ()
    """Those that the job controls, whoever has made them."""
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    """WorkloadPriorityClass -> value."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """PriorityClass -> value."""
    default_class: str = ""
    """The PriorityClass of pods that name none; empty: there is none."""
    refused: str = ""
    """The API server's message, if it refused the last write of a Workload."""
    retry_in: float = 0.0
    """Seconds until that write is repeated."""


def as_counts(value: Any) -> int:
    """A count in a status; 0 if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
