"""`rehearse`: what the operator would create for a job, computed without a cluster.

The job's own plans are made one after another, as if every object was created at once and every pod ran: an object
that waits for others, such as the launcher of an MPIJob, is planned as soon as they exist. Nothing is contacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from trainop.engine.actions import Action, Ensure, Event, Need, Patch, Plan
from trainop.engine.kind import Kind
from trainop.engine.seen import Options, Pod, PodGroup, Service, Snapshot
from trainop.runtime import PODS, SERVICES, Json, Resource, Unstructured
from trainop.runtime.lowlevel import apply_change, timestamp

MAX_IDLE_ROUNDS = 20
"""Plans in a row that create nothing. The status settles in a few; the limit guards against one that never does."""

JOB_UID = "00000000-0000-0000-0000-000000000000"
"""The UID of a job that does not exist yet."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Made:
    """An object that the operator would create."""

    resource: Resource
    manifest: Json
    completed: bool = False
    """Content is added right before it is created, such as a random key."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The result for one job."""

    made: tuple[Made, ...] = ()
    """In the order of creation."""
    warnings: tuple[str, ...] = ()
    """Messages of the Warning events, each once."""
    refused: str = ""
    """Why the job would fail at once; empty if it would not."""
    left_to: str = ""
    """The controller in `spec.runPolicy.managedBy` that this operator leaves the job to; empty if there is none."""
    suspended: bool = False
    """The job is suspended: the objects are created when it is resumed."""


@dataclass(slots=True)
class _World:
    """The job and the objects that it has so far."""

    job: Json
    pods: dict[str, Pod] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    companions: dict[Resource, dict[str, Any]] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)


def rehearse(kinds: Sequence[Kind], raw: Json, options: Options, now: datetime) -> Rehearsal:
    """Rehearses the job `raw`, an object as in a manifest, valid by the schema of its kind. `kinds` are all kinds of
    its resource: the first whose `concerns` accepts the job plans it."""
    job, manager, suspended = _prepare(kinds[0], raw, now)
    world = _World(job)
    idle = 0
    while idle < MAX_IDLE_ROUNDS:
        before = len(world.made)
        current = Unstructured(world.job)
        kind = next((each for each in kinds if each.concerns(current)), kinds[0])
        plan = kind.plan(_snapshot(kind, world, options, now))
        changed = _note(world, plan)
        if refusal := _refusal(world.job):
            return Rehearsal(warnings=tuple(world.warnings), refused=refusal)
        for action in plan.actions:
            changed |= _carry_out(kind, world, action, now)
        if not changed:
            break
        idle = 0 if len(world.made) > before else idle + 1
    left_to = manager if not world.made else ""
    return Rehearsal(tuple(world.made), tuple(world.warnings), left_to=left_to, suspended=suspended)


def _prepare(kind: Kind, raw: Json, now: datetime) -> tuple[Json, str, bool]:
    """The job as the API server would store it and not suspended, its `managedBy`, and whether it is suspended."""
    job = raw if kind.default is None else apply_change(raw, kind.default)
    spec: Json = job["spec"] if isinstance(job.get("spec"), dict) else {}
    policy: Json = spec["runPolicy"] if isinstance(spec.get("runPolicy"), dict) else {}
    suspended = policy.get("suspend") is True
    if suspended:
        job = job | {"spec": spec | {"runPolicy": {**policy, "suspend": False}}}
    metadata = {
        "namespace": "default",
        **{name: value for name, value in job["metadata"].items() if value is not None},
        "uid": JOB_UID,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": timestamp(now),
    }
    manager = policy.get("managedBy")
    return job | {"metadata": metadata}, manager if isinstance(manager, str) else "", suspended


def _snapshot(kind: Kind, world: _World, options: Options, now: datetime) -> Snapshot:
    companions: dict[Resource, Sequence[Any]] = {each.resource: () for each in kind.companion_kinds}
    companions |= {resource: tuple(objects.values()) for resource, objects in world.companions.items()}
    return Snapshot(
        job=Unstructured(world.job),
        pods=tuple(world.pods.values()),
        services=tuple(world.services.values()),
        now=now,
        options=options,
        companions=companions,
    )


def _note(world: _World, plan: Plan) -> bool:
    """Writes annotations and status of the plan, and keeps its warnings. Returns whether the job has changed."""
    for each in (*plan.transitions, *(notice.event for notice in plan.notices)):
        if isinstance(each, Event) and each.type == "Warning":
            world.warnings[each.message] = None
    metadata = world.job["metadata"]
    merged = {**metadata.get("annotations", {}), **plan.annotations}
    annotations = {name: value for name, value in merged.items() if value is not None}
    changed = annotations != metadata.get("annotations", {}) or plan.status is not None
    status = {} if plan.status is None else {"status": plan.status}
    world.job = world.job | {"metadata": metadata | {"annotations": annotations}} | status
    return changed


def _refusal(job: Json) -> str:
    """The message of the condition Failed; empty if the job has none."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((str(each["message"]) for each in conditions if each["type"] == "Failed"), "")


def _carry_out(kind: Kind, world: _World, action: Action, now: datetime) -> bool:
    """Adds the object that the action creates. Returns whether there is a new one. Nothing is ever deleted here: no pod
    fails, and nobody but the operator creates objects."""
    match action:
        case Ensure():
            return _ensure(kind, world, action, now)
        case Patch(subresource=None):
            return _patch(world, action)
        case _:
            return False


def _ensure(kind: Kind, world: _World, action: Ensure, now: datetime) -> bool:
    """Returns whether the object is new, or has changed."""
    resource, name = action.resource, action.name
    if action.need is Need.PODS:
        groups = world.companions.setdefault(resource, {})
        if name in groups:
            return False
        world.made.append(Made(resource, action.manifest))
        group = _stored(world, action.manifest, now) | {"status": {"phase": "Running"}}
        groups[name] = msgspec.convert(group, PodGroup)
        return True
    if action.encode is None:
        return _ensure_companion(kind, world, Made(resource, action.manifest, action.content is not None), now)
    if name in world.pods if resource == PODS else name in world.services:
        return False
    create = _create_pod if resource == PODS else _create_service
    create(kind, world, msgspec.json.decode(action.encode()), now)
    return True


def _create_pod(kind: Kind, world: _World, manifest: Json, now: datetime) -> None:
    world.made.append(Made(PODS, manifest))
    since = timestamp(now)
    statuses = [
        {"name": each["name"], "ready": True, "state": {"running": {"startedAt": since}}}
        for each in manifest["spec"]["containers"]
    ]
    status: Json = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "startTime": since,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
        "containerStatuses": statuses,
    }
    stored = _stored(world, manifest, now) | {"status": status}
    world.pods[manifest["metadata"]["name"]] = kind.children.decode_pod(_encode(stored))


def _create_service(kind: Kind, world: _World, manifest: Json, now: datetime) -> None:
    world.made.append(Made(SERVICES, manifest))
    world.services[manifest["metadata"]["name"]] = kind.children.decode_service(_encode(_stored(world, manifest, now)))


def _ensure_companion(kind: Kind, world: _World, made: Made, now: datetime) -> bool:
    """Creates a companion, or changes it, such as the list of running hosts of an MPIJob. Returns whether it is new or
    has changed."""
    if made.resource == SERVICES:
        if made.name in world.services:
            return False
        _create_service(kind, world, made.manifest, now)
        return True
    known = world.companions.setdefault(made.resource, {})
    if (old := known.get(made.name)) is None:
        world.made.append(made)
        known[made.name] = Unstructured(_stored(world, made.manifest, now))
        return True
    metadata = old.raw["metadata"] | made.manifest["metadata"]
    return _change(world, made.resource, old.raw | made.manifest | {"metadata": metadata}, made.manifest)


def _patch(world: _World, action: Patch) -> bool:
    """A merge patch of a companion. Returns whether it changes anything."""
    old = world.companions.get(action.resource, {}).get(action.name)
    if old is None:
        return False
    shown = next(each for each in world.made if (each.resource, each.name) == (action.resource, action.name))
    return _change(world, action.resource, _merge(old.raw, action.body), _merge(shown.manifest, action.body))


def _change(world: _World, resource: Resource, stored: Json, shown: Json) -> bool:
    name = shown["metadata"]["name"]
    known = world.companions[resource]
    changed = bool(stored != known[name].raw)
    known[name] = Unstructured(stored)
    for index, each in enumerate(world.made):
        if (each.resource, each.name) == (resource, name):
            world.made[index] = replace(each, manifest=shown)
    return changed


def _merge(value: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    base = value if isinstance(value, dict) else {}
    merged = {**base, **{name: _merge(base.get(name), part) for name, part in patch.items()}}
    return {name: part for name, part in merged.items() if part is not None}


def _stored(world: _World, manifest: Json, now: datetime) -> Json:
    """The last object of `world.made` as the API server would store it."""
    stored = {"uid": f"{len(world.made):08}", "creationTimestamp": timestamp(now)}
    return manifest | {"metadata": {"namespace": "default", **manifest["metadata"], **stored}}
