"""What the controller keeps of the pods and services of DIJobs: the fields that its plans read, and no more."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import intern
from typing import Any

import msgspec

from trainop.engine.pod_status import ContainerStatus, PodStatus
from trainop.engine.seen import ChildMetadata, Pod, PodSpec, Service
from trainop.kinds.dijob.gpus import gpus_of
from trainop.kinds.dijob.names import LABELS, MAIN_CONTAINER, MAIN_PORT, REPLICA_TYPE

CRASH_LOOP = "CrashLoopBackOff"


class DiMetadata(ChildMetadata, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Metadata without annotations and without the labels of the user."""

    def _kept_labels(self) -> dict[str, str]:
        return {label: intern(value) for label in LABELS if (value := self.labels.get(label)) is not None}


class DiService(Service, frozen=True, gc=False):
    """A v1 Service; plans read only its metadata."""

    metadata: DiMetadata = DiMetadata()


class DiPod(Pod, frozen=True, gc=False):
    """The fields of a v1 Pod that plans depend on."""

    metadata: DiMetadata = DiMetadata()
    status: PodStatus = PodStatus(phase="Unknown")
    """Only the phase, unless the pod has failed; it is unknown if the pod cannot be decoded."""
    restart_policy: str = "Always"
    main_exit_code: int | None = None
    """Of the main container; None if it has not terminated, or if no container is recognized as the main one."""
    has_stopped_container: bool = False
    """A container has terminated or is in a crash loop."""
    port: int | None = None
    """`di-port` of `di-container`, if it has one."""
    gpus: int = 0
    """Of `di-container`."""
    main: str = ""
    """The name of the main container, of a pod that has failed."""


# What is read of a pod ------------------------------------------------------------------------------------------------


class _Port(msgspec.Struct, frozen=True, rename="camel", gc=False):
    container_port: int = 0
    name: str = ""


class _Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    ports: tuple[_Port, ...] | None = None
    resources: Any = None


class _Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    restart_policy: str = "Always"
    node_name: str = ""
    grace: int | None = msgspec.field(default=None, name="terminationGracePeriodSeconds")
    containers: tuple[_Container, ...] = ()


class _WholePod(msgspec.Struct, frozen=True, gc=False):
    metadata: DiMetadata = DiMetadata()
    spec: _Spec = _Spec()
    status: PodStatus = PodStatus()


_decode_whole: Callable[[bytes], _WholePod] = msgspec.json.Decoder(_WholePod).decode
decode_di_service: Callable[[bytes], DiService] = msgspec.json.Decoder(DiService).decode


def decode_di_pod(raw: bytes) -> DiPod:
    """Decodes a pod; if only its metadata is valid, one of unknown phase. Raises `msgspec.MsgspecError` or `ValueError`
    if not even that."""
    try:
        found = _decode_whole(raw)
    except (msgspec.MsgspecError, ValueError):
        return DiPod(decode_di_service(raw).metadata)
    containers, statuses = found.spec.containers, found.status.container_statuses
    failed = found.status.has_failed_container or found.status.phase == "Failed"
    main = next((each for each in containers if each.name == MAIN_CONTAINER), None)
    return DiPod(
        metadata=found.metadata,
        status=found.status if failed else _only_phase(found.status.phase),
        spec=_shown_spec(found.spec.node_name if failed else "", found.spec.grace),
        restart_policy=intern(found.spec.restart_policy),
        main_exit_code=_exit_code(main_name(found), statuses),
        has_stopped_container=any(_has_stopped(each) for each in statuses),
        port=next((port.container_port for port in (main and main.ports) or () if port.name == MAIN_PORT), None),
        gpus=gpus_of(main.resources) if main else 0,
        main=intern(main_name(found) or "") if failed else "",
    )


def main_name(pod: _WholePod) -> str | None:
    """The container that decides whether the pod has ended: `di-container`, else the one that is named after the role,
    else the only one."""
    names = [each.name for each in pod.spec.containers]
    for name in (MAIN_CONTAINER, pod.metadata.labels.get(REPLICA_TYPE, "")):
        if name in names:
            return name
    return names[0] if len(names) == 1 else None


def _has_stopped(status: ContainerStatus) -> bool:
    waiting = status.state.waiting
    return status.state.terminated is not None or (waiting is not None and waiting.reason == CRASH_LOOP)


def _exit_code(name: str | None, statuses: tuple[ContainerStatus, ...]) -> int | None:
    for each in statuses:
        if each.name == name and each.state.terminated is not None:
            return each.state.terminated.exit_code
    return None


@lru_cache(maxsize=64)
def _shown_spec(node_name: str, grace: int | None) -> PodSpec:
    """One shared spec for all pods of a node and a grace period."""
    return PodSpec(node_name=node_name, grace=grace)


@lru_cache(maxsize=64)
def _only_phase(phase: str) -> PodStatus:
    """One shared status for all pods of a phase."""
    return PodStatus(phase=phase)
