"""Evictions of Kubernetes 1.37 that the operator answers, with on-disruption `checkpoint-and-respond`.

An Eviction asks the responders of a pod, one after another, to end it (`lifecycle.k8s.io`, KEP-4563). The operator ends
all pods of the job, so that they save together, and the whole job restarts (`disruptions`); if the job reports its
checkpoints, the operator waits for the next one first. Meanwhile it reports that it works on it. When the pod is gone,
or nothing can be saved, its part is complete, and Kubernetes evicts what is left.

All that is remembered is in the Eviction: when it began, and what the operator last said. So another operator goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from trainop.engine.actions import Answer, Event, Notice, Plan
from trainop.engine.checkpoint import DEFAULT_GRACE, find_obstacle
from trainop.engine.disruptions import is_disrupted
from trainop.engine.extensions import ON_DISRUPTION, read_checkpoint
from trainop.engine.pod_status import PodCondition
from trainop.engine.progress import read_checkpoint_time
from trainop.engine.seen import RESPONDER, Eviction, Pod, Snapshot
from trainop.engine.status import RUNNING, Status
from trainop.engine.unknown_fields import find_templates
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, read_time, timestamp

REQUESTED = "EvictionRequested"
"""The reason of a disruption by an Eviction."""
HEARTBEAT, CHANGE = 60.0, 20.0
"""Seconds between two reports that say the same, and that do not. Kubernetes asks for no more than one in 20 s, and
passes the Eviction on after 20 minutes without one."""
PATIENCE = 60.0
"""Seconds after which the operator gives up a pod that should have ended, or whose end it should have begun."""
MAX_TEXT = 1000
"""Characters of a message."""


class _State(NamedTuple):
    """What the operator says about an Eviction."""

    text: str
    until: datetime | None = None
    """When it expects to be done."""
    look_in: float = PATIENCE
    """Seconds until that may be another."""
    done: bool = False


# What an Eviction does ------------------------------------------------------------------------------------------------


def announce(seen: Snapshot) -> Snapshot:
    """The snapshot, in which the pods whose Evictions are due have the condition by which a plan knows pods that are
    about to end. That restarts the job."""
    due = {each.pod.uid: each for each in _found(seen) if _seconds_to_checkpoint(seen, each) <= 0}
    if not due or not read_checkpoint(seen.job.metadata.annotations).responds:
        return seen
    pods = (_announced(pod, due[uid]) if (uid := pod.metadata.uid) in due else pod for pod in seen.pods)
    return replace(seen, pods=tuple(pods))


def _found(seen: Snapshot) -> tuple[Eviction, ...]:
    return seen.evictions.found if seen.evictions is not None else ()


def _announced(pod: Pod, eviction: Eviction) -> Pod:
    by = f"by {cut(eviction.requesters, MAX_TEXT)}" if eviction.requesters else ""
    began = eviction.answer.get("startTime")
    at = began if isinstance(began, str) else None
    condition = PodCondition("DisruptionTarget", "True", REQUESTED, by, at)
    status = msgspec.structs.replace(pod.status, conditions=(*pod.status.conditions, condition))
    return msgspec.structs.replace(pod, status=status)


def _seconds_to_checkpoint(seen: Snapshot, eviction: Eviction) -> float:
    """Seconds for which the job may still run until its next checkpoint; 0 if it has reported one since the Eviction
    began, or reports none, or does not run."""
    checkpoint, raw = read_checkpoint(seen.job.metadata.annotations), seen.job.raw.get("status")
    grace = checkpoint.grace if checkpoint.responds else 0
    began, saved = _began(eviction), read_checkpoint_time(raw) if isinstance(raw, dict) else None
    if not grace or began is None or saved is None or saved >= began or not Status(raw, seen.now).is_true(RUNNING):
        return 0.0
    left = grace - (_wall(seen) - began).total_seconds()
    return max(0.0, left) if left <= grace + PATIENCE else 0.0  # beyond that the clock was set back


def _began(eviction: Eviction) -> datetime | None:
    began = eviction.answer.get("startTime")
    return read_time(began) if isinstance(began, str) else None


def _wall(seen: Snapshot) -> datetime:
    return seen.wall or seen.now


# What the operator answers --------------------------------------------------------------------------------------------


def respond(seen: Snapshot, plan: Plan, kind: str) -> Plan:
    """The plan of a job of this kind, with the answers to the Evictions of its pods, and one Warning if it asks for
    some that the operator cannot give."""
    name = f"{kind} {seen.job.metadata.name}"
    pods = {pod.metadata.uid: pod for pod in seen.pods}
    answers: list[Answer] = []
    again = [] if plan.requeue_after is None else [plan.requeue_after]
    for eviction in _found(seen):
        target = eviction.pod
        pod = pods.get(target.uid)
        state = _find_state(seen, name, eviction, pod)
        wait = _seconds_to_report(seen, eviction, state)
        if wait > 0:
            again.append(min(wait, state.look_in))
            continue
        gone = (target.name, target.uid) if pod is None else None
        metadata, body = eviction.metadata, _patch(seen, eviction, state)
        answers.append(Answer(metadata.name, metadata.resource_version, body, gone))
        if not state.done:
            again.append(min(HEARTBEAT, state.look_in))
    return replace(
        plan,
        actions=(*plan.actions, *answers),
        notices=(*plan.notices, *_notices(seen, plan)),
        requeue_after=min(again, default=None),
    )


def _find_state(seen: Snapshot, name: str, eviction: Eviction, pod: Pod | None) -> _State:
    if pod is None or pod.status.phase in ("Succeeded", "Failed"):
        return _State("The pod has ended", done=True)
    if pod.metadata.terminating:
        return _find_end(name, pod, _wall(seen))
    if text := _find_reason_to_pass(seen, name, pod):
        return _State(text, done=True)
    return _find_beginning(seen, name, eviction, pod)


def _find_reason_to_pass(seen: Snapshot, name: str, pod: Pod) -> str:
    """Why nothing is saved before the pod is evicted; empty if it is."""
    if Status(seen.job.raw.get("status"), seen.now).finished:
        return f"{name} has ended: the pod has nothing to save"
    if not read_checkpoint(seen.job.metadata.annotations).responds:
        return f"{name} asks for nothing before its pods are evicted"
    return "The pod has not started: it has nothing to save" if pod.status.phase == "Pending" else ""


def _find_beginning(seen: Snapshot, name: str, eviction: Eviction, pod: Pod) -> _State:
    """Of a pod that is still to be ended."""
    now, checkpoint = _wall(seen), read_checkpoint(seen.job.metadata.annotations)
    if (left := _seconds_to_checkpoint(seen, eviction)) > 0:
        text = f"{name} runs on until it reports its next checkpoint. Then all of its replicas save and end"
        return _State(text, now + timedelta(seconds=left), left)
    left = PATIENCE + checkpoint.grace - (now - (_began(eviction) or now)).total_seconds()
    if left <= 0:
        return _State(f"The operator could not ask the replicas of {name} to save in time", done=True)
    grace = DEFAULT_GRACE if pod.spec.grace is None else pod.spec.grace
    return _State(f"All replicas of {name} are asked to save and to end", now + timedelta(seconds=grace), left)


def _find_end(name: str, pod: Pod, now: datetime) -> _State:
    """Of a pod that terminates: its deletionTimestamp is the end of its grace period."""
    end = read_time(pod.metadata.deletion_timestamp) or now
    left = PATIENCE + (end - now).total_seconds()
    if left <= 0:
        return _State("The pod has not ended within its grace period", done=True)
    return _State(f"All replicas of {name} save and end", max(end, now), left)


def _seconds_to_report(seen: Snapshot, eviction: Eviction, state: _State) -> float:
    last, said = eviction.answer.get("heartbeatTime"), eviction.answer.get("message")
    at = read_time(last) if isinstance(last, str) else None
    if at is None or state.done:
        return 0.0
    return (HEARTBEAT if said == state.text else CHANGE) - max(0.0, (_wall(seen) - at).total_seconds())


def _patch(seen: Snapshot, eviction: Eviction, state: _State) -> Json:
    """All entries, of which only that of the operator is changed: a merge patch replaces a list as a whole. A time
    never goes back, or the API server refuses it."""
    mine = eviction.answer
    given = (read_time(text) for text in (mine.get("startTime"), mine.get("heartbeatTime")) if isinstance(text, str))
    now = timestamp(max((_wall(seen), *(each for each in given if each is not None))))
    made = {**mine, "heartbeatTime": now, "message": cut(state.text, MAX_TEXT)}
    if state.until is not None:
        made["expectedCompletionTime"] = max(now, timestamp(state.until))
    if state.done:
        made["completionTime"] = now
    others = eviction.status.responders
    return {"status": {"responders": [made if each.get("name") == RESPONDER else each for each in others]}}


# What is said of it ---------------------------------------------------------------------------------------------------


def _notices(seen: Snapshot, plan: Plan) -> Iterator[Notice]:
    if plan.waits is not None and (doubt := _find_doubt(seen)):
        text = f"metadata.annotations[{ON_DISRUPTION}]: the operator answers no Evictions of the pods: {doubt}"
        yield Notice("evictions", Event("Warning", "EvictionsNotAnswered", text))
    if plan.waits is not None and (waiting := sorted(_waiting(seen))):
        grace = read_checkpoint(seen.job.metadata.annotations).grace
        text = f"Pod {waiting[0]} is asked to leave its node. The job runs on until it reports a checkpoint"
        yield Notice("awaited", Event("Normal", "CheckpointAwaited", f"{text}, at most {grace} s"))


def _waiting(seen: Snapshot) -> Iterator[str]:
    """The names of the pods for which the job awaits its next checkpoint."""
    waiting = {each.pod.uid: each for each in _found(seen) if _seconds_to_checkpoint(seen, each) > 0}
    for pod in seen.pods:
        eviction = None if pod.metadata.terminating else waiting.get(pod.metadata.uid)
        if eviction is not None and is_disrupted(_announced(pod, eviction)):
            yield pod.metadata.name


def _find_doubt(seen: Snapshot) -> str:
    if seen.evictions is None or not read_checkpoint(seen.job.metadata.annotations).responds:
        return ""
    if seen.evictions.unavailable:
        return seen.evictions.unavailable
    if seen.options.gang is not None and seen.options.gang.in_tree:
        return find_obstacle({"schedulingGroup": {"podGroupName": seen.job.metadata.name}})
    for path, template in find_templates(seen.job.raw.get("spec"), "spec"):
        spec = template.get("spec")
        if isinstance(spec, dict) and (obstacle := find_obstacle(spec)):
            return f"{path}.spec: {obstacle}"
    return ""
