"""What a finished or suspended job gives back."""

from __future__ import annotations

from collections.abc import Iterator

from trainop.engine.claim import Children
from trainop.engine.model import DeletePod, DeleteService, Pod


def sweep(children: Children, policy: str) -> Iterator[DeletePod | DeleteService]:
    """Delete what `policy` does not keep: `None` keeps everything, `Running` the pods that have ended and their
    services, `All` nothing. Services go by their own list, so that those of vanished pods do not stay."""
    if policy == "None":
        return
    kept: set[str] = set()
    for pod in children.pods.ours:
        if policy == "Running" and pod.status.phase not in {"Running", "Pending"}:
            kept.add(pod.metadata.name)
        elif not pod.metadata.terminating:
            yield delete_pod(pod)
    for service in children.services.ours:
        if service.metadata.name not in kept and not service.metadata.terminating:
            yield DeleteService(service.metadata.name, service.metadata.uid)


def delete_pod(pod: Pod) -> DeletePod:
    return DeletePod(pod.metadata.name, pod.metadata.uid)
