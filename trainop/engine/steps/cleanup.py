"""Deletion of the pods and services of a finished or suspended job, by `cleanPodPolicy`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from trainop.engine.actions import Remove
from trainop.engine.checkpoint import brief_grace
from trainop.engine.claim import Children
from trainop.engine.framework import REPLICA_TYPE
from trainop.engine.job import Job
from trainop.engine.seen import Pod
from trainop.runtime import PODS, SERVICES


def own_grace(_pod: Pod) -> int | None:
    """The grace period in the pod's spec."""
    return None


def grace_after_success(job: Job) -> Callable[[Pod], int | None]:
    """The grace period of the pods of a job that has succeeded: they have nothing left to save."""
    checkpoint = job.extensions.checkpoint
    brief = {role.label: brief_grace(checkpoint, role.template) for role in job.roles}
    return lambda pod: brief.get(pod.metadata.labels.get(REPLICA_TYPE, ""))


def sweep(
    children: Children,
    policy: str,
    surplus: Collection[str] = frozenset(),
    grace_of: Callable[[Pod], int | None] = own_grace,
) -> Iterator[Remove]:
    """Deletes the children that `policy` does not keep: `None` keeps all, `Running` keeps pods that have ended and
    their services, `All` keeps none. Services are examined on their own, so that a service without a pod is deleted
    too; that of the whole job is kept as long as any pod.

    `surplus` are the names of slots that the spec no longer has: their running pods are deleted under every policy.
    Orphans are left until a later reconcile finds them adopted. `grace_of` returns the grace period of a pod, see
    `Remove`.
    """
    kept = set(children.pods.orphans)
    for pod in children.pods.owned:
        name = pod.metadata.name
        if policy == "All" or (pod.status.phase in _UNFINISHED and (policy == "Running" or name in surplus)):
            if not pod.metadata.terminating:
                yield delete_pod(pod, grace_of(pod))
        else:
            kept.add(name)
    for service in children.services.owned:
        metadata = service.metadata
        goes = metadata.name in surplus or policy != "None"
        needed = metadata.name in kept or (kept and metadata.name == children.shared_service)
        if goes and not needed and not metadata.terminating:
            yield Remove(SERVICES, metadata.name, metadata.uid)


_UNFINISHED = frozenset({"Running", "Pending"})


def delete_pod(pod: Pod, grace: int | None = None) -> Remove:
    return Remove(PODS, pod.metadata.name, pod.metadata.uid, grace=grace)
