"""The annotations of an MPIJob with transport ssh."""

from __future__ import annotations

from dataclasses import dataclass

from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.fields import Fields
from trainop.kinds.mpi.hosts import REPLICA_SPECS, WORKER
from trainop.kinds.mpi.ssh.replicas import Replicas, choose_one
from trainop.runtime import Metadata

REMOTE_SHELL = ANNOTATION_PREFIX + "mpi-remote-shell"
"""`rsh`: the launcher starts processes by rsh instead of ssh."""
CLEAN_LAUNCHER = ANNOTATION_PREFIX + "clean-launcher"
"""`true`: the launcher's pods are deleted when the job has finished."""
REPLACE_FAILED = ANNOTATION_PREFIX + "replace-failed-workers"
"""`true`: a failed worker is replaced while the launcher retries."""
OPEN_MPI_VERSION = ANNOTATION_PREFIX + "open-mpi-version"
"""`5`: the launcher also gets the variables of Open MPI 5, whose runtime PRRTE does not read those of Open MPI 4."""


@dataclass(frozen=True, slots=True)
class Extras:
    """The parsed annotations; invalid ones have their defaults."""

    remote_shell: str = "ssh"
    clean_launcher: bool = False
    replace_failed: bool = False
    open_mpi_version: str = "4"


def read_extras(fields: Fields, metadata: Metadata, worker: Replicas | None) -> Extras:
    """Reads the annotations. Errors are added to `fields`."""

    def choose(name: str, supported: tuple[str, ...]) -> str:
        at = f"metadata.annotations[{name}]"
        return choose_one(fields, at, metadata.annotations.get(name), supported, supported[0])

    shell = choose(REMOTE_SHELL, ("ssh", "rsh"))
    if shell == "rsh" and worker is not None:
        first = worker.template["spec"]["containers"][0]
        if not (first.get("command") or first.get("args")):
            path = f"spec.{REPLICA_SPECS}[{WORKER}].template.spec.containers[0].command"
            fields.required(path, "must start a server for rsh, since the default is sshd")
    return Extras(
        remote_shell=shell,
        clean_launcher=metadata.annotations.get(CLEAN_LAUNCHER) == "true",
        replace_failed=choose(REPLACE_FAILED, ("false", "true")) == "true",
        open_mpi_version=choose(OPEN_MPI_VERSION, ("4", "5")),
    )
