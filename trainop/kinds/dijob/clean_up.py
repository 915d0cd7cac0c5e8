"""What is deleted of a finished DIJob (DI-orchestrator `controllers/pod.go`)."""

from __future__ import annotations

from collections.abc import Iterable

from trainop.engine.actions import Remove
from trainop.engine.seen import Service
from trainop.kinds.dijob.job import ALL, NONE
from trainop.kinds.dijob.seen import DiPod
from trainop.runtime import PODS, SERVICES

_ALIVE = ("Running", "Pending")


def leftover_services(services: Iterable[Service]) -> list[Remove]:
    """All services of the job."""
    found = (service.metadata for service in services)
    return [Remove(SERVICES, metadata.name, metadata.uid) for metadata in found if not metadata.terminating]


def leftover_pods(pods: Iterable[DiPod], policy: str, *, graceful: bool) -> list[Remove]:
    """The pods that the policy does not keep. Without `graceful` they have no grace period, as upstream."""
    return [
        Remove(PODS, pod.metadata.name, pod.metadata.uid, force=not graceful)
        for pod in pods
        if not pod.metadata.terminating and not _is_kept(pod, policy)
    ]


def _is_kept(pod: DiPod, policy: str) -> bool:
    """Policy `Running` keeps pods that have ended, and those that crash, for their logs."""
    if policy in {ALL, NONE}:
        return policy == NONE
    return pod.status.phase not in _ALIVE or pod.has_stopped_container
