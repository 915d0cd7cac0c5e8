"""The end state of a run, reduced to what must be equal with and without faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.facts import owner_of, phase
from tests.simulation.oracle.kinds import without_cause
from tests.simulation.script import BACKOFF, DEADLINE, FOREIGN, JobPlan, Script
from trainop.engine.extensions import ON_DISRUPTION
from trainop.engine.restart_history import RESTARTS, RestartHistory
from trainop.runtime.objects.metadata import Json

if TYPE_CHECKING:
    from tests.simulation.world import World

LAST = {"Succeeded", "Failed"}


def end_state(world: World) -> Json:
    """Job name -> its end state, or None if the job was deleted."""
    return {plan.name: _end_of(world, plan) for plan in world.script.jobs}


def _end_of(world: World, plan: JobPlan) -> Json | None:
    job = world.job_named(plan)
    uid = job["metadata"]["uid"] if job else ""
    left: dict[str, dict[str, str]] = {"pods": {}, "services": {}}
    for table, found in left.items():
        for (_, name), stored in sorted(world.store.table(table).objects.items()):
            owner = owner_of(stored.value)
            if owner is not None and owner["name"] == plan.name:
                found[name] = phase(stored.value) if table == "pods" else ""
                if owner["uid"] != uid:
                    world.judge.flag("nothing stays behind", f"{table} {name} has outlived its job")
    if job is None:
        return None
    status = job.get("status") or {}
    conditions = status.get("conditions") or []
    annotations = job["metadata"].get("annotations") or {}
    return {
        "conditions": [
            [each["type"], each["reason"], without_cause(each["message"]) if each["type"] in LAST else ""]
            for each in conditions
            if each["status"] == "True" and each["type"] != "Restarting"  # pods lost to faults are restarted as well
        ],
        "failures": RestartHistory(uid, annotations if RESTARTS in annotations else {}).failures,
        "active": sum(entry.get("active", 0) for entry in (status.get("replicaStatuses") or {}).values()),
        **left,
    }


def same_end(script: Script, one: Json, other: Json) -> str:
    """A description of the difference between two ends, or an empty string if they are equal where required."""
    for plan in script.jobs:
        if script.jumps and {"ttlSecondsAfterFinished", "activeDeadlineSeconds"} & set(plan.spec["runPolicy"]):
            continue  # its end depends on wall clocks
        a, b = one[plan.name], other[plan.name]
        if (a is None) != (b is None):
            return f"{plan.name} is {'gone' if a is None else 'there'}, without faults it is not so"
        if a is None or b is None:
            continue
        for part in _compared(script, plan, a):
            if a[part] != b[part]:
                return f"{plan.name}: {part} {a[part]}, without faults {b[part]}"
    return ""


def _compared(script: Script, plan: JobPlan, end: Json) -> Iterator[str]:
    yield "conditions"
    yield "active"
    done = {condition[0] for condition in end["conditions"]} & LAST
    policy = plan.spec["runPolicy"].get("cleanPodPolicy")
    if not done or policy == "All" or plan.goal == FOREIGN:
        yield "pods"  # otherwise the message depends on which pod's end was observed first
        yield "services"
    paused = any(step.subject == plan.name and step.act == "suspend" for step in script.steps)
    scope = "job" if ON_DISRUPTION in plan.annotations else plan.scope
    together = scope != "pod" and plan.goal != BACKOFF  # simultaneous failures count once
    if not paused and not together and plan.goal not in {DEADLINE, FOREIGN}:  # a resumed job resets its counts
        yield "failures"
