"""Scaling: which children are too many, and which are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter

from trainop.engine.actions import CreatePod, CreateService, DeleteService
from trainop.engine.claim import Claimed
from trainop.engine.cleanup import delete_pod
from trainop.engine.draft import Draft
from trainop.engine.failures import Findings
from trainop.engine.job import Role
from trainop.engine.ledger import Ledger
from trainop.engine.manifests import child_name
from trainop.engine.restarts import circle, going
from trainop.engine.seen import Pod, Service
from trainop.engine.slots import Arrangement, Line, read_place

MOST_PER_PLAN = 500
"""Pods, and services, that one plan creates at most, and pods that it takes away as too many: each of them brings the
next pass, and the ledger has room for them."""
LEFT_AGAIN_AFTER = 30.0
"""Seconds until the next look at a name whose holder is going; its end wakes the job before that."""


def remove_surplus(draft: Draft, arrangement: Arrangement, ledger: Ledger) -> None:
    """Delete what the spec does not ask for (any more): higher indices, whole roles, and what has no slot's name. Roles
    stay while the spec has errors: one that is missing may be misspelt."""
    strays = () if draft.job.errors else arrangement.strays
    surplus = (*(pod for line in arrangement.lines for pod in line.surplus), *strays)
    for pod in surplus[:MOST_PER_PLAN]:
        ledger.settle(pod.metadata.uid)
        draft.actions.append(delete_pod(pod))


def fill(draft: Draft, lines: Sequence[Line], findings: Findings, ledger: Ledger) -> None:
    """Create what is missing, services before pods, leaders before others; delete services that are too many."""
    present = _sort_services(draft, lines)
    busy = going(draft.job, lines, findings)
    for line in lines:
        role = line.role
        if not role.makeable:
            continue
        services = _free(draft, role, "Service", _lacking_services(draft, role, present[role.label]))
        pods = _free(draft, role, "Pod", _due(draft, line, busy, ledger))
        if pods and draft.manifests.overlong:  # scaled too far: those that run go on
            draft.warn("overlong", "FailedCreatePod", f"Error creating: {draft.manifests.overlong}")
            continue
        draft.actions += _create(draft, role, services, pods)
        if pods and role.template["spec"].get("restartPolicy"):
            text = "Restart policy in pod template will be overwritten by restart policy in replica spec"
            draft.warn(f"restart-policy/{role.type}", "SetPodTemplateRestartPolicy", text)


def _create(
    draft: Draft, role: Role, services: Sequence[int], pods: Sequence[int]
) -> Iterator[CreateService | CreatePod]:
    """A service right before the pod of its index: what is beyond the cap of a pass are then the last of both."""
    manifests, job = draft.manifests, draft.job.name
    wanted: list[tuple[int, type[CreateService | CreatePod], Callable[[Role, int], bytes]]] = [
        *((index, CreateService, manifests.service) for index in services),
        *((index, CreatePod, manifests.pod) for index in pods),
    ]
    for index, action, encode in sorted(wanted, key=itemgetter(0)):
        yield action(child_name(job, role, index), partial(encode, role, index))


def _due(draft: Draft, line: Line, busy: set[str], ledger: Ledger) -> Iterator[int]:
    """The vacancies of the role, unless it is to wait for pods to go, or after restarts in a row."""
    circle_ = circle(draft.job, line.role.type)
    if circle_ in busy:
        return
    wait = ledger.wait(circle_, draft.seen.now)
    if wait <= 0:
        yield from line.vacancies()
    elif not line.full:
        draft.look_again(wait)


def _sort_services(draft: Draft, lines: Iterable[Line]) -> dict[str, set[int]]:
    """Role label -> indices that have a service."""
    roles = {line.role.label: line.role for line in lines}
    present: dict[str, set[int]] = {label: set() for label in roles}
    for service in draft.children.services.ours:
        metadata = service.metadata
        label, index = read_place(metadata.labels)
        if index is None or label is None:
            continue
        role = roles.get(label)
        if role is not None and index < role.replicas and metadata.name == child_name(draft.job.name, role, index):
            present[label].add(index)
        elif not metadata.terminating and (role is not None or not draft.job.errors):
            draft.actions.append(DeleteService(metadata.name, metadata.uid))
    return present


def _lacking_services(draft: Draft, role: Role, present: set[int]) -> Iterator[int]:
    if len(present) == role.replicas:
        return
    mode = draft.job.extensions.service_mode or draft.seen.options.service_mode
    for index in range(role.replicas):
        if index not in present and (mode != "leader" or draft.framework.meets(draft.job, role, index)):
            yield index


def _free(draft: Draft, role: Role, kind: str, indices: Iterator[int]) -> list[int]:
    """Those of the `indices` whose names nobody occupies, as many as one plan creates. An own child that somebody has
    labelled as another replica, or as none, keeps its name until it has gone."""
    claimed: Claimed[Pod] | Claimed[Service] = draft.children.pods if kind == "Pod" else draft.children.services
    wanted = list(islice(indices, MOST_PER_PLAN))
    if not wanted:
        return wanted
    going = {child.metadata.name for child in claimed.ours} | claimed.leaving.keys() | claimed.adoptees.keys()
    unreadable = draft.seen.unreadable.get(kind, {})
    free: list[int] = []
    for index in wanted:
        name = child_name(draft.job.name, role, index)
        if name in unreadable:
            draft.tell_unreadable(kind, name, unreadable[name])
            draft.look_again(LEFT_AGAIN_AFTER)  # its end wakes nobody, as nobody knows whose it was
        elif name in claimed.foreign:
            draft.tell_foreign(kind, name)
        elif name in going:
            draft.look_again(LEFT_AGAIN_AFTER)
        else:
            free.append(index)
    return free
