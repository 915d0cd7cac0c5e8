"""`NodeContext`: what all pods of a node share, such as container runtime, API client, clock, logs and event recorder.

The agent creates one context per node and passes it to the pod manager, pods, containers and probes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from trainop.local.node.devices import Devices
from trainop.local.node.isolation import Isolation
from trainop.local.node.network.addresses import AddressOf
from trainop.local.node.pods.containers import Containers
from trainop.local.node.pods.environment import Reference
from trainop.local.node.pods.logs import LogCopy, RunLog
from trainop.local.node.pods.service_account import ServiceAccounts
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import ContainerRuntime
from trainop.runtime import CONFIG_MAPS, SECRETS, Client, Clock, Json, NotFoundError, ObjectReference, Recorder

MALFORMED_OBJECT_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
"""Raised by code that reads an object with unexpected types or missing fields, such as a malformed pod spec.

Callers report these errors on the pod concerned, so that one malformed pod does not affect the node."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Delays in seconds. The default restart back-off is kubelet's: 10, 20, 40 … 300.

    `retry_*` is the back-off for setting up a pod's volumes and sandbox and a container's configuration.
    """

    backoff_initial: float = 10.0
    backoff_limit: float = 300.0
    retry_initial: float = 1.0
    retry_limit: float = 15.0
    status_batch_delay: float = 0.02
    """Status changes of one pod within this time are written in one patch."""


def pod_directory(node_directory: Path, metadata: Json) -> Path:
    """The directory of a pod's logs and volumes, named `<namespace>_<name>_<uid>` as kubelet's log directories."""
    return node_directory / "pods" / f"{metadata.get('namespace', '')}_{metadata['name']}_{metadata['uid']}"


KeepLog = Callable[[Json, str], LogCopy]
"""By the metadata of a pod and the name of a container that starts."""


class LogStore:
    """All container logs of the node: logs of running containers, and logs of earlier runs on disk."""

    def __init__(self, directory: Path, keep: KeepLog | None = None) -> None:
        """`keep` makes the copy of each log that begins."""
        self._root = directory
        self._keep = keep
        self._live: dict[Path, RunLog] = {}

    def start_run(self, metadata: Json, container: str, run: int) -> RunLog:
        """Creates the log of a container's run number `run`. Of the earlier runs only the latest is kept."""
        directory = self._directory(metadata) / container
        old = RunLog(directory / f"{run - 2}.log")
        for path in (old.path, old.times):
            path.unlink(missing_ok=True)
        self._live.pop(old.path, None)
        log = RunLog(directory / f"{run}.log", copy=self._keep(metadata, container) if self._keep else None)
        self._live[log.path] = log
        return log

    def find(self, metadata: Json, container: str, *, previous: bool) -> RunLog | None:
        """The log of the container's latest run, or of the run before it if `previous`; None if there is none."""
        runs = sorted((self._directory(metadata) / container).glob("*.log"), key=lambda path: int(path.stem))
        at = -2 if previous else -1
        if len(runs) < -at:
            return None
        return self._live.get(runs[at]) or RunLog(runs[at], complete=True)

    def forget(self, metadata: Json) -> None:
        """Drops references to a deleted pod's logs; open readers continue with their open file."""
        root = self._directory(metadata)
        for path in [path for path in self._live if root in path.parents]:
            del self._live[path]

    def remove_orphans(self, uids: Collection[str]) -> None:
        """Deletes directories of pods that were deleted while the node was down; `uids` are those of existing pods."""
        for directory in (self._root / "pods").glob("*_*_*"):
            if directory.name.rpartition("_")[2] not in uids:
                shutil.rmtree(directory, ignore_errors=True)

    def _directory(self, metadata: Json) -> Path:
        return pod_directory(self._root, metadata)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Shared state and services of one node. `environment` and `working_directory` are the containers' defaults."""

    runtime: ContainerRuntime
    containers: Containers
    client: Client
    clock: Clock
    timing: Timing
    recorder: Recorder
    logs: LogStore
    directory: Path
    environment: dict[str, str]
    working_directory: str
    allocatable: dict[str, str]
    service_accounts: ServiceAccounts
    devices: Devices
    isolation: Isolation | None
    common_mounts: Sequence[Mount]
    """Mounts that every container has in addition to its volumes."""
    address_of: Callable[[str, Json], AddressOf]
    """Mode `addresses`: the name lookup for a pod with this namespace and metadata (see `LoopbackNames`)."""

    async def fetch(self, references: Iterable[Reference], namespace: str) -> dict[Reference, Json]:
        """Reads the referenced objects; missing objects are left out. Raises `ApiError` as the client does."""
        objects: dict[Reference, Json] = {}
        for reference in references:
            resource = CONFIG_MAPS if reference.kind == "configmap" else SECRETS
            try:
                objects[reference] = await self.client.get(resource, reference.name, namespace)
            except NotFoundError:
                continue
        return objects

    def pod_directory(self, metadata: Json) -> Path:
        """The directory of a pod's logs and volumes: see `pod_directory`."""
        return pod_directory(self.directory, metadata)

    def record_event(
        self, pod: Json, type_: Literal["Normal", "Warning"], reason: str, message: str, container: Json | None = None
    ) -> None:
        """Records an Event on the pod; `container` sets the event's field path to that container."""
        meta = pod["metadata"]
        path = ""
        if container is not None:
            inits = pod["spec"].get("initContainers") or ()
            kind = "initContainers" if any(container is one for one in inits) else "containers"
            path = f"spec.{kind}{{{container['name']}}}"
        about = ObjectReference("v1", "Pod", meta.get("namespace", ""), meta["name"], meta["uid"], field_path=path)
        self.recorder.event(about, type_, reason, message)

    def now(self) -> datetime:
        return self.clock.now()
