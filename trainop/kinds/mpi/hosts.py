"""The files of an MPIJob's ConfigMap: the hostfile and the script that lists the running hosts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from trainop.engine.actions import Need
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.fields import Fields
from trainop.engine.framework import Companion, CompanionKind
from trainop.engine.seen import Pod, Snapshot
from trainop.runtime import CONFIG_MAPS, Unstructured
from trainop.runtime.lowlevel import read_time, timestamp

LAUNCHER, WORKER = "Launcher", "Worker"
REPLICA_SPECS = "mpiReplicaSpecs"
TRAINING_OPERATOR, MPI_OPERATOR = "kubeflow.org/training-operator", "kubeflow.org/mpi-operator"

CONFIG = CompanionKind(CONFIG_MAPS, Need.JOB, posted=True)
CONFIG_FOLDER = "/etc/mpi"
HOSTFILE, DISCOVER = "hostfile", "discover_hosts.sh"

HOSTS_AT = ANNOTATION_PREFIX + "hosts-written-at"
"""Annotation of the ConfigMap: when `discover_hosts.sh` was last written."""

HOSTS_INTERVAL = 15.0
"""Seconds between two versions of `discover_hosts.sh` while workers are starting. The kubelet updates mounted
ConfigMaps about once a minute, and the script grows with the job: writing it per pod would be quadratic."""

MAX_CONFIG_SIZE = 1024 * 1024
"""Bytes of all values of a ConfigMap together (kubernetes `pkg/apis/core/validation`, `MaxSecretSize`)."""


def config_name(job_name: str) -> str:
    return f"{job_name}-config"


def worker_index(job_name: str, pod_name: str) -> int | None:
    """The index of a worker by its name, which unlike its label has always meant the same; None for other pods."""
    prefix, _, index = pod_name.rpartition("-")
    if prefix != f"{job_name}-worker" or not (index.isascii() and index.isdigit()) or len(index) > 10:
        return None
    return int(index) if index == str(int(index)) else None


def owned_workers(seen: Snapshot) -> Iterator[tuple[int, Pod]]:
    """The workers that the job controls, terminating ones included, with their indices."""
    metadata = seen.job.metadata
    for pod in seen.pods:
        if pod.metadata.controlled_by(metadata.uid):
            index = worker_index(metadata.name, pod.metadata.name)
            if index is not None:
                yield index, pod


def running_hosts(seen: Snapshot, workers: int) -> list[str]:
    """The names of the running workers, sorted as text. Terminating pods and those above the count are left out."""
    return sorted(
        pod.metadata.name
        for index, pod in owned_workers(seen)
        if index < workers and pod.status.phase == "Running" and not pod.metadata.terminating
    )


class Script(NamedTuple):
    """`discover_hosts.sh` as it should be now."""

    text: str
    written_at: str
    """Value of the annotation `HOSTS_AT`."""
    due_in: float | None = None
    """Seconds until a newer text, which is held back, may be written."""


def pace(found: Unstructured | None, text: str, now: datetime, *, complete: bool) -> Script:
    """Limits how often the script changes. It is written at once if all workers run (`complete`) or a listed host is
    gone; otherwise at most every `HOSTS_INTERVAL`."""
    new = Script(text, timestamp(now))
    data = found.raw.get("data") if found is not None else None
    old = data.get(DISCOVER) if isinstance(data, dict) else None
    if found is None or not isinstance(old, str):
        return new
    written_at = found.metadata.annotations.get(HOSTS_AT, "")
    if old == text:
        return Script(old, written_at)
    last = read_time(written_at)
    age = HOSTS_INTERVAL if last is None else (now - last).total_seconds()
    if complete or age >= HOSTS_INTERVAL or not set(old.splitlines()) <= set(text.splitlines()):
        return new
    return Script(old, written_at, HOSTS_INTERVAL - age)


def config_companion(job_name: str, script: Script, files: dict[str, str]) -> Companion:
    """The ConfigMap with the script and the other `files`."""
    data = {**files, DISCOVER: script.text}
    return Companion(
        CONFIG,
        config_name(job_name),
        "\0".join(data.values()),
        lambda: {"data": data},
        labels={"app": job_name},
        annotations={HOSTS_AT: script.written_at},
        due_in=script.due_in,
    )


def find_config(seen: Snapshot) -> Unstructured | None:
    """The job's ConfigMap in the snapshot."""
    name, uid = config_name(seen.job.metadata.name), seen.job.metadata.uid
    found: tuple[Unstructured, ...] = tuple(seen.companions.get(CONFIG_MAPS, ()))
    return next((each for each in found if each.metadata.name == name and each.metadata.controlled_by(uid)), None)


def size_of_lines(workers: int, around: int) -> int:
    """Bytes of one line per worker, of which `around` are the same in all lines and the rest is the index."""
    digits = sum(workers - power for power in (0, 10, 100, 1_000, 10_000) if workers > power)
    return workers * around + digits


def check_size(fields: Fields, size: int, workers: int) -> None:
    """Adds an error if the ConfigMap would exceed the limit of the API server with all workers running."""
    if size > MAX_CONFIG_SIZE:
        found = f"the ConfigMap with the hosts of {workers} workers would have {size} bytes"
        detail = f"{found}, and the API server takes no more than {MAX_CONFIG_SIZE}"
        fields.forbidden(f"spec.{REPLICA_SPECS}[{WORKER}].replicas", detail)
