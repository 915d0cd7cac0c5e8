"""Rules about pods: that they cannot be created, placed or started, that they fail, and that they cannot end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from trainop.engine.fields import as_list, as_object
from trainop.explain.why.cause import Cause, Weight
from trainop.explain.why.evidence import ContainerFacts, Evidence, PodFacts
from trainop.explain.why.refusals import REFUSALS, advise
from trainop.explain.why.words import digest, name_pods, span, verb

STUCK_AFTER = 30.0
"""Seconds past its deadline after which a terminating pod is stuck."""

SLOW_AFTER = 60.0
"""Seconds after which a pod that is being set up is worth a word."""

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
    }
)
_CONFIG_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
)
_NODES = re.compile(
    r"^\d+/(?P<total>\d+) nodes are available: (?P<why>.*?)(?:\. (?:preemption:|no new claims).*)?$", re.DOTALL
)
"""Message of kube-scheduler about a pod that fits on no node."""


def find(seen: Evidence) -> Iterator[Cause]:
    """All situations of the pods. A finished job only has the ones that keep pods from ending."""
    yield from _terminating(seen)
    if seen.finished:
        return
    yield from _refused(seen)
    yield from _unplaced(seen)
    pending = [each for each in seen.pods if each.phase == "Pending" and each.scheduled and not each.deadline]
    yield from _not_started(seen, pending)
    yield from _failing(seen)
    yield from _lost_nodes(seen)


# Creation -------------------------------------------------------------------------------------------------------------


def _refused(seen: Evidence) -> Iterator[Cause]:
    """Pods or other objects that the API server refused. Events of pods that exist now are over."""
    created = max((each.created for each in seen.pods if each.created), default=None)
    events = [
        each
        for each in reversed(seen.events)
        if each.type == "Warning"
        and each.reason.startswith(("FailedCreate", "MPIJobFailed"))
        and each.kind == seen.kind
    ]
    if not events or (created and events[0].at and events[0].at < created):
        return
    message = events[0].message
    for refusal in REFUSALS:
        if refusal.pattern.search(message):
            yield Cause(refusal.code, refusal.text, refusal.next, (message,), Weight.CREATION)
            return
    yield Cause(
        "CreationFails",
        "the operator cannot create an object of the job",
        "its message says why; it is retried",
        (message,),
        Weight.CREATION,
    )


# Placement ------------------------------------------------------------------------------------------------------------


def _unplaced(seen: Evidence) -> Iterator[Cause]:
    waiting = [each for each in seen.pods if each.phase == "Pending" and not each.scheduled and not each.deadline]
    gated = [each for each in waiting if _is_gated(each)]
    if gated:
        gates = ", ".join(sorted({gate for each in gated for gate in each.gates})) or "(unnamed)"
        are = verb(gated, "is", "are")
        yield Cause(
            "Gated",
            f"{name_pods(gated, len(seen.pods))} {are} held back by the scheduling gate {gates}",
            "the controller that set the gate has to remove it",
            weight=Weight.PLACEMENT,
        )
    refused = [each for each in waiting if each.scheduling and each.scheduling[1] and not _is_gated(each)]
    if refused:
        yield _unschedulable(seen, refused)
    unseen = [each for each in waiting if each.scheduling is None and _older(seen, each, 10.0)]
    if unseen:
        names = ", ".join(sorted({each.scheduler or "default-scheduler" for each in unseen}))
        yield Cause(
            "NoScheduler",
            f"no scheduler has looked at {name_pods(unseen, len(seen.pods))}",
            f"check that the scheduler {names} runs",
            weight=Weight.PLACEMENT,
        )


def _is_gated(pod: PodFacts) -> bool:
    return bool(pod.gates or (pod.scheduling and pod.scheduling[0] == "SchedulingGated"))


def _unschedulable(seen: Evidence, refused: Sequence[PodFacts]) -> Cause:
    messages = [each.scheduling[1] for each in refused if each.scheduling]
    reasons: Counter[str] = Counter()
    for message in messages:
        for part in _parts(message):
            reasons[part] += 1
    total = len(seen.pods)
    text = f"{len(refused)} of {total} pods {verb(refused, 'fits', 'fit')} on no node"
    if reasons:
        text += ": " + "; ".join(
            f"{reason}" if count == len(refused) else f"{count} of them: {reason}"
            for reason, count in reasons.most_common(4)
        )
    return Cause("Unschedulable", text, advise(" ".join(messages[:50])), digest(messages), Weight.PLACEMENT)


def _parts(message: str) -> list[str]:
    """The reasons in a scheduler's message, each with its number of nodes: `9 of 12 nodes: Insufficient memory`."""
    found = _NODES.match(message)
    if not found:
        return [message.rstrip(".")]
    total = found["total"]
    parts = [part.strip().rstrip(".") for part in found["why"].split(", ")]
    return [re.sub(r"^(\d+) ", rf"\1 of {total} nodes: ", part.replace("node(s) ", "")) for part in parts if part]


# Start ----------------------------------------------------------------------------------------------------------------


class _Obstacle(NamedTuple):
    """What keeps containers from being started, by the reason of their state waiting."""

    reasons: frozenset[str]
    code: str
    text: str
    """Format string with `{what}` and `{pods}`."""
    next: str
    what: Callable[[ContainerFacts], str]


_OBSTACLES = (
    _Obstacle(
        _IMAGE_REASONS,
        "ImagePull",
        "the image {what} cannot be pulled for {pods}",
        "check the name and tag of the image, and imagePullSecrets for a private registry",
        lambda container: container.image,
    ),
    _Obstacle(
        _CONFIG_REASONS,
        "ContainerConfig",
        "the container {what} of {pods} cannot be created",
        "the message names the Secret, ConfigMap, key, path or command that is wrong",
        lambda container: container.name,
    ),
)


def _not_started(seen: Evidence, pending: Sequence[PodFacts]) -> Iterator[Cause]:
    for obstacle in _OBSTACLES:
        yield from _obstructed(seen, pending, obstacle)
    waiting = [each for each in pending if not _waits_with(each, _IMAGE_REASONS | _CONFIG_REASONS)]
    mounting = seen.about("FailedMount", "FailedAttachVolume", "FailedMapVolume")
    if mounting and waiting:
        yield Cause(
            "VolumeMount",
            f"a volume of {name_pods(waiting, len(seen.pods))} cannot be mounted",
            "the message names the Secret, ConfigMap, claim or volume that is missing or busy elsewhere",
            digest(each.message for each in mounting[:20]),
            Weight.START,
        )
        return
    yield from _initializing(seen, waiting)
    yield from _slow(seen, waiting)


def _slow(seen: Evidence, waiting: Sequence[PodFacts]) -> Iterator[Cause]:
    slow = [each for each in waiting if not _has_begun(each) and _older(seen, each, SLOW_AFTER)]
    if slow:
        said = seen.about("FailedCreatePodSandBox", "NetworkNotReady", "Pulling")
        since = span(max(_age(seen, each) for each in slow))
        are = verb(slow, "is", "are")
        yield Cause(
            "SlowStart",
            f"{name_pods(slow, len(seen.pods))} {are} placed on a node, but not started for {since}",
            "images may still be pulled; look at the node's kubelet if it lasts",
            digest(each.message for each in said[:20]),
            Weight.START,
        )


def _has_begun(pod: PodFacts) -> bool:
    """Whether an init container has been started."""
    return any(each.init and (each.restarts or each.state in {"running", "terminated"}) for each in pod.containers)


def _obstructed(seen: Evidence, pods: Sequence[PodFacts], obstacle: _Obstacle) -> Iterator[Cause]:
    found = [
        (pod, each)
        for pod in pods
        for each in pod.containers
        if each.state == "waiting" and each.reason in obstacle.reasons
    ]
    if found:
        affected = list(dict.fromkeys(pod for pod, _ in found))
        named = ", ".join(sorted({obstacle.what(container) for _, container in found})[:3])
        text = obstacle.text.format(what=named, pods=name_pods(affected, len(seen.pods)))
        said = digest(container.message or container.reason for _, container in found)
        yield Cause(obstacle.code, text, obstacle.next, said, Weight.START)


def _waits_with(pod: PodFacts, reasons: frozenset[str]) -> bool:
    return any(each.state == "waiting" and each.reason in reasons for each in pod.containers)


def _initializing(seen: Evidence, pods: Sequence[PodFacts]) -> Iterator[Cause]:
    running = [(pod, each) for pod in pods for each in pod.containers if each.init and each.state == "running"]
    if not running:
        return
    names = sorted({each.name for _, each in running})
    affected = list(dict.fromkeys(pod for pod, _ in running))
    if names == ["init-pytorch"]:
        yield _waits_for_master(seen, affected)
        return
    yield Cause(
        "Initializing",
        f"the init container {', '.join(names[:3])} of {name_pods(affected, len(seen.pods))} runs",
        f"see what it waits for: kubectl logs {affected[0].name} -c {names[0]}",
        weight=Weight.START - 2,
    )


def _waits_for_master(seen: Evidence, affected: Sequence[PodFacts]) -> Cause:
    master = next((each for each in seen.pods if each.role == "master"), None)
    state = f"which is {master.phase}" if master else "which does not exist yet"
    ready = master is not None and master.ready
    return Cause(
        "WaitsForMaster",
        f"{name_pods(affected, len(seen.pods))} {verb(affected, 'waits', 'wait')} until the name of the master,"
        f" {seen.name}-master-0, {state}, can be resolved",
        "the cluster's DNS does not know it" if ready else "see why the master does not run",
        weight=Weight.START - 2,
    )


# Failures -------------------------------------------------------------------------------------------------------------


def _failing(seen: Evidence) -> Iterator[Cause]:
    looping = [
        (pod, each)
        for pod in seen.pods
        for each in pod.containers
        if each.state == "waiting" and each.reason == "CrashLoopBackOff"
    ]
    if looping:
        pod, container = max(looping, key=lambda each: each[1].restarts)
        affected = list(dict.fromkeys(pod for pod, _ in looping))
        kind = "init container" if container.init else "container"
        ended = f" with code {container.exit_code}" if container.exit_code is not None else ""
        yield Cause(
            "CrashLoop",
            f"the {kind} {container.name} of {name_pods(affected, len(seen.pods))} ends{ended} again and again"
            f" ({container.restarts} restarts)",
            f"read why: kubectl logs {pod.name} -c {container.name} --previous",
            tuple(container.log.splitlines()[-5:]) or ((container.last_reason,) if container.last_reason else ()),
            Weight.FAILURE,
        )
    killed = [
        pod for pod in seen.pods if any("OOMKilled" in {each.reason, each.last_reason} for each in pod.containers)
    ]
    if killed:
        yield Cause(
            "OutOfMemory",
            f"{name_pods(killed, len(seen.pods))} needed more memory than {verb(killed, 'its', 'their')} limit",
            "raise resources.limits.memory, or use less, such as a smaller batch",
            weight=Weight.FAILURE + 1,
        )


def _lost_nodes(seen: Evidence) -> Iterator[Cause]:
    for name, node in seen.nodes.items():
        here = [each for each in seen.pods if each.node == name and not each.deadline]
        if here and not _is_ready(node):
            state = "is not ready" if node else "does not exist any more"
            yield Cause(
                "NodeLost",
                f"node {name} {state}; {name_pods(here, len(seen.pods))} {verb(here, 'is', 'are')} on it",
                "the pods are replaced once the node's controller has deleted them; look at the node",
                weight=Weight.FAILURE + 2,
            )


def _is_ready(node: object) -> bool:
    conditions = as_list(as_object(as_object(node).get("status")).get("conditions"))
    return any((each.get("type"), each.get("status")) == ("Ready", "True") for each in conditions)


# The end --------------------------------------------------------------------------------------------------------------


def _terminating(seen: Evidence) -> Iterator[Cause]:
    stuck = [each for each in seen.pods if each.deadline and (seen.now - each.deadline).total_seconds() > STUCK_AFTER]
    if stuck:
        where, advice = _what_holds(seen, stuck)
        yield Cause(
            "StuckTerminating",
            f"{name_pods(stuck, len(seen.pods))} {verb(stuck, 'does', 'do')} not end {where};"
            " replacements wait for that",
            advice,
            weight=Weight.FAILURE + 3,
        )


def _what_holds(seen: Evidence, stuck: Sequence[PodFacts]) -> tuple[str, str]:
    """What keeps the pods from ending, and what to do about it."""
    if held := sorted({name for each in stuck for name in each.finalizers}):
        return f"because of the finalizer {', '.join(held)}", "who set the finalizer has to remove it"
    nodes = sorted({each.node for each in stuck if each.node})
    lost = [name for name in nodes if name in seen.nodes and not _is_ready(seen.nodes[name])]
    more = f", of which {', '.join(lost[:3])} is not ready" if lost else ""
    advice = "repair the node, or delete the pods by force; the operator does so with --force-delete-after"
    return f"on node {', '.join(nodes[:3])}{more}", advice


def _age(seen: Evidence, pod: PodFacts) -> float:
    return (seen.now - pod.created).total_seconds() if pod.created else 0.0


def _older(seen: Evidence, pod: PodFacts, seconds: float) -> bool:
    return _age(seen, pod) >= seconds
