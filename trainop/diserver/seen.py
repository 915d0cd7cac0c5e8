"""What di-server keeps of pods, jobs and nodes. A pod takes about a kilobyte: there may be ten thousand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

import msgspec

from trainop.engine.kueue import QUEUE
from trainop.kinds.dijob.gpus import NodeGpus, gpu_count
from trainop.kinds.dijob.names import (
    DDP_TYPE,
    DIJOBS,
    GPU,
    GPU_PORT_PREFIX,
    GROUP,
    JOB_NAME,
    MAIN_CONTAINER,
    MAIN_PORT,
    REPLICA_TYPE,
    Role,
    coordinator_name,
    default_port,
    role_of,
    url,
)
from trainop.runtime import PODS, Json, Metadata, OwnerReference

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of pods and of jobs that are never left."""

_KEPT_LABELS = (JOB_NAME, REPLICA_TYPE, DDP_TYPE, QUEUE)


@lru_cache(maxsize=4096)
def _shared_labels(values: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(values)


@lru_cache(maxsize=4096)
def _shared_ports(ports: tuple[int, ...]) -> tuple[int, ...]:
    return ports


class SeenMetadata(Metadata, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Metadata without annotations and finalizers, with one dict of labels for all pods of a role."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict, name="")
    finalizers: tuple[str, ...] = msgspec.field(default=(), name=" ")

    def _kept_labels(self) -> dict[str, str]:
        return _shared_labels(tuple((name, self.labels[name]) for name in _KEPT_LABELS if name in self.labels))


class _Port(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, gc=False):
    name: str = ""
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    host_network: bool = False
    containers: list[_Container] = []


class _PodStatus(msgspec.Struct, gc=False):
    phase: str = "Pending"
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[dict[str, str]] | None = msgspec.field(default=None, name="podIPs")


class _WholePod(msgspec.Struct, gc=False):
    metadata: SeenMetadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class PodId(NamedTuple):
    """One pod, and no other that may get its name later."""

    name: str
    uid: str


class SeenPod(msgspec.Struct, frozen=True, gc=False):
    """A pod of a DIJob."""

    metadata: SeenMetadata
    phase: str
    addresses: tuple[str, ...]
    """Its IP addresses; those of the node if it uses the node's network."""
    host_network: bool
    ports: tuple[int, ...]
    """The main port, and then those of the processes on further GPUs."""

    @property
    def role(self) -> Role | None:
        return role_of(self.metadata.labels)

    @property
    def job(self) -> OwnerReference | None:
        """The DIJob that owns it."""
        for owner in self.metadata.owner_references:
            if owner.kind == DIJOBS.kind and owner.api_version.partition("/")[0] == GROUP:
                return owner
        return None

    @property
    def is_caller(self) -> bool:
        """Whether it is the coordinator or an aggregator of its job, also by its name: labels and owner references may
        be written by every user who may create pods."""
        owner, name = self.job, self.metadata.name
        if owner is None:
            return False
        if self.role is Role.COORDINATOR:
            return name == coordinator_name(owner.name)
        return self.role is Role.AGGREGATOR and name.startswith(f"{owner.name}-{Role.AGGREGATOR.value}-")

    @property
    def aggregator(self) -> OwnerReference | None:
        """The aggregator of a ddp learner."""
        for owner in self.metadata.owner_references:
            if owner.kind == PODS.kind and owner.api_version == PODS.api_version:
                return owner
        return None

    @property
    def urls(self) -> Iterable[str]:
        """The addresses of its processes; the first is that of the pod."""
        name, namespace = self.metadata.name, self.metadata.namespace
        return [url(name, namespace, port) for port in self.ports]

    @property
    def url(self) -> str:
        return url(self.metadata.name, self.metadata.namespace, self.ports[0])


_decode_pod = msgspec.json.Decoder(_WholePod).decode


def decode_pod(raw: bytes) -> SeenPod:
    """Decodes a pod from its JSON. Raises what msgspec raises."""
    whole = _decode_pod(raw)
    status = whole.status
    more = tuple(each.get("ip", "") for each in status.pod_ips or ())
    ports = _ports_of(whole.spec.containers, whole.metadata.labels)
    return SeenPod(
        whole.metadata,
        intern(status.phase),
        more or ((status.pod_ip,) if status.pod_ip else ()),
        whole.spec.host_network,
        _shared_ports(ports),
    )


def _ports_of(containers: Iterable[_Container], labels: Mapping[str, str]) -> tuple[int, ...]:
    main = next((each for each in containers if each.name == MAIN_CONTAINER), None)
    named = [(port.name, port.container_port) for port in (main.ports if main else None) or ()]
    first = next((port for name, port in named if name == MAIN_PORT), default_port(labels))
    return (first, *sorted(port for name, port in named if name.startswith(GPU_PORT_PREFIX)))


class _JobStatus(msgspec.Struct, gc=False):
    phase: str = ""


class _WholeJob(msgspec.Struct, gc=False):
    metadata: SeenMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


class SeenJob(msgspec.Struct, frozen=True, gc=False):
    """A DIJob. Its spec stays encoded until it is needed."""

    metadata: SeenMetadata
    phase: str
    encoded_spec: bytes

    @property
    def ended(self) -> bool:
        """Finished or being deleted."""
        return self.phase in ENDED or self.metadata.terminating

    @property
    def raw(self) -> Json:
        """The job as JSON, with the metadata that pods need. Raises what msgspec raises."""
        spec: Any = msgspec.json.decode(self.encoded_spec)
        identity = {"name": self.metadata.name, "namespace": self.metadata.namespace, "uid": self.metadata.uid}
        return {"metadata": identity, "spec": spec}


_decode_whole_job = msgspec.json.Decoder(_WholeJob).decode


def decode_job(raw: bytes) -> SeenJob:
    """Decodes a DIJob from its JSON. Raises what msgspec raises."""
    whole = _decode_whole_job(raw)
    return SeenJob(whole.metadata, whole.status.phase, bytes(whole.spec))


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""


class _NodeStatus(msgspec.Struct, gc=False):
    allocatable: dict[str, str | int] = {}
    conditions: list[_Condition] = []


class _NodeSpec(msgspec.Struct, gc=False):
    unschedulable: bool = False


class _WholeNode(msgspec.Struct, gc=False):
    metadata: SeenMetadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class SeenNode(msgspec.Struct, frozen=True, gc=False):
    """A node with its GPUs."""

    metadata: SeenMetadata
    gpus: NodeGpus


_decode_whole_node = msgspec.json.Decoder(_WholeNode).decode


def decode_node(raw: bytes) -> SeenNode:
    """Decodes a node from its JSON. Raises what msgspec raises."""
    whole = _decode_whole_node(raw)
    ready = any(each.type == "Ready" and each.status == "True" for each in whole.status.conditions)
    gpus = gpu_count(whole.status.allocatable.get(GPU, 0))
    return SeenNode(whole.metadata, NodeGpus(gpus, usable=ready and not whole.spec.unschedulable))


# Indices of pods ------------------------------------------------------------------------------------------------------


def job_key(namespace: str, uid: str) -> str:
    """The value of the index `job`. A pod of another namespace is not the job's, whatever owner it names."""
    return f"{namespace}/{uid}"


def by_job(pod: SeenPod) -> tuple[str, ...]:
    """Index: namespace and UID of the job."""
    owner = pod.job
    return (job_key(pod.metadata.namespace, owner.uid),) if owner else ()


def by_caller(pod: SeenPod) -> tuple[str, ...]:
    """Index: the same, for the pods that may change the replicas of their job."""
    return by_job(pod) if pod.is_caller else ()


def by_coordinator(pod: SeenPod) -> tuple[str, ...]:
    """Index: namespace of a coordinator, and for all of them an empty text."""
    return ("", pod.metadata.namespace) if pod.role is Role.COORDINATOR and pod.is_caller else ()


def by_aggregator(pod: SeenPod) -> tuple[str, ...]:
    """Index: namespace and name of the aggregator of a ddp learner."""
    owner = pod.aggregator
    return (f"{pod.metadata.namespace}/{owner.name}",) if owner and pod.role is Role.DDP_LEARNER else ()


INDICES = {"job": by_job, "caller": by_caller, "coordinator": by_coordinator, "aggregator": by_aggregator}


def in_order(pods: Iterable[SeenPod]) -> list[SeenPod]:
    """By creation time, and then by name."""
    return sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))
