"""No job stands still in silence (docs/waiting.md).

A job that is neither finished nor suspended nor left to another controller, and of which nothing has changed for longer
than the operator's patience, either runs, which is what it is for, or says what it waits for: in a condition that names
one of its objects. And a job that runs does not say that it waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.simulation.oracle.kinds import LABELS, Json, controller_of, is_terminating, phase_of
from tests.simulation.oracle.observer import Setting

SLACK = 45.0
"""Seconds after which the operator must have said it: pods have 30 s to terminate, and a write takes a moment."""
OURS = {None, "", "kubeflow.org/training-operator", "kubeflow.org/mpi-operator"}
"""Values of managedBy that mean this operator."""
GENERAL = "NoProgress"
"""The reason that names nothing."""


class StandStill:
    """Listens to the store."""

    def __init__(self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]], patience: float) -> None:
        """`objects` answers what a table holds now; `patience` is --waiting-after in seconds."""
        self._setting = setting
        self._objects = objects
        self._patience = patience
        self._jobs: dict[str, Json] = {}
        """By UID."""
        self._parents: dict[str, str] = {}
        """UID of an object -> that of its controller."""
        self._moved: dict[str, float] = {}
        """By UID of a job: when it, or an object of it, last changed."""

    def __call__(self, table: Any, change: Any) -> None:
        old, new = (stored.value if stored is not None else None for stored in (change.old, change.new))
        value: Json = new or old or {}
        uid = value.get("metadata", {}).get("uid", "")
        if re.fullmatch(r"(\w+jobs\.kubeflow\.org|dijobs\..*)", table.name):
            self._on_job(uid, old, new)
        elif (owner := controller_of(value)) is not None:
            self._parents[uid] = owner["uid"]
            if (job := self._job_of(uid)) is not None:
                self._moved[job] = self._setting.now()

    def _on_job(self, uid: str, old: Json | None, new: Json | None) -> None:
        if new is None:
            self._jobs.pop(uid, None)
            return
        if uid not in self._jobs or old is None or _essence(old) != _essence(new):
            self._moved[uid] = self._setting.now()
        self._jobs[uid] = new

    def _job_of(self, uid: str) -> str | None:
        """The job that controls an object, also by another object."""
        for _ in range(3):
            uid = self._parents.get(uid, "")
            if uid in self._jobs:
                return uid
        return None

    @property
    def longest(self) -> float:
        """Seconds after the last change by which every job has spoken."""
        return self._patience + SLACK

    def silent(self) -> bool:
        """Whether a job has to say something some time, and there is a reason to wait for it."""
        return any(_is_open(job) and not self._runs(uid, job) for uid, job in self._jobs.items())

    def look(self) -> None:
        """Judge all jobs of which nothing has changed for long enough."""
        for uid, job in self._jobs.items():
            if _is_open(job) and self._setting.now() - self._moved[uid] > self.longest:
                name = job["metadata"]["name"]
                for fault in _faults(job, runs=self._runs(uid, job)):
                    self._setting.flag("nobody waits in silence", f"{job['kind']} {name}: {fault}")

    def _runs(self, uid: str, job: Json) -> bool:
        """All its pods are there, and run or have ended, at least one of them running."""
        found = (each.value for each in self._objects("pods").values())
        pods = [pod for pod in found if self._job_of(pod["metadata"]["uid"]) == uid and _is_counted(job, pod)]
        living = [pod for pod in pods if not is_terminating(pod)]
        phases = {pod["metadata"]["name"]: phase_of(pod) for pod in living}
        if len(living) < len(pods) or set(phases.values()) & {"Pending", "Unknown"}:
            return False
        running = {name for name, phase in phases.items() if phase == "Running"}
        return bool(running) and _all_there(job, phases, running) and _says_that_it_runs(job)


def _essence(job: Json) -> Json:
    """The job without what only says that it waits."""
    status = job.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each["type"] != "Waiting"]
    return {
        "spec": job["spec"],
        "status": {**status, "conditions": conditions},
        "annotations": job["metadata"].get("annotations"),
    }


def _is_counted(job: Json, pod: Json) -> bool:
    """It has the label that says which role it plays; that of an MPIJob depends on the transport."""
    labels = pod["metadata"].get("labels") or {}
    if job["kind"] in {"MPIJob", "DIJob"}:
        return True
    return bool(labels.get(LABELS + "replica-type"))


def _is_true(job: Json, type_: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def _is_open(job: Json) -> bool:
    policy = job["spec"].get("runPolicy") or {}
    if is_terminating(job) or policy.get("suspend") or policy.get("managedBy") not in OURS:
        return False
    return not _is_true(job, "Succeeded") and not _is_true(job, "Failed")


def _says_that_it_runs(job: Json) -> bool:
    return _is_true(job, "Running")


def _all_there(job: Json, phases: Mapping[str, str], running: set[str]) -> bool:
    """No pod of the spec is missing."""
    name = job["metadata"]["name"]
    if job["kind"] == "DIJob":
        return f"{name}-coordinator" in running
    for role, count in _replicas(job):
        if job["kind"] == "MPIJob" and role == "launcher":
            found = sum(each.startswith(f"{name}-launcher") for each in phases)
        else:
            found = sum(f"{name}-{role}-{index}" in phases for index in range(count))
        if found < count:
            return False
    return True


def _replicas(job: Json) -> Iterator[tuple[str, int]]:
    for field, roles in job["spec"].items():
        if field.endswith("ReplicaSpecs"):
            for role, spec in roles.items():
                default = 0 if (job["kind"], role) == ("MPIJob", "Worker") else 1
                yield role.lower(), spec.get("replicas", default)


def _faults(job: Json, *, runs: bool) -> Iterator[str]:
    conditions = (job.get("status") or {}).get("conditions") or ()
    found = [each for each in conditions if each["type"] == "Waiting" and each["status"] == "True"]
    name = job["metadata"]["name"]
    if runs and found:
        yield f"runs, and says that it waits: {found[0]['message']}"
    if runs:
        return
    if not found:
        yield f"stands still and does not say why; its conditions are {[each['type'] for each in conditions]}"
    elif found[0]["reason"] == GENERAL or not re.search(rf"\b{name}\b", found[0]["message"]):
        yield f"stands still and names none of its objects: {found[0]['reason']}: {found[0]['message']}"
