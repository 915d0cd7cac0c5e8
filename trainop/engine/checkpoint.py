"""Checkpoints before the end: what a job asks for so that its replicas can save when their pods are ended.

Two annotations of the job, both optional (`docs/survive.md`). `checkpoint-grace` is the time that every pod has between
SIGTERM and SIGKILL; `on-disruption` ends all pods together when another client ends one of them, so that they can save
together. A value that cannot be used counts as not given, or as the nearest usable one, and causes one Warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trainop.engine.actions import Action, Event, Notice, Plan, Remove
from trainop.engine.extensions import (
    CHECKPOINT_ALL,
    CHECKPOINT_AND_RESPOND,
    CHECKPOINT_GRACE,
    MAX_GRACE,
    ON_DISRUPTION,
    Checkpoint,
    read_checkpoint,
    read_grace,
)
from trainop.engine.seen import RESPONDER, Snapshot
from trainop.runtime import PODS, Json
from trainop.runtime.lowlevel import cut

DEFAULT_GRACE = 30
"""Seconds of a pod whose spec has no `terminationGracePeriodSeconds` (Kubernetes API, PodSpec)."""


def find_doubts(annotations: Mapping[str, str], *, restarts: bool) -> Iterator[str]:
    """Why the annotations have not the effect that the user expects."""
    grace, disruption = annotations.get(CHECKPOINT_GRACE), annotations.get(ON_DISRUPTION)
    if grace is not None:
        seconds, given = read_grace(grace), f'metadata.annotations[{CHECKPOINT_GRACE}]: "{cut(grace, 64)}"'
        if seconds is None:
            yield f"{given} is ignored: it must be a duration from 1s to 1h, such as 5m"
        elif seconds > MAX_GRACE:
            yield f"{given} counts as 1h: it must be a duration from 1s to 1h"
    if disruption is not None:
        given = f'metadata.annotations[{ON_DISRUPTION}]: "{cut(disruption, 64)}" is ignored'
        if disruption not in (CHECKPOINT_ALL, CHECKPOINT_AND_RESPOND):
            yield f'{given}: it must be "{CHECKPOINT_ALL}" or "{CHECKPOINT_AND_RESPOND}"'
        elif not restarts:
            yield f"{given}: the operator does not restart jobs of this kind"


def doubt_checkpoint(seen: Snapshot, plan: Plan, *, restarts: bool) -> Plan:
    """The plan, with one Warning if an annotation cannot be followed. `restarts`: the operator restarts jobs of this
    kind."""
    doubts = list(find_doubts(seen.job.metadata.annotations, restarts=restarts))
    if not doubts or plan.waits is None:
        return plan
    warning = Notice("checkpoint", Event("Warning", "CheckpointNotPossible", "; ".join(doubts)))
    return replace(plan, notices=(*plan.notices, warning))


# Grace periods --------------------------------------------------------------------------------------------------------


def raise_grace(spec: Json, grace: int) -> Json:
    """The pod spec with a grace period of at least `grace` seconds. One of a wrong type is left to the API server. The
    argument is not changed."""
    given = spec.get(_FIELD)
    own = DEFAULT_GRACE if given is None else given
    if not grace or not isinstance(own, int) or isinstance(own, bool) or own >= grace:
        return spec
    return {**spec, _FIELD: grace}


def brief_grace(checkpoint: Checkpoint, template: Json) -> int | None:
    """The grace period of a pod that has nothing left to save, because its job has succeeded: that of the template.
    None: the pod's own, which `raise_grace` has not changed."""
    spec = template.get("spec")
    given = spec.get(_FIELD) if isinstance(spec, dict) else None
    own = given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else DEFAULT_GRACE
    return own if own < checkpoint.grace else None


_FIELD = "terminationGracePeriodSeconds"

# Responders -----------------------------------------------------------------------------------------------------------

MAX_RESPONDERS = 10
"""Of one pod (kubernetes `pkg/apis/core/validation/validation.go`, `MaxPodEvictionResponders`)."""
_PRIORITY = 10_000
"""That of the controller that manages a pod (Kubernetes API, `EvictionResponder`)."""


def add_responder(spec: Json) -> Json:
    """The pod spec with the operator as a responder of Evictions, unless it cannot have one. The argument is not
    changed."""
    if find_obstacle(spec):
        return spec
    given = [each for each in spec.get(_RESPONDERS) or () if each.get("name") != RESPONDER]
    return {**spec, _RESPONDERS: [*given, {"name": RESPONDER, "priority": _PRIORITY}]}


def find_obstacle(spec: Json) -> str:
    """Why pods with this spec cannot have the operator as a responder; empty if they can."""
    if spec.get("schedulingGroup"):
        return "pods of a PodGroup of kube-scheduler have no responders"
    given = spec.get(_RESPONDERS) or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        return f"{_RESPONDERS} must be a list of objects"
    if len([each for each in given if each.get("name") != RESPONDER]) >= MAX_RESPONDERS:
        return f"{_RESPONDERS} has {MAX_RESPONDERS} entries already, and must have room for another"
    return ""


_RESPONDERS = "evictionResponders"


def end_together(seen: Snapshot, plan: Plan) -> Plan:
    """The plan, in which the deletions of pods come first and at once, with at least the grace period that the job asks
    for: pods that were created before the annotation have a shorter one of their own."""
    checkpoint = read_checkpoint(seen.job.metadata.annotations)
    if not checkpoint.asked or not any(map(_ends_pod, plan.actions)):
        return plan
    own = {pod.metadata.uid: pod.spec.grace for pod in seen.pods}
    ends: list[Action] = []
    others: list[Action] = []
    for action in plan.actions:
        if isinstance(action, Remove) and _ends_pod(action):
            ends.append(_prolong(action, own.get(action.uid), checkpoint.grace))
        else:
            others.append(action)
    return replace(plan, actions=(*ends, *others))


def _ends_pod(action: Action) -> bool:
    return isinstance(action, Remove) and action.resource == PODS and not action.force


def _prolong(action: Remove, own: int | None, grace: int) -> Remove:
    if action.grace is not None or (DEFAULT_GRACE if own is None else own) >= grace:
        return replace(action, at_once=True)
    return replace(action, grace=grace, at_once=True)
