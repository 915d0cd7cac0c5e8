"""Restarts in place: after a failure the containers restart in their pods, which keep node, images and volumes.

The kubelet restarts the containers of the pod that failed, by rules in the pod. No API asks a kubelet to restart those
of other pods; but a rank of a collective that loses a peer fails too, and its pod restarts by the same rules. All
restarts from the first failure until every replica has restarted are one burst: one restart of the job. A burst that
does not settle ends in the deletion of all pods, as every other restart does (`steps/in_place.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from trainop.engine.actions import Event, Notice, Plan
from trainop.engine.children import RoleSlots
from trainop.engine.extensions import IN_PLACE, RESTART_MODE, RESTART_SCOPE
from trainop.engine.failures import RETRYABLE_EXIT_CODE, WHOLE_JOB
from trainop.engine.framework import Framework
from trainop.engine.job import Job, Role
from trainop.engine.parse import parse
from trainop.engine.restart_history import MAX_IN_PLACE, RestartHistory
from trainop.engine.seen import Pod, Snapshot
from trainop.runtime import Json, Unstructured
from trainop.runtime.lowlevel import cut, read_time

BURST_TIMEOUT = 120.0
"""Seconds in which all replicas have to restart after the first has failed. Longer than the time after which JAX misses
a heartbeat, 100 s; a rank that hangs in NCCL for ten minutes is restarted by recreation."""

TELL_FOR = 1.0
"""Seconds after which a restart that is over when it is seen ends, once the status has told of it."""

RULES = "restartPolicyRules"
RESTART_ALL = "RestartAllContainers"
"""Field and action of Kubernetes 1.36 (API `ContainerRestartRule`)."""
HIGHEST_EXIT_CODE = 255

_BACK_OFF = "CrashLoopBackOff"
"""The kubelet has not restarted the container yet, and its `restartCount` does not contain the restart."""
_POLICIES = ("OnFailure", "ExitCode")

DoubtInPlace = Callable[[Unstructured], str]
"""Why a job whose annotation asks for restarts in place does not get them; empty: it gets them."""


@dataclass(frozen=True, slots=True)
class Burst:
    """A restart in place under way."""

    restarted: tuple[tuple[Role, Pod], ...]
    """Pods that restart, or have restarted in it."""
    begins: bool
    """It is not in the restart history yet."""
    settled: bool
    """All replicas have restarted, and run, and the status has told of it."""
    why: str
    """Why all pods are recreated instead; empty: they are not."""
    left: float
    """Seconds until the next look: the time-out, unless it is over."""


# What a job asks for --------------------------------------------------------------------------------------------------


def settle_mode(framework: Framework, job: Job, seen: Snapshot) -> Job:
    """The job of which an annotation asks for restarts in place, with what is in force. Whatever cannot restart in
    place is recreated, and then as a whole."""
    if not job.readable or find_doubt(framework, job):
        return job
    rules = seen.serves_rules is not False
    return replace(job, extensions=replace(job.extensions, in_place=True, restart_scope="job", restart_rules=rules))


def find_doubt(framework: Framework, job: Job) -> str:
    """Why the annotation is ignored; empty if it is not."""
    given = job.metadata.annotations.get(RESTART_MODE, "")
    if given != IN_PLACE:
        return f'it must be "{IN_PLACE}"'
    for role in job.roles:
        if role.replicas and role.restart_policy not in _POLICIES:
            return f"{role.type} has restartPolicy {role.restart_policy}, and it must be {' or '.join(_POLICIES)}"
        if role.replicas and (name := _find_own_rules(role)):
            return f"container {cut(name, 64)} of {role.type} has a restartPolicy of its own"
    scope = job.metadata.annotations.get(RESTART_SCOPE, "job")
    if scope != "job":
        return f'all replicas restart, so that {RESTART_SCOPE} must not be "{cut(scope, 64)}"'
    return framework.outlives(job) if job.replicas > 1 else ""


def _find_own_rules(role: Role) -> str:
    """The name of a container of the role's template with restart rules of its own; empty if there is none."""
    spec = role.template.get("spec")
    found = spec.get("containers") if isinstance(spec, dict) else None
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and (each.get("restartPolicy") or each.get(RULES)):
            return str(each.get("name"))
    return ""


def doubt_in_place(framework: Framework, raw: Unstructured) -> str:
    """As `find_doubt`, of a raw job. One that cannot be read has other Warnings."""
    job = parse(framework, raw)
    return find_doubt(framework, job) if job.readable else ""


def never_in_place(_job: Unstructured) -> str:
    """The operator does not restart jobs of the kind in place."""
    return "the operator does not restart jobs of this kind in place"


def describe_doubt(job: Unstructured, find: DoubtInPlace) -> str:
    """The Warning about an annotation that is ignored; empty if it is not, or not given."""
    given = job.metadata.annotations.get(RESTART_MODE)
    doubt = find(job) if given is not None else ""
    if given is None or not doubt:
        return ""
    return f'metadata.annotations[{RESTART_MODE}]: "{cut(given, 64)}" is ignored: {doubt}; a restart creates new pods'


def report_doubt(seen: Snapshot, plan: Plan, find: DoubtInPlace) -> Plan:
    """The plan, with one Warning if the annotation is ignored."""
    if plan.waits is None or not (text := describe_doubt(seen.job, find)):
        return plan
    return replace(plan, notices=(*plan.notices, Notice("restart-mode", Event("Warning", "RestartModeIgnored", text))))


def rules_of(role: Role) -> Json:
    """The fields of the framework's container by which the kubelet restarts all containers of its pod after those
    failures from which the role restarts."""
    if role.restart_policy == "ExitCode":
        codes: Json = {"operator": "In", "values": list(range(RETRYABLE_EXIT_CODE, HIGHEST_EXIT_CODE + 1))}
    else:
        codes = {"operator": "NotIn", "values": [0]}
    policy = "Never" if role.restart_policy == "ExitCode" else role.restart_policy
    return {"restartPolicy": policy, RULES: [{"action": RESTART_ALL, "exitCodes": codes}]}


# What the API server does with the rules ------------------------------------------------------------------------------


def keeps_rules(pod: Json) -> bool:
    """Whether a pod that was created with rules has them: Kubernetes 1.34 drops them without a warning."""
    spec = pod.get("spec")
    found = spec.get("containers") if isinstance(spec, dict) else None
    return any(isinstance(each, dict) and bool(each.get(RULES)) for each in found or ())


def refuses_rules(error: str) -> bool:
    """Whether a pod was refused for the rules: Kubernetes 1.35 does not know the action, and Kubernetes 1.33 knows no
    restart policy of containers."""
    return _OF_RULES.search(error) is not None


def without_rules(warnings: Iterable[str]) -> list[str]:
    """The warnings about a pod, but those about the rules: before Kubernetes 1.34 they are an unknown field."""
    return [each for each in warnings if not _OF_RULES.search(each)]


_OF_RULES = re.compile(r"spec\.containers\[\d+\]\.restartPolicy")


# What has happened ----------------------------------------------------------------------------------------------------


def find_burst(all_slots: Sequence[RoleSlots], history: RestartHistory, now: datetime, *, told: bool) -> Burst | None:
    """The restart in place that is under way or begins; None if there is none. Only of a job without a replica that is
    down or disrupted, which is recreated. `told`: the status says that the job restarts. Until then it is not over,
    although all replicas may have restarted before the operator has looked: the status also says what failed, and its
    first write may fail."""
    restarted = tuple((role, pod) for role, pod in _all_pods(all_slots) if _has_restarted(role, pod, history))
    since = history.burst
    if since is None and not restarted:
        return None
    begins, began = since is None, (since or now).replace(microsecond=0)
    left = BURST_TIMEOUT - (now - began).total_seconds()
    late = [pod for role, pod in _all_pods(all_slots) if not _takes_part(role, pod, history, began)]
    why = ""
    if begins and history.is_soon(WHOLE_JOB, now):
        why = "it failed again too soon for a restart in place"
    elif any(pod.status.phase == "Succeeded" for pod in late):
        why = "a replica that has succeeded cannot restart in place"
    elif late and not 0 < left <= 2 * BURST_TIMEOUT:  # beyond that the clock was set back
        why = f"{len(late)} replica(s) have not restarted in place within {BURST_TIMEOUT:.0f} s"
    all_run = all(_runs(role, pod) for role, pod in _all_pods(all_slots))
    over = not (why or late) and all_run and all(slots.full for slots in all_slots)
    settled = over and told and not begins
    return Burst(restarted, begins, settled, why, TELL_FOR if over else left)


def count_restarts(all_slots: Sequence[RoleSlots]) -> Mapping[str, int]:
    """Pod UID -> how often its container of the framework has restarted."""
    return {pod.metadata.uid: _restarts(role, pod) for role, pod in _all_pods(all_slots)}


def _all_pods(all_slots: Sequence[RoleSlots]) -> Iterator[tuple[Role, Pod]]:
    for slots in all_slots:
        for pod in slots.pods.values():
            yield slots.role, pod


def _has_restarted(role: Role, pod: Pod, history: RestartHistory) -> bool:
    return _restarts(role, pod) > history.restarts_in_place(pod.metadata.uid)


def _takes_part(role: Role, pod: Pod, history: RestartHistory, began: datetime) -> bool:
    """Whether the pod restarts in the burst, or is newer than it. No program fails in the second in which its pod is
    created, which times do not tell apart."""
    created = read_time(pod.metadata.creation_timestamp)
    return (created is not None and created >= began) or _has_restarted(role, pod, history)


def _runs(role: Role, pod: Pod) -> bool:
    """Whether the container of the framework runs, or has succeeded. Init containers may take long before."""
    if pod.status.phase != "Running":
        return pod.status.phase == "Succeeded"
    states = [each.state for each in pod.status.container_statuses if each.name == role.container]
    return not any(state.waiting is not None or state.terminated is not None for state in states)


def _restarts(role: Role, pod: Pod) -> int:
    """How often the container of the framework has restarted, with the restart that it waits for. Restarts of other
    containers are the kubelet's concern."""
    for each in pod.status.container_statuses:
        if each.name == role.container:
            end, waiting = each.state.terminated, each.state.waiting
            failed = end is not None and end.failed and _restarts_from(role, end.exit_code)
            waits = waiting is not None and waiting.reason == _BACK_OFF
            return min(each.restart_count + (failed or waits), MAX_IN_PLACE)
    return 0


def _restarts_from(role: Role, code: int) -> bool:
    return role.restart_policy != "ExitCode" or code >= RETRYABLE_EXIT_CODE
