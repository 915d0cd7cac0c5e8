"""A local cluster in this process: API server and node in one data directory, with a kubeconfig for `kubectl`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlsplit

from trainop.local import private_files
from trainop.local.api.request.resource_metrics import Amounts, Measured
from trainop.local.api.serving.server import ApiServer
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.local.gpus import find_gpus
from trainop.local.job_controller import job_controller
from trainop.local.node.agent import ApiEndpoint, NetworkMode, Node, NodeOptions, PodmanOptions
from trainop.local.node.isolation import Isolation
from trainop.local.node.pods.logs import LogCopy
from trainop.local.scheduler.filters import STRICT, Leniency
from trainop.runtime import Client, Json, Manager
from trainop.runtime.lowlevel import Transport

NODE_NAME = "local"
_OBJECTS = "objects.sqlite"
_LOCK = "lock"
_STOP_MARGIN = 10.0  # seconds after the grace period for the end of processes and the writing of statuses
_KILL_TIMEOUT = 5.0


class Keeper(Protocol):
    """Gets what happens in the cluster, synchronously: it must not block."""

    def __call__(self, table: Table, change: Change) -> None:
        """A write of an object."""

    def log(self, metadata: Json, container: str) -> LogCopy:
        """The copy of the log of a container that starts, by the metadata of its pod."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of a local cluster; with the defaults it uses a temporary directory."""

    directory: Path | None = None
    """The data directory with objects, volumes and logs, and nothing else; None uses a temporary directory."""
    network: NetworkMode | None = None
    """None uses network namespaces if this user may create them."""
    port: int = 0
    """The port of the API server on 127.0.0.1; 0 selects a free port."""
    keep: Keeper | None = None
    """Records the objects and logs of the cluster."""
    gpus: Sequence[str] | None = None
    """The GPUs that pods can have, by UUID; None: those of this machine."""
    leniency: Leniency = STRICT
    """Which requests of pods do not count."""
    isolation: Isolation | None = None
    """What containers see of this machine, if they are isolated from it."""
    podman: PodmanOptions | None = None
    """Containers run from their images, by podman; None: as processes of this machine, without images."""


class LocalCluster:
    """A cluster that runs inside its `async with` block; at the end of the block all processes of pods have ended.

    Construction locks the directory and opens the database; entering the block starts node and API server. Both raise
    `OSError` if the port, the directory or the network mode is not available.
    """

    def __init__(
        self, options: ClusterOptions | None = None, *, notify: Callable[[str], None] = lambda message: None
    ) -> None:
        """`notify` receives progress messages for the user while pods are stopped."""
        self._options = options or ClusterOptions()
        self._notify = notify
        self._exit_stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._managers: list[tuple[Manager, asyncio.Task[None]]] = []
        self._grace_period_skipped = asyncio.Event()
        self.directory = _prepare_directory(self._options.directory)
        self._lock = _lock_directory(self.directory)
        self.api = self._open_api(self.directory / _OBJECTS if self._options.directory else None)
        self.client = Client(self.api.transport(), user_agent="trainop", field_manager="trainop")
        keep = self._options.keep
        if keep is not None:
            self.api.listen(keep)
        given = self._options.gpus
        node = NodeOptions(
            network=self._options.network,
            keep_log=keep.log if keep is not None else None,
            gpus=find_gpus(os.environ) if given is None else given,
            leniency=self._options.leniency,
            isolation=self._options.isolation,
            podman=self._options.podman,
        )
        self.node = Node(self.client, NODE_NAME, self.directory / "node", options=node)
        self.api.log_source = self.node.open_log
        self.api.exec_source = self.node.open_exec
        self.api.port_source = self.node.open_ports
        if sys.platform == "linux":
            self.api.serve_metrics(self._measure)
        self.url = ""

    async def _measure(self) -> Measured:
        containers, machine = await self.node.usage()
        shown = {uid: {name: Amounts(*used) for name, used in found.items()} for uid, found in containers.items()}
        return Measured(self.node.name, Amounts(*machine), shown)

    @property
    def transport(self) -> Transport:
        """A transport to the API server without a socket."""
        return self.api.transport()

    @property
    def kubeconfig(self) -> Path:
        """The absolute path of the kubeconfig file."""
        return self.directory / "kubeconfig"

    def skip_grace_period(self) -> None:
        """Kill the pods at the end of the block, or now if it is ending, without a grace period."""
        self._grace_period_skipped.set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._directory_in_use())
            await self.node.prepare()  # fails early if the machine lacks a feature
            stack.push_async_callback(self.api.close)
            token = secrets.token_urlsafe(24)
            self.url = await self._start_server(token)
            address = urlsplit(self.url)
            self.node.api_endpoint = ApiEndpoint(address.hostname or "", address.port or 0, self.api.authority)
            private_files.replace_text(self.kubeconfig, json.dumps(self.api.kubeconfig(token), indent=1) + "\n")
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            # the node stops before the API server, because it reports the final statuses of pods
            for coroutine in (self.api.run(), self.node.run()):
                self._tasks.append(tasks.create_task(coroutine))
                stack.push_async_callback(_cancel, self._tasks[-1])
            manager = job_controller().build(self.transport, signals=False, serve=False)
            self._managers.append((manager, tasks.create_task(_run_manager(manager))))
            stack.push_async_callback(_stop_manager, *self._managers[-1])
            await self.node.wait_ready()
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            for manager, task in self._managers:  # first, because it would replace the pods that are stopped
                await _stop_manager(manager, task)
            await self._stop_pods()
        finally:
            # an error of the block must not be wrapped into the exception group of the tasks
            await self._exit_stack.__aexit__(None, None, None)

    async def _stop_pods(self) -> None:
        """SIGTERM, then SIGKILL after the grace period of the pods, or at once after `skip_grace_period`."""
        count, grace = self.node.begin_stop()
        if not count:
            return
        if not self._grace_period_skipped.is_set():
            pods = "1 pod" if count == 1 else f"{count} pods"
            self._notify(f"stopping {pods}, up to {grace:g} s; Ctrl-C again to kill")
        ended = asyncio.create_task(self.node.pods_ended())
        skipped = asyncio.create_task(self._grace_period_skipped.wait())
        try:
            await asyncio.wait(
                {ended, skipped, *self._tasks}, timeout=grace + _STOP_MARGIN, return_when="FIRST_COMPLETED"
            )
            if not ended.done():
                self._notify("killing the pods that still run")
                self.node.kill_pods()
                await asyncio.wait({ended, *self._tasks}, timeout=_KILL_TIMEOUT, return_when="FIRST_COMPLETED")
        finally:
            ended.cancel()
            skipped.cancel()

    @contextmanager
    def _directory_in_use(self) -> Iterator[None]:
        """Release the lock at the end, and remove a temporary directory."""
        try:
            yield
        finally:
            os.close(self._lock)
            if self._options.directory is None:
                shutil.rmtree(self.directory, ignore_errors=True)

    def _open_api(self, objects: Path | None) -> ApiServer:
        if objects is None:
            return ApiServer()
        try:
            os.close(private_files.open_file(objects, os.O_RDWR))  # SQLite creates its WAL files with the same mode
            return ApiServer(persist=objects)
        except OSError:
            os.close(self._lock)
            raise

    async def _start_server(self, token: str) -> str:
        try:
            return await self.api.serve(port=self._options.port, token=token)
        except OSError as error:
            port = self._options.port
            raise OSError(
                f"port {port} of 127.0.0.1 is not available ({os.strerror(error.errno or 0)}): choose another port"
            ) from error


def _prepare_directory(wanted: Path | None) -> Path:
    """Create or reuse the data directory, for this user only; raises `OSError` if it holds other files."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="trainop-")).absolute()
    directory = wanted.absolute()
    if directory.is_dir() and not directory.is_symlink():
        found = {path.name for path in directory.iterdir()}
        if found and _LOCK not in found:
            raise OSError(f"{wanted} holds other files ({min(found)}); use an empty directory")
    private_files.ensure_directory(directory)
    for name in (_OBJECTS, f"{_OBJECTS}-wal", f"{_OBJECTS}-shm", f"{_OBJECTS}-journal", "kubeconfig", "trainop.log"):
        private_files.restrict(directory / name)
    for log in directory.glob("node/pods/*/*/*.log"):
        private_files.restrict(log)
    return directory


def _lock_directory(directory: Path) -> int:
    """Lock the directory; returns the descriptor of the lock file. Raises `OSError` if another cluster holds it."""
    lock = private_files.open_file(directory / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise OSError(f"{directory} is in use by another cluster") from error
    return lock


async def _run_manager(manager: Manager) -> None:
    if await manager.run() and not manager.stopping:
        raise OSError("the controller of Jobs has failed; the log says why")


async def _stop_manager(manager: Manager, task: asyncio.Task[None]) -> None:
    manager.stop()
    await asyncio.wait([task])


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
