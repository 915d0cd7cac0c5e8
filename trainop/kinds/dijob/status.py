"""Counters, phases, conditions and events of a DIJob (DI-orchestrator `controllers/status.go`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainop.engine.evidence import MAX_EXAMINED, Place, failure_of
from trainop.engine.fields import sentence
from trainop.engine.framework import Tally
from trainop.engine.plan import VALIDATION
from trainop.engine.root_cause import LAST_FAILURE, Failure, append_cause, find_cause, refusal
from trainop.engine.status import CREATED, FAILED, RUNNING, SUCCEEDED
from trainop.kinds.dijob.names import Role
from trainop.kinds.dijob.seen import DiPod
from trainop.kinds.dijob.world import World, role_of_pod
from trainop.runtime import Json

COUNTED = {
    Role.COLLECTOR: "Collector",
    Role.LEARNER: "Learner",
    Role.AGGREGATOR: "Aggregator",
    Role.COORDINATOR: "Coordinator",
}
"""Role -> its name in `replicaStatus`. Ddp learners are not counted."""

NOT_A_DIJOB = "failed to convert type *unstructured.Unstructured to v1alpha1.DIJob"


# Counters -------------------------------------------------------------------------------------------------------------


def state_of(pod: DiPod) -> str | None:
    """The counter of `replicaStatus` that the pod counts for: active, succeeded or failed; None for a pod that is
    pending, being deleted or of unknown phase."""
    if pod.metadata.terminating:
        return None
    if pod.status.phase == "Running":
        return _state_of_running(pod)
    return {"Succeeded": "succeeded", "Failed": "failed"}.get(pod.status.phase)


def _state_of_running(pod: DiPod) -> str:
    """Once the main container has ended for good, so has the pod, whatever its side-cars do."""
    code = pod.main_exit_code
    is_final = pod.restart_policy == "Never" or (pod.restart_policy == "OnFailure" and code == 0)
    if code is None or not is_final:
        return "active"
    return "failed" if code else "succeeded"


def count(pods: Iterable[DiPod]) -> dict[Role, Tally]:
    """The counters of each counted role."""
    tallies = {role: Tally() for role in COUNTED}
    for pod in pods:
        role, state = role_of_pod(pod), state_of(pod)
        if role in COUNTED and state is not None:
            setattr(tallies[role], state, getattr(tallies[role], state) + 1)
    return tallies


def write_counters(world: World, tallies: Mapping[Role, Tally]) -> None:
    """Writes `replicaStatus`, without zeros."""
    world.builder.status.put("replicaStatus", {COUNTED[role]: _counters(tally) for role, tally in tallies.items()})


def _counters(tally: Tally) -> Json:
    counts = {"active": tally.active, "succeeded": tally.succeeded, "failed": tally.failed}
    return {name: number for name, number in counts.items() if number}


def retire_active(world: World) -> None:
    """In a job that has succeeded, replicas that were active have succeeded."""
    entries = _stored_counters(world)
    for entry in entries.values():
        if active := entry.pop("active", 0):
            entry["succeeded"] = entry.get("succeeded", 0) + active
    world.builder.status.put("replicaStatus", entries)


def lower_active(world: World) -> None:
    """In a job that has failed and was cleaned up, at most the pods that are left are active."""
    entries, left = _stored_counters(world), count(world.pods)
    for role, name in COUNTED.items():
        entry = entries.get(name, {})
        if active := min(entry.pop("active", 0), left[role].active):
            entry["active"] = active
    world.builder.status.put("replicaStatus", entries)


def _stored_counters(world: World) -> dict[str, dict[str, int]]:
    """A copy of the valid counters in the status."""
    stored = world.builder.status.get("replicaStatus")
    return {
        name: {field: number for field, number in entry.items() if isinstance(number, int)}
        for name, entry in (stored.items() if isinstance(stored, dict) else ())
        if isinstance(entry, dict)
    }


# Phases ---------------------------------------------------------------------------------------------------------------


def note_creation(world: World) -> None:
    """Sets the first phase."""
    name = world.job.name
    write_counters(world, count(()))
    _enter(world, CREATED, "DIJobCreated", text := f"DIJob {name} created")
    world.builder.event("DIJobCreated", text)
    world.builder.count("created")


def follow_coordinator(world: World, coordinator: DiPod) -> bool:
    """Sets the phase that the coordinator's pod decides; returns whether the job has ended."""
    name, state = world.job.name, state_of(coordinator)
    if state == "active":
        _enter(world, RUNNING, "DIJobRunning", f"coordinator and aggregator of DIJob {name} are running")
    elif state == "failed":
        cause = find_dijob_cause(world, coordinator)
        world.builder.status.put(LAST_FAILURE, cause.as_json())
        fail(world, append_cause(f"DIJob {name} failed because coordinator failed", cause))
    elif state == "succeeded":
        _end(world, SUCCEEDED, "Normal", f"DIJob {name} succeeded because coordinator succeeded")
    return state in {"failed", "succeeded"}


def step_back(world: World) -> None:
    """A job that has lost its quota is as one that has not begun."""
    if world.builder.status.is_true(RUNNING):
        text = f"DIJob {world.job.name} waits in its queue"
        world.builder.status.set(RUNNING, "DIJobQueued", text, status="False")
        world.builder.status.put("phase", CREATED)


def refuse(world: World) -> None:
    """Fails a job that cannot begin. A job without a coordinator is no DIJob at all, in upstream's words."""
    write_counters(world, count(()))
    world.builder.count("created")
    errors = sentence(world.job.errors)
    world.builder.status.put(LAST_FAILURE, refusal(VALIDATION, errors, world.seen.now).as_json())
    if world.job.coordinator is not None:
        fail(world, errors)
        return
    fail(world, f"{NOT_A_DIJOB}: {errors}")
    del world.builder.status.conditions[-1]["reason"]


def find_dijob_cause(world: World, coordinator: DiPod) -> Failure:
    """The failure of the coordinator, or that of a replica from which it follows."""
    now = world.seen.wall or world.seen.now
    replicas = [pod for pod in world.pods if pod is not coordinator and state_of(pod) == "failed"]
    past = [failure_of(pod, _place(pod), now) for pod in replicas[:MAX_EXAMINED]]
    standing = failure_of(coordinator, _place(coordinator), now)
    return find_cause([standing], past) or standing


def _place(pod: DiPod) -> Place:
    role = role_of_pod(pod)
    return Place(role.value if role is not None else "replica", main=pod.main)


def fail(world: World, message: str) -> None:
    _end(world, FAILED, "Warning", message)


def _end(world: World, phase: str, type_: str, message: str) -> None:
    if (running := world.builder.status.find(RUNNING)) is not None:
        reason, text = (str(running.get(field) or "") for field in ("reason", "message"))
        world.builder.status.set(RUNNING, reason, text, status="False")
    _enter(world, phase, f"DIJob{phase}", message)
    world.builder.event(f"DIJob{phase}", message, type_)
    world.builder.count("successful" if phase == SUCCEEDED else "failed")


def _enter(world: World, phase: str, reason: str, message: str) -> None:
    world.builder.status.set(phase, reason, message)
    world.builder.status.put("phase", phase)
