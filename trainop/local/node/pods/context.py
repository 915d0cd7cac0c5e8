"""What all pods of a node share: the machine, the API, time, logs and the way to tell what happens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from trainop.local.node.network.addresses import AddressOf
from trainop.local.node.pods.environment import Reference
from trainop.local.node.pods.logs import RunLog
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import Machine
from trainop.runtime.client.client import Client
from trainop.runtime.clock import Clock
from trainop.runtime.errors import NotFoundError
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.objects.metadata import Json, ObjectReference
from trainop.runtime.objects.resource import CONFIG_MAPS, SECRETS

SHAPE_FAULTS = (AttributeError, LookupError, TypeError, ValueError)
"""How a function meets an object of a shape that it did not expect: a pod's fault, to be said of that pod alone."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Restarts of a container wait as kubelet's do: 10, 20, 40 … 300."""

    backoff_initial: float = 10.0
    backoff_limit: float = 300.0
    retry_initial: float = 1.0
    retry_limit: float = 15.0
    settle: float = 0.02
    """Changes of a pod that come within this time are written together."""


def pod_directory(node_directory: Path, metadata: Json) -> Path:
    """As kubelet names it."""
    return node_directory / "pods" / f"{metadata.get('namespace', '')}_{metadata['name']}_{metadata['uid']}"


class LogShelf:
    """All logs of the node: those being written, and on disk those of earlier runs."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._live: dict[Path, RunLog] = {}

    def begin(self, metadata: Json, container: str, run: int) -> RunLog:
        """The log for a new run; of those before it only the last is kept."""
        directory = self._directory(metadata) / container
        old = RunLog(directory / f"{run - 2}.log")
        for path in (old.path, old.times):
            path.unlink(missing_ok=True)
        self._live.pop(old.path, None)
        log = RunLog(directory / f"{run}.log")
        self._live[log.path] = log
        return log

    def find(self, metadata: Json, container: str, *, previous: bool) -> RunLog | None:
        """The log of the latest run, or of the one before it."""
        runs = sorted((self._directory(metadata) / container).glob("*.log"), key=lambda path: int(path.stem))
        at = -2 if previous else -1
        if len(runs) < -at:
            return None
        return self._live.get(runs[at]) or RunLog(runs[at], complete=True)

    def forget(self, metadata: Json) -> None:
        """The pod is gone: what still reads a log keeps it open."""
        root = self._directory(metadata)
        for path in [path for path in self._live if root in path.parents]:
            del self._live[path]

    def sweep(self, uids: Collection[str]) -> None:
        """Removes what pods left that went away while the node was not there; `uids` are those of all pods."""
        for directory in (self._root / "pods").glob("*_*_*"):
            if directory.name.rpartition("_")[2] not in uids:
                shutil.rmtree(directory, ignore_errors=True)

    def _directory(self, metadata: Json) -> Path:
        return pod_directory(self._root, metadata)


@dataclass(frozen=True, slots=True)
class Kit:
    """`environment` and `working_directory` are the caller's: what every container begins with."""

    machine: Machine
    client: Client
    clock: Clock
    timing: Timing
    recorder: Recorder
    logs: LogShelf
    directory: Path
    environment: dict[str, str]
    working_directory: str
    allocatable: dict[str, str]
    common_mounts: Sequence[Mount]
    """What every container sees beside its volumes."""
    address_of: Callable[[str, Json], AddressOf]
    """For the loopback mode: names as a pod of this namespace and metadata means them."""

    async def fetch(self, references: Iterable[Reference], namespace: str) -> dict[Reference, Json]:
        """Those of the referenced objects that exist; raises as the client does."""
        found: dict[Reference, Json] = {}
        for reference in references:
            resource = CONFIG_MAPS if reference.kind == "configmap" else SECRETS
            try:
                found[reference] = await self.client.get(resource, reference.name, namespace)
            except NotFoundError:
                continue
        return found

    def pod_directory(self, metadata: Json) -> Path:
        """Where the logs and volumes of a pod are, named as kubelet names them."""
        return pod_directory(self.directory, metadata)

    def tell(
        self, pod: Json, type_: Literal["Normal", "Warning"], reason: str, message: str, container: Json | None = None
    ) -> None:
        """An event about the pod or one of its containers."""
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
