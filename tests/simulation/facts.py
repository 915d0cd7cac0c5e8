"""Pure functions that read jobs, pods and requests for the judge and the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from tests.simulation.oracle.kinds import without_cause
from trainop.engine.framework import JOB_NAME, REPLICA_INDEX, REPLICA_TYPE, Framework
from trainop.engine.parse import ignored
from trainop.kinds.mpi.transport import SSH, TRANSPORT
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import parse_timestamp
from trainop.runtime.objects.metadata import Json, Unstructured

Slot = tuple[str, int]
"""Role as in labels, and index."""


def slot_of(pod: Json) -> Slot | None:
    labels = pod["metadata"].get("labels") or {}
    if REPLICA_TYPE not in labels or JOB_NAME not in labels or not labels.get(REPLICA_INDEX, "").isdecimal():
        return None
    return labels[REPLICA_TYPE], int(labels[REPLICA_INDEX])


def is_misplaced(pod: Json, owner: Json) -> bool:
    """Whether the pod does not have the name of its replica slot."""
    place = slot_of(pod)
    return place is None or pod["metadata"]["name"] != f"{owner['name']}-{place[0]}-{place[1]}"


def owner_of(value: Json) -> Json | None:
    owners = value["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def terminating(value: Json) -> bool:
    return bool(value["metadata"].get("deletionTimestamp"))


def is_announced(pod: Json) -> bool:
    """Whether somebody is about to end the pod, which may still run."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "DisruptionTarget" and each["status"] == "True" for each in conditions)


def suspended(job: Json) -> bool:
    return bool((job["spec"].get("runPolicy") or {}).get("suspend"))


class Facts(NamedTuple):
    """The facts that decide whether a job may have pods."""

    uid: str
    finished: bool
    suspended: bool
    paused: bool
    """Its status says that it is suspended."""
    terminating: bool
    foreign: bool
    replicas: Mapping[str, int]

    @property
    def stopped(self) -> str:
        """The reason why the job must not get new pods, or an empty string."""
        words = ("finished", "suspended", "terminating", "foreign")
        return next((word for word in words if getattr(self, word)), "")


def is_true(job: Json, type_: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def message_of(job: Json, type_: str) -> str:
    conditions = (job.get("status") or {}).get("conditions") or []
    return without_cause(next((str(each["message"]) for each in conditions if each["type"] == type_), ""))


def finished(job: Json) -> bool:
    return is_true(job, "Succeeded") or is_true(job, "Failed")


def facts_of(framework: Framework, job: Json) -> Facts:
    specs = job["spec"][framework.replica_specs]
    return Facts(
        uid=job["metadata"]["uid"],
        finished=finished(job),
        suspended=bool((job["spec"].get("runPolicy") or {}).get("suspend")),
        paused=is_true(job, "Suspended"),
        terminating=terminating(job),
        foreign=ignored(Unstructured(job), framework.managers),
        replicas={role.lower(): spec.get("replicas", 1) for role, spec in specs.items()},
    )


def due_at(job: Json) -> datetime | None:
    """The time of the job's next limit: its deadline, or the end of its time to live. Those of an MPIJob over ssh are
    limits of its launcher's Job."""
    policy, status = job["spec"].get("runPolicy") or {}, job.get("status") or {}
    if (job["metadata"].get("annotations") or {}).get(TRANSPORT) == SSH:
        return None
    if policy.get("suspend") or policy.get("managedBy") or terminating(job):
        return None
    if finished(job):
        begun, limit = status.get("completionTime"), policy.get("ttlSecondsAfterFinished")
    else:
        begun, limit = status.get("startTime"), policy.get("activeDeadlineSeconds")
    if begun is None or limit is None:
        return None
    return parse_timestamp(begun) + timedelta(seconds=limit)


# Requests -------------------------------------------------------------------------------------------------------------


def precondition(request: Request) -> str:
    body: Any = msgspec.json.decode(request.body) if request.body else {}
    return str((body.get("preconditions") or {}).get("uid") or "")


def place_of(path: str) -> tuple[str, tuple[str, str]]:
    """`/api/v1/namespaces/ns/pods/p` and `/apis/g/v/namespaces/ns/kinds/k` -> table and key."""
    parts = path.strip("/").split("/")
    core = parts[0] == "api"
    namespace, plural, name = parts[-3:] if len(parts) < 8 else parts[4:7]
    return plural if core else f"{plural}.{parts[1]}", (namespace, name)


def essence(method: str, body: Json) -> str:
    """A short description of a write, for the trace."""
    if method == "DELETE" or not body:
        return ""
    if method == "POST":
        return str(body["metadata"].get("name", ""))
    if "status" in body:
        conditions = body["status"].get("conditions") or []
        return " ".join(f"{each['type']}={each['status']}" for each in conditions) or str(sorted(body["status"]))
    return str(body.get("metadata", {}).get("annotations", ""))[:200]
