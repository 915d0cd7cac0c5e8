"""Rules about jobs that nobody may start now: suspended, queued by Kueue, left to another controller, gangs."""

from __future__ import annotations

from collections.abc import Iterator

from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import THIS_OPERATOR
from trainop.engine.kueue import QUEUE
from trainop.engine.startup import EXCEEDED
from trainop.explain.why.cause import Cause, Weight
from trainop.explain.why.evidence import Evidence, as_text, by, gang_size
from trainop.runtime import Json

_MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def find(seen: Evidence) -> Iterator[Cause]:
    """Why the job is held."""
    if seen.finished:
        return
    if manager := left_to(seen):
        yield _left_to(manager)
        return
    if seen.suspended:
        yield _suspended(seen)
    yield from _gang(seen)


def left_to(seen: Evidence) -> str:
    """The other controller that the job names; empty if it names none."""
    manager = seen.policy.get("managedBy") or seen.spec.get("managedBy")
    return manager if isinstance(manager, str) and manager != THIS_OPERATOR else ""


def _left_to(manager: str) -> Cause:
    where = "on a worker cluster of MultiKueue" if manager == _MULTIKUEUE else "by that controller"
    return Cause(
        "ManagedElsewhere",
        f"the job is left to the controller {manager} (runPolicy.managedBy)",
        f"look for it {where}, or create it without managedBy to run it here",
        weight=Weight.HELD,
    )


def _queue_of(seen: Evidence) -> str:
    return as_text(as_object(seen.metadata.get("labels")).get(QUEUE))


def _suspended(seen: Evidence) -> Cause:
    queue = _queue_of(seen)
    if not queue and (late := next((each for each in seen.conditions() if each.get("reason") == EXCEEDED), None)):
        return Cause(
            "StartupDeadline",
            "the job was suspended because not all of its replicas started in time",
            "mend what the message names, then set spec.runPolicy.suspend to false to start it again",
            (as_text(late.get("message")),),
            Weight.HELD,
        )
    if not queue:
        return Cause(
            "Suspended",
            "the job is suspended (runPolicy.suspend is true), so that it has no pods",
            "set spec.runPolicy.suspend to false to start it",
            weight=Weight.HELD,
        )
    if not seen.workloads:
        return _without_workload(seen, queue)
    workload = seen.workloads[-1]
    conditions = by("type", as_list(as_object(workload.get("status")).get("conditions")))
    return _queued(queue, workload, conditions)


def _without_workload(seen: Evidence, queue: str) -> Cause:
    if seen.queues is not None and queue not in seen.queues:
        known = ", ".join(seen.queues[:5]) or "none"
        return Cause(
            "QueueMissing",
            f"the job waits in the queue {queue}, which does not exist in its namespace",
            f"use an existing LocalQueue (there are: {known}), or have {queue} created",
            weight=Weight.HELD,
        )
    return Cause(
        "QueueIgnoresJob",
        f"the job waits for the queue {queue}, but Kueue has made no Workload for it",
        f"check that Kueue runs, and that its configuration lists {seen.kind} among its integrations, or --kueue does",
        weight=Weight.HELD,
    )


def _queued(queue: str, workload: Json, conditions: dict[str, Json]) -> Cause:
    def says(type_: str, status: str) -> str:
        condition = conditions.get(type_, {})
        return as_text(condition.get("message")) if condition.get("status") == status else ""

    spec = as_object(workload.get("spec"))
    if spec.get("active") is False:
        text = f"its Workload in the queue {queue} was deactivated"
        return Cause(
            "QueueDeactivated",
            text,
            "an administrator or too many requeues deactivated it; set spec.active of the Workload to true",
            tuple(filter(None, (says("Evicted", "True"),))),
            Weight.HELD,
        )
    for type_ in ("Preempted", "Evicted"):
        if message := says(type_, "True"):
            return Cause(
                "QueuePreempted",
                f"Kueue has stopped the job and put it back into the queue {queue}",
                "it starts again when there is quota; a higher priority class makes that sooner",
                (message,),
                Weight.HELD,
            )
    if message := says("QuotaReserved", "False"):
        return Cause(
            "QueueWaiting",
            f"the job waits for quota in the queue {queue}",
            "wait until other jobs end, ask for less, or have the quota of the ClusterQueue raised",
            (message,),
            Weight.HELD,
        )
    if conditions.get("QuotaReserved", {}).get("status") == "True":
        return _admitted(queue, workload)
    return Cause("QueueWaiting", f"the job waits in the queue {queue} until Kueue looks at it", "", weight=Weight.HELD)


def _admitted(queue: str, workload: Json) -> Cause:
    """Quota is reserved; the job is started once all admission checks are ready."""
    checks = [
        as_text(each.get("name"))
        for each in as_list(as_object(workload.get("status")).get("admissionChecks"))
        if each.get("state") != "Ready"
    ]
    waiting = f", and waits for the admission checks {', '.join(checks)}" if checks else ""
    return Cause(
        "QueueChecks",
        f"the job has quota in the queue {queue}{waiting or ', and is about to be started by Kueue'}",
        "the admission checks are run by other controllers; look at them" if checks else "",
        weight=Weight.HELD,
    )


# Gangs ----------------------------------------------------------------------------------------------------------------


_NO_PLACE = ("Unschedulable", "SchedulerError")
"""Reasons of kube-scheduler."""


def _gang(seen: Evidence) -> Iterator[Cause]:
    ready = next((each for each in seen.conditions() if each.get("type") == "GangReady"), {})
    if ready.get("status") == "False" and ready.get("reason") in _NO_PLACE:
        yield Cause(
            "GangWaiting",
            f"kube-scheduler cannot place the gang of the job's pods at once ({as_text(ready.get('reason'))})",
            "wait for other jobs, ask for less, or lower schedulingPolicy.minAvailable",
            (as_text(ready.get("message")),),
            Weight.PLACEMENT + 1,
        )
    elif ready.get("status") == "False":
        yield Cause(
            "GangNotReady",
            "the job's PodGroup is not usable, so that its pods are not created or not scheduled",
            "the message says what is missing; with --gang-scheduler-name the scheduler and its CRDs must be installed",
            tuple(filter(None, (as_text(ready.get("message")),))),
            Weight.CREATION,
        )
    elif seen.group is not None and not as_text(ready.get("status")):
        phase = as_text(as_object(seen.group.get("status")).get("phase"))
        if phase in {"", "Pending", "Inqueue", "PreScheduling", "Scheduling", "Unschedulable", "Unknown"} and not any(
            each.scheduled for each in seen.pods
        ):
            yield _gang_waits(seen, phase)


def _gang_waits(seen: Evidence, phase: str) -> Cause:
    group = as_object(seen.group)
    conditions = as_list(as_object(group.get("status")).get("conditions"))
    said = tuple(as_text(each.get("message")) for each in conditions if each.get("status") == "True")
    queue = as_text(as_object(group.get("spec")).get("queue"))
    members = gang_size(as_object(group.get("spec")))
    where = f" in the queue {queue}" if queue else ""
    if not phase:
        return Cause(
            "GangIgnored",
            "no scheduler has looked at the job's PodGroup yet",
            "check that the gang scheduler of --gang-scheduler-name runs (kube-scheduler: its gate GenericWorkload)",
            weight=Weight.PLACEMENT,
        )
    return Cause(
        "GangWaiting",
        f"the gang waits{where} until {members} pods fit into the cluster at once (phase {phase})",
        "wait for other jobs, ask for less, or lower schedulingPolicy.minAvailable",
        tuple(text for text in said[-2:] if text),
        Weight.PLACEMENT + 1,
    )
