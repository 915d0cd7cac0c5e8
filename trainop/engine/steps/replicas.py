"""Pods and services: deletes surplus ones, creates missing ones, and cleans up by `cleanPodPolicy` after the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from trainop.engine.actions import LOOK_AGAIN, Ensure, Need, Remove, delete_pod
from trainop.engine.addresses import JOB, LEADER, child_name, child_namer, has_name_in, missed_mode
from trainop.engine.assess import Assessment
from trainop.engine.checkpoint import brief_grace
from trainop.engine.children import Children, Claimed, RoleSlots, is_shared_service, read_place
from trainop.engine.failures import restart_group
from trainop.engine.fields import sentence
from trainop.engine.framework import REPLICA_TYPE, Services
from trainop.engine.job import Job, Role
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod, Service
from trainop.engine.steps.builder import ReplicasBuilder
from trainop.engine.steps.gang import warn_of_other_schedulers
from trainop.engine.steps.restarts import restarting_groups
from trainop.engine.waiting import BACK_OFF, CREATION_FAILED, INVALID_SPEC
from trainop.runtime import PODS, SERVICES

MAX_PER_PLAN = 500
"""Maximum per plan of created pods, of created services, and of deleted surplus pods. The events of these children
trigger the next reconcile, which continues. The restart history has room for this many entries."""


def remove_surplus(builder: ReplicasBuilder, found: Assessment) -> None:
    """Deletes pods that the spec does not ask for: indices above `replicas`, removed roles, and pods with a wrong name.
    Pods of removed roles are kept while the spec has errors, because the role may only be misspelt."""
    removed = () if builder.job.errors else found.arrangement.pods_of_removed_roles
    surplus = (*(pod for slots in found.role_slots for pod in slots.surplus), *removed)
    for pod in surplus[:MAX_PER_PLAN]:
        found.history.mark_counted(pod.metadata.uid)
        builder.actions.append(delete_pod(pod))


def create_missing(builder: ReplicasBuilder, found: Assessment, *, gated: bool = False) -> None:
    """Creates missing services and pods, leaders first, and deletes surplus services. With `gated`, companions or the
    PodGroup are not ready and no pods are created; names of theirs that are taken are reported nevertheless."""
    present = _sort_services(builder, found.role_slots)
    _create_shared_service(builder)
    busy = restarting_groups(builder.job, found)
    for slots in found.role_slots:
        role = slots.role
        if not role.has_valid_template:
            if not slots.full:
                text = f"{role.type} pods are missing and cannot be made from an invalid template"
                builder.wait(INVALID_SPEC, text, sentence(builder.job.errors, builder.job.more_errors))
            continue
        services = _available(builder, role, "Service", _lacking_services(builder, role, present[role.label]))
        pods = _available(builder, role, "Pod", _vacant(builder, slots, busy, found.history))
        if gated:
            pods = []
        if pods and (size_error := builder.manifests.size_error):  # scaled beyond a size limit: running pods continue
            text = f"Error creating: {size_error.detail}"
            builder.warn("overlong", "FailedCreatePod", text, holds_up=CREATION_FAILED)
            continue
        builder.actions += _create(builder, role, services, pods)
        if pods and role.template["spec"].get("restartPolicy"):
            text = "Restart policy in pod template will be overwritten by restart policy in replica spec"
            builder.warn(f"restart-policy/{role.type}", f"{builder.framework.template_warnings}RestartPolicy", text)
        if pods and (scheduler := builder.seen.options.gang) is not None:
            warn_of_other_schedulers(builder, scheduler)


def _create(builder: ReplicasBuilder, role: Role, services: Sequence[int], pods: Sequence[int]) -> Iterator[Ensure]:
    """Creations ordered by index, each service before the pod of its index, so that the cap of a reconcile postpones
    the highest indices of both."""
    manifests, job = builder.manifests, builder.job.name
    template = f"spec.{builder.framework.replica_specs}.{role.type}.template"
    wanted = sorted([*((index, False) for index in services), *((index, True) for index in pods)])
    for index, is_pod in wanted:
        name = child_name(job, role, index)
        if is_pod:
            rules = builder.job.extensions.restart_rules
            yield Ensure(PODS, name, partial(manifests.pod, role, index), template=template, has_rules=rules)
        else:
            yield Ensure(SERVICES, name, partial(manifests.service, role, index), need=Need.NONE)


def _vacant(builder: ReplicasBuilder, slots: RoleSlots, busy: set[str], history: RestartHistory) -> Iterator[int]:
    """The vacant indices of the role; none while its group waits for pods to terminate or is in back-off."""
    group = restart_group(builder.job, slots.role.type)
    if group in busy:
        return
    wait = history.wait(group, builder.seen.now)
    if wait <= 0:
        yield from slots.vacancies()
    elif not slots.full:
        builder.requeue_after(wait)
        text = f"{slots.role.type} replicas fail again and again, so the next ones start later"
        builder.wait(BACK_OFF, text, since=history.last_round(group))


def _create_shared_service(builder: ReplicasBuilder) -> None:
    """Creates the service of the whole job, or reports why a job that is to have one has none. Pods that exist already
    decide about that alone."""
    job, children = builder.job, builder.children
    if job.service_mode == JOB:
        exists = any(is_shared_service(job.name, each.metadata) for each in children.services.owned)
        if not exists and any(role.has_valid_template for role in job.roles):
            encode = builder.manifests.shared_service
            free = _free_names(builder, "Service", [children.shared_service])
            builder.actions += [Ensure(SERVICES, name, encode, need=Need.NONE) for name in free]
    elif not builder.children.has_pods and (text := missed_mode(builder.framework, job, builder.seen.options)):
        builder.warn("service-mode", "ServiceModeNotPossible", text)


def _find_obsolete(builder: ReplicasBuilder) -> set[str]:
    """The UIDs of the services of a mode that the job has left: that of the whole job, or those of replicas. The latter
    stay while a pod depends on them that was not created in mode `job`."""
    job, children = builder.job, builder.children
    shared = job.service_mode != JOB
    if not shared and not all(has_name_in(job, pod) for pod in children.pods.owned):
        return set()
    places = [each.metadata for each in children.services.owned if shared or read_place(each.metadata.labels)[0]]
    return {each.uid for each in places if is_shared_service(job.name, each) == shared}


def _sort_services(builder: ReplicasBuilder, all_slots: Iterable[RoleSlots]) -> dict[str, set[int]]:
    """Role label -> indices that have a service. Surplus services are deleted."""
    roles = {slots.role.label: slots.role for slots in all_slots}
    name_of = {label: child_namer(builder.job.name, role) for label, role in roles.items()}
    present: dict[str, set[int]] = {label: set() for label in roles}
    obsolete = _find_obsolete(builder)
    for service in builder.children.services.owned:
        metadata = service.metadata
        label, index = read_place(metadata.labels)
        if metadata.uid in obsolete:
            if not metadata.terminating:
                builder.actions.append(Remove(SERVICES, metadata.name, metadata.uid))
            continue
        if index is None or label is None:
            continue
        role = roles.get(label)
        if role is not None and index < role.replicas and metadata.name == name_of[label](index):
            present[label].add(index)
        elif not metadata.terminating and (role is not None or not builder.job.errors):
            builder.actions.append(Remove(SERVICES, metadata.name, metadata.uid))
    return present


def _lacking_services(builder: ReplicasBuilder, role: Role, present: set[int]) -> Iterator[int]:
    """The indices that need a service, by the kind and the service mode, and have none."""
    services = builder.framework.roles[role.type].services
    if len(present) == role.replicas or services is Services.NONE:
        return
    mode = builder.job.service_mode
    if mode == JOB:
        return
    for index in range(role.replicas if services is Services.EACH else min(role.replicas, 1)):
        if index not in present and (mode != LEADER or builder.framework.needs_service(builder.job, role, index)):
            yield index


def _available(builder: ReplicasBuilder, role: Role, kind: str, indices: Iterator[int]) -> list[int]:
    """The first `MAX_PER_PLAN` of `indices`, without those whose names are occupied."""
    wanted = {child_name(builder.job.name, role, index): index for index in islice(indices, MAX_PER_PLAN)}
    return [wanted[name] for name in _free_names(builder, kind, wanted)]


def _free_names(builder: ReplicasBuilder, kind: str, wanted: Collection[str]) -> Sequence[str]:
    """Those names that no object has. A child of the job that was relabelled as another replica occupies its name until
    it is gone."""
    claimed: Claimed[Pod] | Claimed[Service] = builder.children.pods if kind == "Pod" else builder.children.services
    if not wanted:
        return ()
    going = {child.metadata.name for child in claimed.owned} | claimed.being_removed.keys() | claimed.orphans.keys()
    unreadable = builder.seen.unreadable.get(kind, {})
    free: list[str] = []
    for name in wanted:
        if name in unreadable:
            builder.warn_unreadable(kind, name, unreadable[name])
            builder.requeue_after(LOOK_AGAIN)  # its owner is unknown, so that its deletion triggers no reconcile
        elif name in claimed.foreign:
            builder.warn_name_taken(kind, name)
        elif name in going:
            builder.requeue_after(LOOK_AGAIN)
        else:
            free.append(name)
    return free


# After the end --------------------------------------------------------------------------------------------------------


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
