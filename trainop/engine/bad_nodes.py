"""Bad nodes: a job keeps its new pods away from nodes on which its pods have ended repeatedly (`docs/survive.md`).

What counts is an end that the node caused, or, of a job that reports its progress, the failure from which a restart
followed before the run had reported anything. Which nodes these are, and since when, is an annotation of the job, so
that another operator goes on with it. It is bounded, and each node is forgotten some time after the last end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from trainop.engine.actions import Action, Event, Notice, Plan, Remove
from trainop.engine.extensions import AVOID_BAD_NODES, BAD_NODE_AFTER, BAD_NODE_FOR, BAD_NODES
from trainop.engine.failures import disrupted
from trainop.engine.progress import TRAINER_STATUS, is_asked
from trainop.engine.restart_history import RESTARTS, RestartHistory, digest_of, pack, unpack
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.spans import doubt_choice, doubt_span, read_span
from trainop.engine.stalls import IGNORED
from trainop.engine.status import Status
from trainop.runtime import PODS, Json, Metadata
from trainop.runtime.lowlevel import cut, read_time, timestamp

REQUIRED, PREFERRED = "required", "preferred"
DEFAULT_AFTER, MOST_AFTER = 2, 100
DEFAULT_FOR, SHORTEST = 6 * 3600.0, 60.0
"""Seconds."""
MAX_NODES = 32
"""Nodes that are remembered; the one whose last end is the oldest is forgotten first."""
MAX_COUNTED = 512
"""Ended pods that exist still and are remembered as counted; of a job that loses more at once, the others do not
count."""
MAX_ENDS, MAX_WHY = 10_000, 64
LABEL = "kubernetes.io/hostname"
"""The label of nodes that the affinity names. Its value is the name of the node in all but unusual clusters."""
WEIGHT = 100
"""Of the preference, the largest possible."""

NO_PROGRESS = "NoProgress"
DEVICE_ERROR = "DeviceError"

_OF_OTHERS = frozenset(
    {"Preempting", "PreemptionByScheduler", "EvictionByEvictionAPI", "EvictionRequested", "NodeAffinity"}
)
"""Reasons of disruptions that say nothing against the node."""
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "ContainerStatusUnknown"})
"""Reasons of containers that the runtime could not start, or has lost."""
_COMMAND = re.compile("executable file not found|no such file or directory|permission denied", re.IGNORECASE)
"""What the runtime says if the command of a container is wrong, on any node."""
_DEVICE = re.compile(
    "uncorrectable (?:nvlink|ecc)|ecc error|fallen off the bus|no cuda-capable device"
    "|cuda_error_(?:no_device|ecc|unknown)|cuda-capable device\\(s\\) is/are busy|hsa_status_error"
    "|nvml: (?:unknown error|driver)|device-side hardware",
    re.IGNORECASE,
)
"""Last words of a program whose accelerator does not work."""
_NAME = re.compile("[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
"""Names of nodes that can be the value of a label."""


# What the annotations ask for -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AvoidRule:
    """What the annotations of a job ask for."""

    required: bool
    after: int = DEFAULT_AFTER
    seconds: float = DEFAULT_FOR


def read_rule(annotations: Mapping[str, str]) -> AvoidRule | None:
    """None if the job avoids no nodes. Values that cannot be read count as not given."""
    mode = annotations.get(AVOID_BAD_NODES)
    if mode not in {REQUIRED, PREFERRED}:
        return None
    after = _read_after(annotations.get(BAD_NODE_AFTER, ""))
    return AvoidRule(
        mode == REQUIRED, after or DEFAULT_AFTER, read_span(annotations, BAD_NODE_FOR, SHORTEST) or DEFAULT_FOR
    )


def _read_after(text: str) -> int | None:
    number = int(text) if re.fullmatch("[0-9]{1,3}", text) else 0
    return number if 1 <= number <= MOST_AFTER else None


def find_doubts(annotations: Mapping[str, str], *, restarts: bool) -> Iterator[str]:
    """Why the annotations have not the effect that the user expects."""
    if doubt := doubt_choice(annotations, AVOID_BAD_NODES, (REQUIRED, PREFERRED), AVOID_BAD_NODES):
        yield doubt
    elif AVOID_BAD_NODES in annotations and not restarts:
        yield f"metadata.annotations[{AVOID_BAD_NODES}] is ignored: the operator does not restart jobs of this kind"
    for name in (BAD_NODE_AFTER, BAD_NODE_FOR):
        if name in annotations and AVOID_BAD_NODES not in annotations:
            given = cut(annotations[name], 64)
            yield f'metadata.annotations[{name}]: "{given}" is ignored without {AVOID_BAD_NODES}'
    if AVOID_BAD_NODES not in annotations:
        return
    after = annotations.get(BAD_NODE_AFTER)
    if after is not None and _read_after(after) is None:
        limits = f"it must be a whole number from 1 to {MOST_AFTER}"
        yield f'metadata.annotations[{BAD_NODE_AFTER}]: "{cut(after, 64)}" counts as {DEFAULT_AFTER}: {limits}'
    if doubt := doubt_span(annotations, BAD_NODE_FOR, SHORTEST):
        yield doubt


# What is remembered ---------------------------------------------------------------------------------------------------


class NodeRecord(NamedTuple):
    """How pods of the job have ended on a node."""

    ends: int
    last: datetime
    why: str
    """Of the last of them: a reason of Kubernetes, `NO_PROGRESS` or `DEVICE_ERROR`."""

    def until(self, rule: AvoidRule) -> datetime:
        return self.last + timedelta(seconds=rule.seconds)

    def is_over(self, rule: AvoidRule, now: datetime) -> bool:
        """Whether it is forgotten. A time so far in the future is that of a wrong clock."""
        return abs((now - self.last).total_seconds()) >= rule.seconds


class BadNodes:
    """The parsed annotation; `text` returns its new value. Invalid content counts as absent, and so does that of a
    copied manifest."""

    def __init__(self, job_uid: str, annotations: Mapping[str, str]) -> None:
        stored = _read_object(annotations.get(BAD_NODES, ""))
        self._job_uid = job_uid
        own = stored if stored.get("job") == job_uid else {}
        self.nodes = dict(_read_nodes(own.get("nodes")))
        self._counted = set(islice(unpack(own.get("counted")), MAX_COUNTED))
        self.changed = False

    def avoided(self, rule: AvoidRule, now: datetime) -> dict[str, NodeRecord]:
        """The nodes that new pods are kept away from, by name."""
        bad = {name: each for name, each in self.nodes.items() if each.ends >= rule.after}
        return {name: each for name, each in sorted(bad.items()) if not each.is_over(rule, now)}

    def is_counted(self, pod_uid: str) -> bool:
        return digest_of(pod_uid) in self._counted

    def count(self, pod: Pod, why: str, now: datetime) -> None:
        """Counts the end of a pod, once."""
        name = pod.spec.node_name
        if not _NAME.fullmatch(name) or self.is_counted(pod.metadata.uid) or len(self._counted) >= MAX_COUNTED:
            return
        self._counted.add(digest_of(pod.metadata.uid))
        known = self.nodes.get(name)
        ends = min(known.ends + 1 if known else 1, MAX_ENDS)
        self.nodes[name] = NodeRecord(ends, now.replace(microsecond=0), cut(why, MAX_WHY))
        if len(self.nodes) > MAX_NODES:
            del self.nodes[min(self.nodes, key=lambda each: self.nodes[each].last)]
        self.changed = True

    def forget(self, rule: AvoidRule | None, now: datetime) -> list[str]:
        """Forgets the nodes whose time is over, or all without a rule. Returns those that were avoided."""
        over = [name for name, each in self.nodes.items() if rule is None or each.is_over(rule, now)]
        freed = [name for name in over if rule is None or self.nodes[name].ends >= rule.after]
        for name in over:
            del self.nodes[name]
        self.changed = self.changed or bool(over)
        return sorted(freed)

    def text(self, pod_uids: Iterable[str]) -> str | None:
        """The new value of the annotation, None if there is nothing to remember. Pods that no longer exist are
        dropped."""
        if not self.nodes:
            return None
        entries = {name: [each.ends, timestamp(each.last), each.why] for name, each in sorted(self.nodes.items())}
        counted = pack(self._counted & {digest_of(uid) for uid in pod_uids})
        return json.dumps({"job": self._job_uid, "nodes": entries, "counted": counted}, separators=(",", ":"))


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_nodes(stored: object) -> Iterator[tuple[str, NodeRecord]]:
    for name, entry in islice(stored.items(), MAX_NODES) if isinstance(stored, dict) else ():
        match entry:
            case [int(ends), str(last), str(why)] if _NAME.fullmatch(name) and 0 < ends <= MAX_ENDS:
                if (at := read_time(last)) is not None and not isinstance(ends, bool):
                    yield name, NodeRecord(ends, at, cut(why, MAX_WHY))


# Affinity -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Avoidance:
    """The nodes that the pods of a job are kept away from."""

    required: bool
    nodes: tuple[str, ...]

    def add_to(self, spec: Json) -> Json:
        """The pod spec with a node affinity, in addition to its own. A pod that names its node, and fields of a wrong
        type, are left as they are. The argument is not changed."""
        affinity = _object(spec.get("affinity"))
        node = _object((affinity or {}).get("nodeAffinity"))
        if not self.nodes or affinity is None or node is None or spec.get("nodeName"):
            return spec
        changed = self._require(node) if self.required else self._prefer(node)
        return {**spec, "affinity": {**affinity, "nodeAffinity": changed}}

    @property
    def _requirement(self) -> Json:
        return {"key": LABEL, "operator": "NotIn", "values": list(self.nodes)}

    def _require(self, node: Json) -> Json:
        """Any one of the terms has to be fulfilled, so that the requirement is a part of each."""
        name = "requiredDuringSchedulingIgnoredDuringExecution"
        given = _object(node.get(name))
        terms = [{"matchExpressions": [self._requirement]}]
        if given:
            listed = given.get("nodeSelectorTerms")
            if not isinstance(listed, list):
                return node
            terms = [self._narrow(term) for term in listed]
        return node if given is None else {**node, name: {**given, "nodeSelectorTerms": terms}}

    def _narrow(self, term: Any) -> Any:
        """A term without any requirement fulfils nothing, and stays so."""
        if not isinstance(term, dict) or not (term.get("matchExpressions") or term.get("matchFields")):
            return term
        given = term.get("matchExpressions") or []
        return {**term, "matchExpressions": [*given, self._requirement]} if isinstance(given, list) else term

    def _prefer(self, node: Json) -> Json:
        name = "preferredDuringSchedulingIgnoredDuringExecution"
        given = node.get(name) or []
        if not isinstance(given, list):
            return node
        own = {"weight": WEIGHT, "preference": {"matchExpressions": [self._requirement]}}
        return {**node, name: [*given, own]}


def _object(value: object) -> Json | None:
    """An object, empty if there is none; None if it is something else."""
    return {} if value is None else value if isinstance(value, dict) else None


def read_avoidance(job: Metadata, now: datetime) -> Avoidance | None:
    """The nodes that new pods of the job are kept away from; None if it does not ask for that."""
    rule = read_rule(job.annotations) if AVOID_BAD_NODES in job.annotations else None
    if rule is None:
        return None
    return Avoidance(rule.required, tuple(BadNodes(job.uid, job.annotations).avoided(rule, now)))


# The plan -------------------------------------------------------------------------------------------------------------


def avoid_bad_nodes(seen: Snapshot, plan: Plan, *, restarts: bool, counts: bool) -> Plan:
    """The plan, which remembers on which nodes pods have ended, with one event for each node that is avoided from now
    on or no longer. `restarts`: the operator restarts jobs of this kind. `counts`: their pods are counted in the
    restart history."""
    annotations, uid = seen.job.metadata.annotations, seen.job.metadata.uid
    if plan.waits is None:
        return plan
    if doubts := list(find_doubts(annotations, restarts=restarts)):
        warning = Notice("bad-nodes", Event("Warning", IGNORED, "; ".join(doubts)))
        plan = replace(plan, notices=(*plan.notices, warning))
    rule, memory = read_rule(annotations) if restarts else None, BadNodes(uid, annotations)
    before = memory.avoided(rule, seen.now) if rule is not None else {}
    freed = memory.forget(rule, seen.now)
    events = [Event("Normal", "NodeNotAvoided", f"Pods may run again on node {', '.join(freed)}")] if freed else []
    if rule is not None:
        _count_ends(seen, plan, memory)
        avoided = memory.avoided(rule, seen.now)
        events += [_tell(name, each, rule) for name, each in avoided.items() if name not in before]
        plan = _look_again(plan, seen.now, avoided, rule)
    if freed:
        plan = _replace_pending(seen, plan, counts=counts)
    if memory.changed:
        kept = {**plan.annotations, BAD_NODES: memory.text(pod.metadata.uid for pod in seen.pods)}
        plan = replace(plan, annotations=kept, transitions=(*plan.transitions, *events))
    return plan


def _tell(name: str, found: NodeRecord, rule: AvoidRule) -> Event:
    how = "New pods do not run" if rule.required else "New pods run, if possible, not"
    ended = f"{found.ends} pods of the job have" if found.ends > 1 else "1 pod of the job has"
    why = f"{ended} ended there, the last because of {found.why}"
    return Event("Warning", "NodeAvoided", f"{how} on node {name} until {timestamp(found.until(rule))}: {why}")


def _look_again(plan: Plan, now: datetime, avoided: Mapping[str, NodeRecord], rule: AvoidRule) -> Plan:
    """Requeues the job for when the first node is avoided no longer."""
    left = [(each.until(rule) - now).total_seconds() for each in avoided.values()]
    if plan.requeue_after is not None:
        left.append(plan.requeue_after)
    return replace(plan, requeue_after=max(0.0, min(left))) if left else plan


def _count_ends(seen: Snapshot, plan: Plan, memory: BadNodes) -> None:
    own = [pod for pod in _own_pods(seen) if pod.spec.node_name and not memory.is_counted(pod.metadata.uid)]
    for pod in own:
        if why := find_fault(pod):
            memory.count(pod, why, seen.now)
        elif plan.cause is not None and pod.metadata.name == plan.cause.pod and _has_failed_early(seen, pod):
            memory.count(pod, NO_PROGRESS, seen.now)


def _own_pods(seen: Snapshot) -> Iterator[Pod]:
    """The pods of the job, and those of Jobs that it controls, such as the launcher's."""
    uid = seen.job.metadata.uid
    companions = (each for found in seen.companions.values() for each in found)
    owners = {uid, *(each.metadata.uid for each in companions if each.metadata.controlled_by(uid))}
    for pod in seen.pods:
        owner = pod.metadata.controller
        if owner is not None and owner.uid in owners:
            yield pod


def find_fault(pod: Pod) -> str:
    """Why the node has ended the pod, or was the reason of its failure; empty if it was not."""
    announced = [each for each in pod.status.conditions if each.type == "DisruptionTarget" and each.status == "True"]
    if disrupted(pod):
        reason = pod.status.reason or next((each.reason for each in announced), "") or "DisruptionTarget"
        return "" if reason in _OF_OTHERS or {each.reason for each in announced} & _OF_OTHERS else reason
    if pod.status.phase != "Failed" or pod.metadata.terminating:
        return ""
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        end = status.state.terminated
        if end is None or not end.failed:
            continue
        if end.reason in _NOT_STARTED and not _COMMAND.search(end.message):
            return end.reason
        if _DEVICE.search(end.message):
            return DEVICE_ERROR
    return ""


def _has_failed_early(seen: Snapshot, pod: Pod) -> bool:
    """Whether a program that reports its progress failed before its run had reported anything."""
    annotations, endpoint = seen.job.metadata.annotations, seen.options.progress
    if endpoint is None or not is_asked(annotations, endpoint) or pod.status.phase != "Failed" or disrupted(pod):
        return False
    told = Status(seen.job.raw.get("status"), seen.now).get(TRAINER_STATUS)
    reported = read_time(told.get("lastUpdatedTime")) if isinstance(told, dict) else None
    created = read_time(pod.metadata.creation_timestamp)
    return reported is None or created is None or reported < created


def _replace_pending(seen: Snapshot, plan: Plan, *, counts: bool) -> Plan:
    """Deletes pods that wait for a node, which keep the affinity that they were created with: new ones may run on the
    nodes that are free again."""
    leaving = {action.uid for action in plan.actions if isinstance(action, Remove)}
    waiting = [
        pod.metadata
        for pod in seen.pods
        if pod.metadata.controlled_by(seen.job.metadata.uid)
        and (pod.status.phase, pod.spec.node_name) == ("Pending", "")
        and not (pod.metadata.terminating or pod.metadata.uid in leaving)
    ]
    if not waiting:
        return plan
    ends: list[Action] = [Remove(PODS, each.name, each.uid) for each in waiting]
    noted = _mark_counted(seen, plan, [each.uid for each in waiting]) if counts else plan.annotations
    return replace(plan, actions=(*plan.actions, *ends), annotations=noted)


def _mark_counted(seen: Snapshot, plan: Plan, uids: Iterable[str]) -> Mapping[str, str | None]:
    """One of them may start in this moment, and its end is no failure."""
    written = {RESTARTS: text} if (text := plan.annotations.get(RESTARTS)) else {}
    history = RestartHistory(seen.job.metadata.uid, {**seen.job.metadata.annotations, **written})
    for uid in uids:
        history.mark_counted(uid)
    return {**plan.annotations, RESTARTS: history.text(pod.metadata.uid for pod in seen.pods)}
