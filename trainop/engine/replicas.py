"""Scaling: which children are too many, and which are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter

from trainop.engine.actions import CreatePod, CreateService, DeleteService
from trainop.engine.assess import Assessment
from trainop.engine.builder import PlanBuilder
from trainop.engine.claim import Claimed
from trainop.engine.cleanup import delete_pod
from trainop.engine.failures import restart_group
from trainop.engine.framework import Services
from trainop.engine.job import Role
from trainop.engine.manifests import child_name, child_namer
from trainop.engine.restart_history import RestartHistory
from trainop.engine.restarts import restarting_groups
from trainop.engine.seen import Pod, Service
from trainop.engine.slots import RoleSlots, read_place

MAX_PER_PLAN = 500
"""Pods, and services, that one plan creates at most, and pods that it takes away as too many: each of them brings the
next pass, and the history has room for them."""
NAME_OCCUPIED_REQUEUE_DELAY = 30.0
"""Seconds until the next look at a name whose holder is going; its end wakes the job before that."""


def remove_surplus(builder: PlanBuilder, found: Assessment) -> None:
    """Delete what the spec does not ask for (any more): higher indices, whole roles, and what has no slot's name. Roles
    stay while the spec has errors: one that is missing may be misspelt."""
    removed = () if builder.job.errors else found.arrangement.pods_of_removed_roles
    surplus = (*(pod for slots in found.role_slots for pod in slots.surplus), *removed)
    for pod in surplus[:MAX_PER_PLAN]:
        found.history.mark_counted(pod.metadata.uid)
        builder.actions.append(delete_pod(pod))


def create_missing(builder: PlanBuilder, found: Assessment, *, gated: bool = False) -> None:
    """Create what is missing, services before pods, leaders before others; delete services that are too many. No pod
    is created while companions are not ready for it (`gated`)."""
    present = _sort_services(builder, found.role_slots)
    busy = restarting_groups(builder.job, found)
    for slots in found.role_slots:
        role = slots.role
        if not role.has_valid_template:
            continue
        services = _available(builder, role, "Service", _lacking_services(builder, role, present[role.label]))
        pods = [] if gated else _available(builder, role, "Pod", _vacant(builder, slots, busy, found.history))
        if pods and (size_error := builder.manifests.size_error):  # scaled too far: those that run go on
            builder.warn("overlong", "FailedCreatePod", f"Error creating: {size_error.detail}")
            continue
        builder.actions += _create(builder, role, services, pods)
        if pods and role.template["spec"].get("restartPolicy"):
            text = "Restart policy in pod template will be overwritten by restart policy in replica spec"
            builder.warn(f"restart-policy/{role.type}", "SetPodTemplateRestartPolicy", text)


def _create(
    builder: PlanBuilder, role: Role, services: Sequence[int], pods: Sequence[int]
) -> Iterator[CreateService | CreatePod]:
    """A service right before the pod of its index: what is beyond the cap of a pass are then the last of both."""
    manifests, job = builder.manifests, builder.job.name
    wanted: list[tuple[int, type[CreateService | CreatePod], Callable[[Role, int], bytes]]] = [
        *((index, CreateService, manifests.service) for index in services),
        *((index, CreatePod, manifests.pod) for index in pods),
    ]
    for index, action, encode in sorted(wanted, key=itemgetter(0)):
        yield action(child_name(job, role, index), partial(encode, role, index))


def _vacant(builder: PlanBuilder, slots: RoleSlots, busy: set[str], history: RestartHistory) -> Iterator[int]:
    """The vacancies of the role, unless it is to wait for pods to go, or after restarts in a row."""
    group = restart_group(builder.job, slots.role.type)
    if group in busy:
        return
    wait = history.wait(group, builder.seen.now)
    if wait <= 0:
        yield from slots.vacancies()
    elif not slots.full:
        builder.requeue_after(wait)


def _sort_services(builder: PlanBuilder, all_slots: Iterable[RoleSlots]) -> dict[str, set[int]]:
    """Role label -> indices that have a service."""
    roles = {slots.role.label: slots.role for slots in all_slots}
    name_of = {label: child_namer(builder.job.name, role) for label, role in roles.items()}
    present: dict[str, set[int]] = {label: set() for label in roles}
    for service in builder.children.services.ours:
        metadata = service.metadata
        label, index = read_place(metadata.labels)
        if index is None or label is None:
            continue
        role = roles.get(label)
        if role is not None and index < role.replicas and metadata.name == name_of[label](index):
            present[label].add(index)
        elif not metadata.terminating and (role is not None or not builder.job.errors):
            builder.actions.append(DeleteService(metadata.name, metadata.uid))
    return present


def _lacking_services(builder: PlanBuilder, role: Role, present: set[int]) -> Iterator[int]:
    services = builder.framework.roles[role.type].services
    if len(present) == role.replicas or services is Services.NONE:
        return
    mode = builder.job.extensions.service_mode or builder.seen.options.service_mode
    for index in range(role.replicas if services is Services.EACH else min(role.replicas, 1)):
        if index not in present and (mode != "leader" or builder.framework.needs_service(builder.job, role, index)):
            yield index


def _available(builder: PlanBuilder, role: Role, kind: str, indices: Iterator[int]) -> list[int]:
    """Those of the `indices` whose names nobody occupies, as many as one plan creates. An own child that somebody has
    labelled as another replica, or as none, keeps its name until it has gone."""
    claimed: Claimed[Pod] | Claimed[Service] = builder.children.pods if kind == "Pod" else builder.children.services
    wanted = list(islice(indices, MAX_PER_PLAN))
    if not wanted:
        return wanted
    going = {child.metadata.name for child in claimed.ours} | claimed.being_removed.keys() | claimed.orphans.keys()
    unreadable = builder.seen.unreadable.get(kind, {})
    free: list[int] = []
    for index in wanted:
        name = child_name(builder.job.name, role, index)
        if name in unreadable:
            builder.warn_unreadable(kind, name, unreadable[name])
            builder.requeue_after(NAME_OCCUPIED_REQUEUE_DELAY)  # its end wakes nobody, as nobody knows whose it was
        elif name in claimed.foreign:
            builder.warn_name_taken(kind, name)
        elif name in going:
            builder.requeue_after(NAME_OCCUPIED_REQUEUE_DELAY)
        else:
            free.append(index)
    return free
