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
from trainop.engine.seen import Snapshot
from trainop.engine.status import Status
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2
from trainop.runtime import Json, Unstructured

FINISH = f"{ANNOTATION_PREFIX}launcher-finish"
"""A finalizer."""

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
    status = launcher.raw.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == type_ and condition.get("status") == "True":
            return condition
    return None


def release(launcher: Unstructured, changes: Json | None = None) -> Patch | None:
    """Removes the finalizer, and makes other `changes` in the same write. None if there is nothing to write."""
    metadata = launcher.metadata
    body = dict(changes or {})
    if FINISH in metadata.finalizers:
        left = [each for each in metadata.finalizers if each != FINISH]
        body["metadata"] = {"finalizers": left, "resourceVersion": metadata.resource_version}
    return Patch(LAUNCHER_JOBS, metadata.name, metadata.uid, body) if body else None


def overdue(seen: Snapshot, *, given_up: bool) -> Iterator[Patch]:
    """The removal of the finalizer from the Jobs whose end will not be recorded, or is recorded already. `given_up`:
    the operator does nothing more for the job."""
    job = seen.job
    finished = Status(job.raw.get("status"), seen.now).finished
    for found in seen.companions.get(LAUNCHER_JOBS, ()):
        owner = found.metadata.controller
        if found.metadata.controlled_by(job.metadata.uid):
            unneeded = given_up or finished or (found.metadata.terminating and not has_ended(found))
        else:  # of a previous job of the same name, or left behind by one
            unneeded = owner is None or (owner.kind, owner.name) == (MPI_V2.kind, job.metadata.name)
        if unneeded and (patch := release(found)) is not None:
            yield patch
