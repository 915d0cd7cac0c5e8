"""How the replicas of a job ended, each frozen at the moment of its end: a pod that is stopped later, or that takes the
place of another, does not change it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from trainop.engine.framework import JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE
from trainop.engine.job import Job
from trainop.engine.parse import parse
from trainop.engine.seen import Pod
from trainop.explain import (
    DELETED,
    Failure,
    Place,
    describe,
    describe_cause,
    failure_of,
    follows,
    mark_consequences,
    past_failure_of,
    read_failure,
    was_stopped,
)
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime import Json, Unstructured

MAX_LISTED = 20
"""Failures besides the root cause that are listed."""

HINT = (
    "Images are not used: containers run as processes with the programs and files of this machine. Install what is "
    "missing, or change the command."
)
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
_MISSING = re.compile("can't open file|command not found|no module named", re.IGNORECASE)
_NO_FILE = re.compile("no such file or directory", re.IGNORECASE)


@dataclass(slots=True)
class Exits:
    """The failures of one job."""

    kind: str
    cause: Failure | None = None
    """What the operator has written into the status."""
    _job: Job | None = None
    _failures: dict[tuple[str, int], Failure] = field(default_factory=dict)
    """By the UID of the pod and the attempt, in the order in which they became known."""
    _names: dict[str, str] = field(default_factory=dict)
    """Pod -> replica as it is called on the screen."""
    directory: str = ""
    """In which containers without a `workingDir` run; empty if that is not known."""
    _folders: dict[str, str] = field(default_factory=dict)
    """Pod -> in which folder the container ran that has failed."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Pod -> replica that was stopped while it ran."""

    def take_job(self, job: Unstructured) -> None:
        """A new version of the job."""
        status = job.raw.get("status")
        self.cause = read_failure(status.get("lastFailure")) if isinstance(status, dict) else None
        framework = FRAMEWORKS.get(self.kind)
        if framework is not None and self._job is None:
            self._job = parse(framework, job)

    def record(
        self, raw: Unstructured, name: str, earlier: int, now: datetime, *, ended: bool = False
    ) -> Failure | None:
        """Records the latest failure in a pod of replica `name`, which has had `earlier` pods before. Returns it if it
        is new. What a deletion brings about is none. `ended`: the job has ended, so that a restart undoes no failure.
        A pod that restarts in place shows a failure only until then.
        """
        try:
            pod = msgspec.convert(raw.raw, Pod)
        except msgspec.ValidationError:
            return None
        metadata = pod.metadata
        self._names[metadata.name] = name
        place = self._place_of(raw.metadata.labels, metadata.name if self.kind == "MPIJob" else name, earlier)
        if was_stopped(pod, now):
            self.stopped.setdefault(metadata.name, name)
            return None
        if pod.status.phase == "Failed":
            failure: Failure | None = failure_of(pod, place, now)
        else:
            failure = None if _is_ending(pod) and not ended else past_failure_of(pod, place, now)
        if failure is None or (metadata.uid, failure.attempt) in self._failures:
            return None
        self._failures[metadata.uid, failure.attempt] = failure
        self._folders[metadata.name] = _find_working_dir(raw.raw, failure.container) or self.directory
        return failure

    def has(self, pod: str) -> bool:
        """Whether a failure of this pod is known."""
        return any(each.pod == pod for each in self._failures.values())

    def name_of(self, failure: Failure) -> str:
        """The replica as it is called on the screen."""
        return self._names.get(failure.pod, failure.pod)

    def is_hopeless(self, failure: Failure) -> bool:
        """Whether the replica has failed twice in the same way, and the program cannot be started here."""
        before = [each for each in self._failures.values() if each.replica == failure.replica and each is not failure]
        return cannot_start(failure) and any(_signature(each) == _signature(failure) for each in before)

    def describe(self) -> Iterator[tuple[str, Sequence[str] | None]]:
        """The report of the failure of the job: lines, and for the root cause the end of its log."""
        cause, others = self._sort()
        if cause is None:
            return
        if not cause.role:
            yield describe_cause(cause), None
            return
        yield f"Root cause: {describe(cause)}", cause.log
        if _lacks_path(cause) and (folder := self._folders.get(cause.pod)):
            yield f"{self.name_of(cause)} ran in the folder {folder}, to which relative paths refer.", None
        for each in others[:MAX_LISTED]:
            yield f"{describe(each)}{' (a consequence)' if each.consequence else ''}", None
        if len(others) > MAX_LISTED:
            yield f"... and {len(others) - MAX_LISTED:,} more", None
        culprits = {each.pod for each in (cause, *others)}
        stopped = sorted({name for pod, name in self.stopped.items() if pod not in culprits})
        if stopped:
            more = f" and {len(stopped) - MAX_LISTED:,} more" if len(stopped) > MAX_LISTED else ""
            yield f"Stopped by the operator: {', '.join(stopped[:MAX_LISTED])}{more}", None
        if cannot_start(cause):
            yield HINT, None

    def _sort(self) -> tuple[Failure | None, list[Failure]]:
        """The root cause, and the other replicas that failed after it in the order of time, each once."""
        known = [each for each in self._failures.values() if each.reason != DELETED]
        if self.cause is None or not self.cause.role:
            ordered = mark_consequences(known)
            return self.cause or (ordered[0] if ordered else None), [] if self.cause else ordered[1:]
        cause = self.cause
        latest = {each.replica: each for each in known if each.pod != cause.pod}
        later = [each for each in latest.values() if not (each.at and cause.at and each.at < cause.at)]
        ordered = [each for each in mark_consequences([cause, *later]) if each.pod != cause.pod]
        return cause, [replace(each, consequence=follows(each, cause)) for each in ordered]

    def _place_of(self, labels: Mapping[str, str], name: str, earlier: int) -> Place:
        framework = FRAMEWORKS.get(self.kind)
        label = labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or ""
        text = labels.get(REPLICA_INDEX, "")
        index = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
        if framework is None:  # an MPIJob, whose workers may be numbered from 1 in their labels, or a DIJob
            index = _read_index(name) if label == "worker" else None
            return Place(label.capitalize() or labels.get("replica-type") or name, index, restarts=earlier)
        types = {each.lower(): each for each in framework.roles}
        role = self._job.role(types.get(label, "")) if self._job is not None else None
        rank = framework.rank(self._job, role, index) if self._job and role and index is not None else None
        return Place(types.get(label, label), index, rank, framework.container, earlier)


def _read_index(name: str) -> int | None:
    """The index at the end of the name of a replica or pod."""
    found = re.search(r"-(\d{1,9})$", name, re.ASCII)
    return int(found[1]) if found else None


def cannot_start(failure: Failure) -> bool:
    """Whether the command, the script or a module was not found. A program that lacks another file, which usually ends
    it with code 1, may find it later."""
    if failure.reason in _CANNOT_START or failure.exit_code in {126, 127}:
        return True
    last = failure.log[-1] if failure.log else ""
    return bool(_MISSING.search(last)) or (failure.exit_code == 2 and bool(_NO_FILE.search(last)))


def _lacks_path(failure: Failure) -> bool:
    return bool(_NO_FILE.search(failure.log[-1] if failure.log else ""))


def _find_working_dir(pod: Json, container: str) -> str:
    """The `workingDir` of a container; empty if it has none."""
    found = (pod.get("spec") or {}).get("containers") or ()
    return next((str(each.get("workingDir") or "") for each in found if each.get("name") == container), "")


def _signature(failure: Failure) -> tuple[object, ...]:
    return failure.exit_code, failure.reason, failure.log[-1:]


def _is_ending(pod: Pod) -> bool:
    """A container has just ended, and it is not yet known what follows."""
    return any(each.state.terminated is not None and each.has_failed for each in pod.status.container_statuses)
