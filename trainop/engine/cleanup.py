"""What a finished or suspended job gives back."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainop.engine.actions import DeletePod, DeleteService
from trainop.engine.claim import Children
from trainop.engine.seen import Pod


def sweep(
    children: Children, policy: str, surplus: Collection[str] = frozenset()
) -> Iterator[DeletePod | DeleteService]:
    """Delete what `policy` does not keep: `None` keeps everything, `Running` the pods that have ended and their
    services, `All` nothing. Services go by their own list, so that those of vanished pods do not stay.

    No policy keeps what still runs of the `surplus`, the names of slots that the spec does not have any more. What is
    to be adopted is left to the pass that finds it adopted."""
    kept = set(children.pods.orphans)
    for pod in children.pods.ours:
        name = pod.metadata.name
        if policy == "All" or (pod.status.phase in _UNFINISHED and (policy == "Running" or name in surplus)):
            if not pod.metadata.terminating:
                yield delete_pod(pod)
        else:
            kept.add(name)
    for service in children.services.ours:
        metadata = service.metadata
        goes = metadata.name in surplus or policy != "None"
        if goes and metadata.name not in kept and not metadata.terminating:
            yield DeleteService(metadata.name, metadata.uid)


_UNFINISHED = frozenset({"Running", "Pending"})


def delete_pod(pod: Pod) -> DeletePod:
    return DeletePod(pod.metadata.name, pod.metadata.uid)
