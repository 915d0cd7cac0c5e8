"""A whole cluster in this process: API server and node, with a kubeconfig for `kubectl`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from trainop.local import private
from trainop.local.api.serving.server import ApiServer
from trainop.local.node.agent import NetworkMode, Node, NodeOptions
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Transport

NODE_NAME = "local"
_OBJECTS = "objects.sqlite"
_LOCK = "lock"
_MARGIN = 10.0  # seconds beyond the grace period for processes to be gone and statuses to be written
_MARGIN_OF_KILL = 5.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How to start it; the defaults leave nothing behind."""

    directory: Path | None = None
    """Keeps objects, volumes and logs, so that a cluster started there again continues; it holds nothing else."""
    network: NetworkMode | None = None
    """None takes network namespaces where this user may have them."""
    port: int = 0
    """Of the API server on 127.0.0.1; 0 is a free one."""


class LocalCluster:
    """Up inside the `async with` block; at its end no process of a pod is left.

    Raises `OSError` if the port, the directory or the network mode cannot be had.
    """

    def __init__(
        self, options: ClusterOptions | None = None, *, say: Callable[[str], None] = lambda message: None
    ) -> None:
        """`say` gets a line for people when pods are stopped."""
        self._options = options or ClusterOptions()
        self._say = say
        self._ends = AsyncExitStack()
        self._parts: list[asyncio.Task[None]] = []
        self._hurry = asyncio.Event()
        self.directory = _own_directory(self._options.directory)
        self._lock = _take_lock(self.directory)
        self.api = self._open_api(self.directory / _OBJECTS if self._options.directory else None)
        self.client = Client(self.api.transport(), user_agent="trainop", field_manager="trainop")
        node = NodeOptions(network=self._options.network)
        self.node = Node(self.client, NODE_NAME, self.directory / "node", options=node)
        self.api.log_source = self.node.open_log
        self.url = ""

    @property
    def transport(self) -> Transport:
        """Reaches the API server without a socket."""
        return self.api.transport()

    @property
    def kubeconfig(self) -> Path:
        """Absolute."""
        return self.directory / "kubeconfig"

    def hurry(self) -> None:
        """When the block ends, or while it ends: pods are killed instead of asked."""
        self._hurry.set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as ends:
            ends.enter_context(self._directory_of_our_own())
            await self.node.prepare()  # what the machine refuses is reported before anything runs
            ends.push_async_callback(self.api.close)
            token = secrets.token_urlsafe(24)
            self.url = await self._serve(token)
            private.replace_text(self.kubeconfig, json.dumps(self.api.kubeconfig(token), indent=1) + "\n")
            tasks = await ends.enter_async_context(asyncio.TaskGroup())
            # the node ends before the API server does: it still reports there what it ends
            for part in (self.api.run(), self.node.run()):
                self._parts.append(tasks.create_task(part))
                ends.push_async_callback(_end, self._parts[-1])
            await self.node.wait_ready()
            self._ends = ends.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self._stop_pods()
        finally:
            # an error of the block is the block's own, not one more of the tasks
            await self._ends.__aexit__(None, None, None)

    async def _stop_pods(self) -> None:
        """SIGTERM, the pods' own grace period, SIGKILL; the last at once if there is a hurry."""
        count, grace = self.node.begin_stop()
        if not count:
            return
        if not self._hurry.is_set():
            pods = "1 pod" if count == 1 else f"{count} pods"
            self._say(f"stopping {pods}, up to {grace:g} s; Ctrl-C again to kill")
        ended = asyncio.create_task(self.node.pods_ended())
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({ended, hurry, *self._parts}, timeout=grace + _MARGIN, return_when="FIRST_COMPLETED")
            if not ended.done():
                self._say("killing the pods that still run")
                self.node.kill_pods()
                await asyncio.wait({ended, *self._parts}, timeout=_MARGIN_OF_KILL, return_when="FIRST_COMPLETED")
        finally:
            ended.cancel()
            hurry.cancel()

    @contextmanager
    def _directory_of_our_own(self) -> Iterator[None]:
        """In use by no other cluster while we use it, and gone afterwards unless it is to be kept."""
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
            os.close(private.open_file(objects, os.O_RDWR))  # what SQLite opens beside it gets the same mode
            return ApiServer(persist=objects)
        except OSError:
            os.close(self._lock)
            raise

    async def _serve(self, token: str) -> str:
        try:
            return await self.api.serve(port=self._options.port, token=token)
        except OSError as error:
            port = self._options.port
            raise OSError(
                f"port {port} of 127.0.0.1 cannot be had ({os.strerror(error.errno or 0)}): choose another"
            ) from error


def _own_directory(wanted: Path | None) -> Path:
    """The folder, for this user alone: made, or found empty or as an earlier cluster left it."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="trainop-")).absolute()
    directory = wanted.absolute()
    if directory.is_dir() and not directory.is_symlink():
        found = {path.name for path in directory.iterdir()}
        if found and _LOCK not in found:
            raise OSError(f"{wanted} holds other files ({min(found)}); the cluster needs a folder of its own")
    private.make_folder(directory)
    for name in (_OBJECTS, f"{_OBJECTS}-wal", f"{_OBJECTS}-shm", f"{_OBJECTS}-journal", "kubeconfig", "trainop.log"):
        private.tighten(directory / name)
    for log in directory.glob("node/pods/*/*/*.log"):
        private.tighten(log)
    return directory


def _take_lock(directory: Path) -> int:
    """The descriptor that holds it: before anything else there is touched."""
    lock = private.open_file(directory / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise OSError(f"{directory} is in use by another cluster") from error
    return lock


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
