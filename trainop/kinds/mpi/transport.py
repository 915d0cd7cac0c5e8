"""Which transport an MPIJob has: `exec`, as training-operator's, or `ssh`, as mpi-operator's.

The transport is decided once per job and recorded in an annotation before any child is created. Afterwards it never
changes: children that exist decide, so that a job never has two launchers. A finished job of a former operator gets no
children, so it is not written only to record its transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trainop.engine.actions import Event, Notice, Plan
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import GROUP, OPERATOR_NAME
from trainop.engine.seen import Options, Snapshot
from trainop.engine.status import FAILED, SUCCEEDED
from trainop.runtime import HasMetadata, Json, Resource, Unstructured, decode_complete
from trainop.runtime.lowlevel import drop_bookkeeping

TRANSPORT = ANNOTATION_PREFIX + "mpi-transport"
EXEC, SSH = "exec", "ssh"
CONTROLLERS = {"mpijob-controller": EXEC, "mpi-operator": SSH}
"""Value of the label operator-name -> the transport of the children that have it."""

MPI_V1 = Resource(GROUP, "v1", "mpijobs", "MPIJob")
MPI_V2 = Resource(GROUP, "v2beta1", "mpijobs", "MPIJob")
LAUNCHER_JOBS = Resource("batch", "v1", "jobs", "Job")

_SSH_FIELDS = {
    "runLauncherAsWorker": False,
    "sshAuthMountPath": "/root/.ssh",
    "launcherCreationPolicy": "AtStartup",
    "mpiImplementation": "OpenMPI",
}
"""Fields that only v2beta1 has, with the defaults of its CRD."""


class Choice(NamedTuple):
    """The transport of a job, and whether it is to be recorded in the annotation."""

    transport: str
    record: bool
    """The annotation is missing or differs."""
    changed: bool = False
    """The annotation names the other transport."""

    def annotations(self) -> dict[str, str | None]:
        return {TRANSPORT: self.transport} if self.record else {}

    def notices(self) -> tuple[Notice, ...]:
        """A Warning if the annotation was changed although the job has children."""
        if not self.changed:
            return ()
        text = f"The transport of a job cannot be changed: annotation {TRANSPORT} is set to {self.transport} again"
        return (Notice("transport", Event("Warning", "TransportChanged", text)),)


def choose(seen: Snapshot) -> Choice:
    """The transport of the job, by its children, its annotation, the version in which its replicas were written, and
    its fields, in this order."""
    recorded = recorded_transport(seen.job)
    known = known_transport(seen.job)
    existing = _transport_of_children(seen)
    if existing is not None:
        return Choice(existing, record=existing != known, changed=recorded not in {None, existing})
    if recorded is not None:
        return Choice(recorded, record=False)
    guessed = _guess(seen.job, seen.options)
    return Choice(guessed, record=guessed != known)


def expect(new: Unstructured, old: Unstructured | None = None) -> str:
    """The transport of a job at admission, where its children are not known: by the annotation, else by the version in
    which its replicas were or are being written. `old` is the stored job of an update."""
    for job in (old, new):
        if job is not None and (recorded := recorded_transport(job)) is not None:
            return recorded
    raw = (old or new).raw
    version = version_of_replicas(raw) or raw.get("apiVersion")
    return SSH if version == MPI_V2.api_version else EXEC


def recorded_transport(job: Unstructured) -> str | None:
    """The valid value of the annotation, or None."""
    value = job.metadata.annotations.get(TRANSPORT)
    return value if value in {EXEC, SSH} else None


def known_transport(job: Unstructured) -> str | None:
    """The recorded transport. That of a finished job without a record follows from the version in which its replicas
    were written. None if the transport has to be decided and recorded."""
    recorded = recorded_transport(job)
    if recorded is None and _is_over(job.raw.get("status")):
        return _transport_of_version(job.raw)
    return recorded


def _is_over(status: object) -> bool:
    """Whether nothing is left to do for the pods. mpi-operator fails a job with evicted workers without a
    completionTime, while its launcher goes on."""
    if not isinstance(status, dict) or not status.get("completionTime"):
        return False
    true = (each.get("type") for each in as_list(status.get("conditions")) if each.get("status") == "True")
    return any(type_ in (SUCCEEDED, FAILED) for type_ in true)


def lookups(job: Unstructured) -> tuple[tuple[Resource, str], ...]:
    """The objects to read from the API server before the transport is decided. Children of a former operator without
    pods lack the labels of the caches; a job without a status has no such children."""
    if known_transport(job) is not None or not job.raw.get("status"):
        return ()
    return ((LAUNCHER_JOBS, f"{job.metadata.name}-launcher"),)


def leave_to_other(choice: Choice) -> Plan:
    """The plan of the controller that does not have the job's transport: it only records it."""
    return Plan(annotations=choice.annotations(), notices=choice.notices())


def _transport_of_children(seen: Snapshot) -> str | None:
    found = {transport for child in _owned(seen) if (transport := _transport_of(child)) is not None}
    if any(job.metadata.controlled_by(seen.job.metadata.uid) for job in seen.companions.get(LAUNCHER_JOBS, ())):
        found.add(SSH)
    return SSH if SSH in found else next(iter(found), None)


def _owned(seen: Snapshot) -> Iterator[HasMetadata]:
    kinds: tuple[Sequence[HasMetadata], ...] = (seen.services, seen.pods, *seen.companions.values())
    for objects in kinds:
        yield from (child for child in objects if child.metadata.controlled_by(seen.job.metadata.uid))


def _transport_of(child: HasMetadata) -> str | None:
    return CONTROLLERS.get(child.metadata.labels.get(OPERATOR_NAME, ""))


def watched_version(options: Options) -> Resource:
    """The version in which MPIJobs are watched and written."""
    return MPI_V2 if options.mpi_version == MPI_V2.version else MPI_V1


def _guess(job: Unstructured, options: Options) -> str:
    """By the version in which the replicas were written. Without a record of it, by the fields of v2beta1, or by the
    only version that is served."""
    by_version = _transport_of_version(job.raw)
    if by_version is not None:
        return by_version
    if watched_version(options) == MPI_V2:
        return SSH
    given = as_object(job.raw.get("spec"))
    return SSH if any(given.get(name, default) != default for name, default in _SSH_FIELDS.items()) else EXEC


def _transport_of_version(raw: Json) -> str | None:
    version = version_of_replicas(raw)
    if version is None:
        return None
    return SSH if version == MPI_V2.api_version else EXEC


# The version of the writer --------------------------------------------------------------------------------------------


def version_of_replicas(raw: Json) -> str | None:
    """The apiVersion of the oldest entry in `managedFields` that owns `spec.mpiReplicaSpecs`; None without one."""
    metadata = raw.get("metadata")
    entries = metadata.get("managedFields") if isinstance(metadata, dict) else None
    owners = [entry for entry in entries if _owns_replicas(entry)] if isinstance(entries, list) else []
    oldest = min(owners, key=lambda entry: str(entry.get("time") or ""), default=None)
    version = oldest.get("apiVersion") if oldest else None
    return version if isinstance(version, str) else None


def _owns_replicas(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.get("subresource"):
        return False
    return "f:mpiReplicaSpecs" in as_object(as_object(entry.get("fieldsV1")).get("f:spec"))


def decode_mpi_job(raw: bytes) -> Unstructured:
    """As `decode_unstructured`, but keeps the one fact of `managedFields` that decides the transport, until that is
    recorded."""
    job = decode_complete(raw)
    version = None if recorded_transport(job) else version_of_replicas(job.raw)
    reduced = drop_bookkeeping(job.raw)
    if version is not None:
        job.raw["metadata"]["managedFields"] = [{"apiVersion": version, "fieldsV1": _REPLICAS}]
    return Unstructured(job.raw, reduced=reduced)


_REPLICAS: Json = {"f:spec": {"f:mpiReplicaSpecs": {}}}
"""Shared by all jobs."""
