"""Jobs of every kind and in many states under training-operator, then under our operator, then under the old one again.

A job whose state does not change is not written: neither the job nor any of its children, by neither operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from e2e.takeover.observers import Write
from e2e.takeover.scenes import NOT_IN_1_7, SCENES, Scene, Stage
from e2e.takeover.theatre import NEW, OLD, RecordedCluster, Theatre, Version
from tests.conftest import read_crds
from tests.server.world import Json

UNDER_US, UNDER_THEM = "-a", "-b"
"""Suffixes of the two jobs of a scene, by the operator under which they have their future."""


def scenes_of(theatre: Theatre, stage: Stage) -> list[Scene]:
    scenes = SCENES if theatre.peer.endswith("1.7") else [*SCENES, *NOT_IN_1_7]
    return [
        replace(scene, name=scene.name + suffix)
        for scene in scenes
        if not scene.kinds or stage.framework.kind in scene.kinds
        for suffix in (UNDER_US, UNDER_THEM)
    ]


def play_past(theatre: Theatre, stages: Iterable[Stage]) -> None:
    cast = [(stage, scene) for stage in stages for scene in scenes_of(theatre, stage)]
    for stage, scene in cast:
        stage.create_scene(scene)
    for stage, scene in cast:
        for step in scene.past:
            step(stage, scene.name)


def play_future(theatre: Theatre, stages: Iterable[Stage], suffix: str) -> None:
    for stage in stages:
        for scene in scenes_of(theatre, stage):
            if scene.name.endswith(suffix):
                for step in scene.future:
                    step(stage, scene.name)


def differences(before: dict[str, Version], after: dict[str, Version]) -> list[str]:
    """What was created, deleted, replaced or written in between."""
    found = [f"{name} is gone" for name in before.keys() - after.keys()]
    found += [f"{name} is new" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        if before[name][0] != after[name][0]:
            found.append(f"{name} is another one")
        elif before[name] != after[name]:
            found.append(f"{name} was written")
    return sorted(found)


def broken_laws(theatre: RecordedCluster) -> Iterator[str]:
    """What must never happen to a job or a child over its whole history, whichever operator acts."""
    for kind, recorder in theatre.recorders.items():
        for versions in recorder.histories().values():
            name = f"{kind} {versions[0]['metadata']['name']}"
            for old, new in pairwise(versions):
                if old["metadata"].get("ownerReferences") != new["metadata"].get("ownerReferences"):
                    yield f"{name}: another owner"
                if kind in theatre.kinds:
                    yield from (f"{name}: {law}" for law in _broken(old.get("status", {}), new.get("status", {})))


def _broken(old: Json, new: Json) -> Iterator[str]:
    conditions = [{c["type"]: c for c in status.get("conditions", ())} for status in (old, new)]
    before, after = conditions
    resumed = before.get("Suspended", {}).get("status") == "True" and after["Suspended"]["status"] == "False"
    if "startTime" in old and old["startTime"] != new.get("startTime") and not resumed:
        yield f"startTime {old['startTime']} -> {new.get('startTime')}"
    if "completionTime" in old and old["completionTime"] != new.get("completionTime"):
        yield f"completionTime {old['completionTime']} -> {new.get('completionTime')}"
    exclusive = {"Running", "Restarting"}
    for type_ in before.keys() - after.keys():
        if type_ not in exclusive:
            yield f"condition {type_} is lost"
    for end in ("Succeeded", "Failed"):
        if before.get(end, {}).get("status") == "True" and before[end] != after.get(end):
            yield f"condition {end} was changed after the end"
    kept = [type_ for type_ in before if before[type_] == after.get(type_)]
    if kept != [type_ for type_ in after if type_ in kept]:
        yield f"conditions {list(before)} -> {list(after)}"
    for type_ in before.keys() & after.keys():
        same = before[type_]["status"] == after[type_]["status"]
        # one write of training-operator may contain Restarting and Running again
        if (
            same
            and type_ not in exclusive
            and before[type_]["lastTransitionTime"] != after[type_]["lastTransitionTime"]
        ):
            yield f"lastTransitionTime of {type_}"


def unexpected(writes: Iterable[Write]) -> list[str]:
    """The writes to settled objects. Our operator marks the autoscaler of an elastic job, once, by server-side apply:
    training-operator gives it no labels, without which the cache does not hold it."""
    return [str(w) for w in writes if (w.verb, w.resource) != ("patch", "horizontalpodautoscalers")]


def test_take_over_and_back(theatre: Theatre) -> None:
    stages = list(theatre.stages().values())
    old = theatre.old()
    old.start()
    play_past(theatre, stages)
    theatre.audit.wait_quiet(OLD)
    old.end()

    before, mark = theatre.versions(), theatre.audit.end()
    new = theatre.new()
    new.start()
    theatre.wait_settled(new, NEW)
    assert unexpected(theatre.writes(NEW, mark, events=True)) == []
    changed = differences(before, theatre.versions())
    assert [line for line in changed if not line.startswith("HorizontalPodAutoscaler")] == []

    before, settled = theatre.versions(), theatre.audit.end()
    theatre.install(read_crds())
    theatre.audit.wait_quiet(NEW)
    assert [str(write) for write in theatre.writes(NEW, settled)] == []
    assert differences(before, theatre.versions()) == []

    play_future(theatre, stages, UNDER_US)
    theatre.audit.wait_quiet(NEW)
    assert [str(w) for w in theatre.writes(NEW, mark) if w.code >= 400] == []
    assert new.end() == 0

    before, mark = theatre.versions(), theatre.audit.end()
    old.start()
    theatre.wait_settled(old, OLD)
    assert [str(w) for w in theatre.writes(OLD, mark)] == []
    assert differences(before, theatre.versions()) == []
    play_future(theatre, stages, UNDER_THEM)
    old.end()
    assert list(broken_laws(theatre)) == []
