"""The finalizer on the launcher's Job, so that the end of a Job which expires or is deleted is not lost.

A Job with `ttlSecondsAfterFinished` may expire while the operator is not running. Without a record of its end the
launcher would be created again, and the whole job would run a second time. The finalizer keeps such a Job until its end
is in the status of the MPIJob. Nothing else waits for it: a Job that is deleted before its end, or with its MPIJob, is
released at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainop.engine.actions import Patch
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.fields import conditions_of
from trainop.engine.seen import Snapshot
from trainop.engine.status import Status
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2
from trainop.runtime import Json, Unstructured

FINISH = f"{ANNOTATION_PREFIX}launcher-finish"
"""The finalizer."""

ENDS = ("Complete", "Failed")
"""The conditions of a Job that has ended."""


def expires(spec: object) -> bool:
    """Whether a Job with this spec is deleted some time after its end."""
    return isinstance(spec, dict) and spec.get("ttlSecondsAfterFinished") is not None


def has_ended(launcher: Unstructured) -> bool:
    """Whether the Job has succeeded or failed."""
    return any(condition_of(launcher, type_) is not None for type_ in ENDS)


def condition_of(launcher: Unstructured, type_: str) -> Json | None:
    """The condition of a Job, if it is true."""
    found = (each for each in conditions_of(launcher) if (each.get("type"), each.get("status")) == (type_, "True"))
    return next(found, None)


def release(launcher: Unstructured, changes: Json | None = None) -> Patch | None:
    """Removes the finalizer, and makes other `changes` in the same write. None if there is nothing to write."""
    metadata = launcher.metadata
    body = dict(changes or {})
    if FINISH in metadata.finalizers:
        left = [each for each in metadata.finalizers if each != FINISH]
        body["metadata"] = {"finalizers": left, "resourceVersion": metadata.resource_version}
    return Patch(LAUNCHER_JOBS, metadata.name, metadata.uid, body) if body else None


def release_unneeded(seen: Snapshot, *, given_up: bool) -> Iterator[Patch]:
    """Removes the finalizer from the Jobs for which nobody waits. `given_up`: the operator does nothing more for the
    MPIJob, so that it records no end."""
    finished = Status(seen.job.raw.get("status"), seen.now).finished
    for launcher in seen.companions.get(LAUNCHER_JOBS, ()):
        if launcher.metadata.controlled_by(seen.job.metadata.uid):
            is_awaited = not (given_up or finished or _was_deleted_early(launcher))
        else:
            is_awaited = not _is_left_behind(launcher, seen.job.metadata.name)
        if not is_awaited and (patch := release(launcher)) is not None:
            yield patch


def _was_deleted_early(launcher: Unstructured) -> bool:
    """Whether the Job was deleted before its end, so that there is none to be recorded."""
    return launcher.metadata.terminating and not has_ended(launcher)


def _is_left_behind(launcher: Unstructured, job_name: str) -> bool:
    """Whether the Job has no owner, or a previous MPIJob of this name, which is gone."""
    owner = launcher.metadata.controller
    return owner is None or (owner.kind, owner.name) == (MPI_V2.kind, job_name)
