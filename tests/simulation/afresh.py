"""At rest, a plan made only from the objects that the API server lists must contain no actions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from tests.engine.builders import pod_created
from tests.simulation.facts import due_at
from tests.simulation.script import NAMESPACE
from tests.simulation.wire import at_once
from trainop.controllers.observe import observe_live
from trainop.engine.actions import Action
from trainop.engine.kind import Kind
from trainop.engine.seen import PodGroup, SeenGang, Snapshot
from trainop.runtime.objects.metadata import PODS, Json, Unstructured

if TYPE_CHECKING:
    from tests.simulation.world import World


def look_afresh(world: World) -> None:
    """If wall clocks were set, time-dependent actions are allowed."""
    for job in world.jobs():
        if world.script.jumps and due_at(job):
            continue
        for kind in world.kinds:
            if kind.resource.kind == job["kind"]:
                _examine(world, kind, job)


def _examine(world: World, kind: Kind, job: Json) -> None:
    left = kind.plan(_observe(world, kind, job))
    actions = [action for action in left.actions if not _is_taken(world, action)]
    if left.annotations or actions or left.status:
        todo = f"{left.annotations or ''} {actions or ''} {left.status or ''}"
        world.judge.flag("nothing left undone", f"for {job['metadata']['name']} is still to do: {todo}")


def _observe(world: World, kind: Kind, job: Json) -> Snapshot:
    seen: Snapshot = at_once(
        observe_live(world.users.client, kind, Unstructured(job), world.clock.now(), world.options)
    )
    if world.options.gang is None:
        return seen
    stored = world.store.get(str(world.options.gang.groups), (NAMESPACE, job["metadata"]["name"]))
    group = msgspec.convert(stored.value, PodGroup) if stored is not None else None
    groups = {world.options.gang.groups: [group] if group is not None else []}
    return replace(seen, companions={**seen.companions, **groups}, gang=SeenGang(priorities={}))


def _is_taken(world: World, action: Action) -> bool:
    """A pod is to be made, and another one has its name."""
    return pod_created(action) and world.store.get(str(PODS), (NAMESPACE, action.name)) is not None
