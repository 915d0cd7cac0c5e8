"""The rights of a job's service account, which follow ownership: they cover the pods that the job's UID controls.

A Role can name pods, but not their UIDs. So it names a pod only from the time at which the job is seen to control it
until that pod ends, terminates or is about to be deleted, and the names that are no longer valid are removed first,
before anything else that a plan does. `docs/security.md` describes the rest of the risk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainop.engine.actions import LOOK_AGAIN, Action, Need, Patch, Remove
from trainop.engine.addresses import child_name, child_namer
from trainop.engine.children import Children, Claimed, join_names, read_place
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.fields import as_list
from trainop.engine.framework import JOB_NAME, Companion, CompanionKind, Framework, Grant
from trainop.engine.job import UNKNOWN_REPLICAS, Role
from trainop.engine.parse import parse
from trainop.engine.seen import Snapshot
from trainop.engine.status import RIGHTS_GRANTED
from trainop.engine.steps.builder import ReplicasBuilder
from trainop.engine.steps.companions import FINGERPRINT, differs, write_companion
from trainop.runtime import PODS, Json, Metadata, Resource, Unstructured
from trainop.runtime.lowlevel import read_time, timestamp

RBAC = "rbac.authorization.k8s.io"
ROLE = CompanionKind(Resource(RBAC, "v1", "roles", "Role"), Need.JOB, permission_optional=True, posted=True)
BINDING = ROLE._replace(resource=Resource(RBAC, "v1", "rolebindings", "RoleBinding"), metadata_only=True)

GRANTED_AT = ANNOTATION_PREFIX + "rights-written-at"
"""Annotation of the Role: when it was last written."""

GRANT_INTERVAL = 15.0
"""Seconds between two extensions of a Role while pods are missing. It names all pods, so that a write per pod would be
quadratic. Names are removed at once."""

ENDED = frozenset({"Succeeded", "Failed"})
"""The phases of pods in which nothing can be executed any more."""


def begin_withdrawal(framework: Framework, seen: Snapshot) -> ReplicasBuilder | None:
    """A plan that does nothing but withdraw the rights of a job that is being deleted; None if it has none."""
    if framework.grant is None or not seen.companions.get(ROLE.resource):
        return None
    return ReplicasBuilder(framework, parse(framework, seen.job), seen, Children(Claimed(), Claimed()))


def settle_rights(builder: ReplicasBuilder, grant: Grant) -> None:
    """Completes a plan with the writes of the Role and the RoleBinding, as its first actions."""
    builder.actions = [*_settle(builder, grant), *builder.actions]


def are_blocked(builder: ReplicasBuilder, grant: Grant) -> bool:
    """Whether the Role or the RoleBinding of another owner has the name that the job needs; warns about it."""
    blocked = False
    for kind in (ROLE, BINDING):
        for found in _named(builder.seen, kind, grant):
            if builder.owns(found):
                continue
            blocked = True
            if builder.is_going(found.metadata):
                builder.requeue_after(LOOK_AGAIN)
            else:
                builder.warn_name_taken(kind.resource.kind, grant.name)
    return blocked


def withdraw(found: Unstructured) -> Patch | None:
    """Empties a Role that was left behind by a deleted job, such as one that was deleted without its children. None if
    there is nothing to withdraw."""
    metadata, owner = found.metadata, found.metadata.controller
    job = metadata.labels.get(JOB_NAME, "")
    was_ours = metadata.name.startswith(f"{job}-") and FINGERPRINT in metadata.annotations
    if not found.raw.get("rules") or not was_ours or (owner is not None and owner.name != job):
        return None
    return Patch(ROLE.resource, metadata.name, metadata.uid, {"rules": []})


# The decision ---------------------------------------------------------------------------------------------------------


def _settle(builder: ReplicasBuilder, grant: Grant) -> list[Action]:
    names = _controlled_pods(builder, grant)
    complete = names is not None and _is_complete(builder, grant, names)
    if names is not None:
        _show_taken(builder, complete=complete)
    elif not builder.seen.job.metadata.terminating:
        builder.status.remove(RIGHTS_GRANTED)
    role = next((each for each in _named(builder.seen, ROLE, grant) if builder.owns(each)), None)
    if role is None:
        return _write(builder, grant, names or [], None) if complete and _is_free(builder, grant) else []
    if role.metadata.terminating:
        return []  # its deletion triggers the next reconcile
    return _write(builder, grant, _choose(builder, role, names or [], complete=complete), role)


def _is_free(builder: ReplicasBuilder, grant: Grant) -> bool:
    """Whether neither name is taken by an object of another owner."""
    found = (each for kind in (ROLE, BINDING) for each in _named(builder.seen, kind, grant))
    return all(builder.owns(each) for each in found)


def _choose(builder: ReplicasBuilder, role: Unstructured, names: list[str], *, complete: bool) -> list[str]:
    """The pods that the Role should name now. Pods that are no longer controlled are dropped at once; others are added
    when none is missing, or after a while if a launcher uses the rights already."""
    stored = _names_in(role)
    kept = [name for name in names if name in stored]
    if complete:
        return names
    if len(kept) == len(names) or not kept or not builder.job.readable:
        return kept
    written = read_time(role.metadata.annotations.get(GRANTED_AT))
    left = GRANT_INTERVAL - (builder.seen.now - written).total_seconds() if written is not None else 0.0
    if left <= 0:
        return names
    builder.requeue_after(min(left, GRANT_INTERVAL))
    return kept


def _write(builder: ReplicasBuilder, grant: Grant, names: Sequence[str], role: Unstructured | None) -> list[Action]:
    """The writes that are needed: none if the objects are as they should be. The account is bound only once the Role is
    seen to be the job's, since one of the same name may be another owner's, with other rights."""
    rules = grant.rules(names) if names else []
    actions: list[Action] = []
    if role is None or (role.raw.get("rules") or []) != rules:
        written = {GRANTED_AT: timestamp(builder.seen.now)}
        wanted = Companion(
            ROLE, grant.name, "\0".join(names), lambda: {"rules": rules}, labels=grant.labels, annotations=written
        )
        actions.append(_apply(builder, wanted, role))
    if role is not None and names and grant.account:
        actions += _bind(builder, grant)
    return actions


def _bind(builder: ReplicasBuilder, grant: Grant) -> list[Action]:
    content = {
        "roleRef": {"apiGroup": RBAC, "kind": ROLE.resource.kind, "name": grant.name},
        "subjects": [{"kind": "ServiceAccount", "name": grant.account, "namespace": builder.job.namespace}],
    }
    wanted = Companion(BINDING, grant.name, grant.account, lambda: content, labels=grant.labels)
    found = next(iter(_named(builder.seen, BINDING, grant)), None)
    if found is None:
        return [_apply(builder, wanted, None)]
    if not builder.owns(found) or found.metadata.terminating or not differs(wanted, found):
        return []
    return [_apply(builder, wanted, found)]


def _apply(builder: ReplicasBuilder, wanted: Companion, found: Unstructured | None) -> Action:
    """Not essential: pods must be deletable while the API server refuses a Role."""
    return replace(write_companion(builder, wanted, found.metadata.uid if found else ""), need=Need.NONE)


def rules_of(role: Unstructured) -> list[Json]:
    """The rules of a Role."""
    rules = role.raw.get("rules")
    return as_list(rules)


# What is seen ---------------------------------------------------------------------------------------------------------


def _controlled_pods(builder: ReplicasBuilder, grant: Grant) -> list[str] | None:
    """The names of the pods that the job controls and keeps, in the order of their indices; None if it keeps none,
    because it has finished, is suspended or is being deleted. While the job is unreadable, all pods of the role."""
    job = builder.job
    if builder.seen.job.metadata.terminating or builder.status.finished or job.run_policy.suspend:
        return None
    leaving = {action.uid for action in builder.actions if isinstance(action, Remove) and action.resource == PODS}
    role = job.role(grant.role) or Role(grant.role, 0 if job.readable else UNKNOWN_REPLICAS, "", {})
    namer, found = child_namer(job.name, role), dict[int, str]()
    for pod in builder.children.pods.owned:
        label, index = read_place(pod.metadata.labels)
        if label != role.label or index is None or index >= role.replicas or pod.metadata.name != namer(index):
            continue
        if not pod.metadata.terminating and pod.status.phase not in ENDED and pod.metadata.uid not in leaving:
            found[index] = pod.metadata.name
    return [name for _, name in sorted(found.items())]


def _is_complete(builder: ReplicasBuilder, grant: Grant, names: Sequence[str]) -> bool:
    role = builder.job.role(grant.role)
    return role is not None and len(names) == role.replicas > 0


def _named(seen: Snapshot, kind: CompanionKind, grant: Grant) -> list[Unstructured]:
    return [each for each in seen.companions.get(kind.resource, ()) if each.metadata.name == grant.name]


def _names_in(role: Unstructured) -> set[str]:
    return {name for rule in rules_of(role) for name in rule.get("resourceNames") or ()}


# Names that are taken -------------------------------------------------------------------------------------------------


def _show_taken(builder: ReplicasBuilder, *, complete: bool) -> None:
    """Shows the names that objects of others have. While a pod is missing, an earlier condition stays: after a start,
    the operator learns of the objects only when it tries to create the pods."""
    taken = sorted({*_taken_pods(builder), *(each for each in builder.seen.taken if each[0] != "Pod")})
    if not taken:
        if complete:
            builder.status.remove(RIGHTS_GRANTED)
        return
    kind, job = taken[0][0], f"{builder.framework.kind} {builder.job.name}"
    named = join_names(Metadata(name=name) for each, name in taken if each == kind)
    text = (
        f"{kind} {named} exists and is not controlled by {job}, which needs the name. The job has no rights there and "
        f"waits: delete the {kind}, or create the job under another name"
    )
    builder.status.set_first(RIGHTS_GRANTED, "False", "NameTaken", text)


def _taken_pods(builder: ReplicasBuilder) -> Iterable[tuple[str, str]]:
    """The names of the job's slots that the API server, or the caches, show to be taken."""
    pods = builder.children.pods
    owned = {pod.metadata.name for pod in pods.owned}
    told = {name for kind, name in builder.seen.taken if kind == "Pod"}
    return (("Pod", name) for name in {*told, *pods.foreign} if name not in owned and _is_needed(builder, name))


def _is_needed(builder: ReplicasBuilder, name: str) -> bool:
    last = name.rpartition("-")[2]
    index = int(last) if last.isascii() and last.isdigit() and len(last) <= 10 else 0
    roles = [role for role in builder.job.roles if index < role.replicas]
    return any(child_name(builder.job.name, role, index) == name for role in roles)
