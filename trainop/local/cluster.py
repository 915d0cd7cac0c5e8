"""A whole cluster in this process: API server and node, with a kubeconfig for `kubectl`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from trainop.local.api.server import ApiServer
from trainop.local.node.agent import NetworkMode, Node, NodeOptions
from trainop.runtime.client import Client
from trainop.runtime.transport import Transport

NODE_NAME = "local"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How to start it; the defaults leave nothing behind."""

    directory: Path | None = None
    """Keeps objects, volumes and logs, so that a cluster started there again continues."""
    network: NetworkMode | None = None
    """None takes network namespaces where this user may have them."""
    port: int = 0
    """Of the API server on 127.0.0.1; 0 is a free one."""


class LocalCluster:
    """Up inside the `async with` block; at its end no process of a pod is left.

    Raises `OSError` if the port, the directory or the network mode cannot be had.
    """

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self._options = options or ClusterOptions()
        self._ends = AsyncExitStack()
        self.directory = self._options.directory or Path(tempfile.mkdtemp(prefix="trainop-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        persist = self.directory / "objects.sqlite" if self._options.directory else None
        self.api = ApiServer(persist=persist)
        self.client = Client(self.api.transport())
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
        return self.directory / "kubeconfig"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as ends:
            ends.enter_context(self._directory_of_our_own())
            await self.node.prepare()  # what the machine refuses is told before anything runs
            ends.push_async_callback(self.api.close)
            token = secrets.token_urlsafe(24)
            self.url = await self._serve(token)
            self._write_kubeconfig(token)
            tasks = await ends.enter_async_context(asyncio.TaskGroup())
            # the node ends before the API server does: it still reports there what it ends
            for part in (self.api.run(), self.node.run()):
                ends.push_async_callback(_end, tasks.create_task(part))
            await self.node.wait_ready()
            self._ends = ends.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        # an error of the block is the block's own, not one more of the tasks
        await self._ends.__aexit__(None, None, None)

    @contextmanager
    def _directory_of_our_own(self) -> Iterator[None]:
        """Nobody else's while we use it, and gone afterwards unless it is to be kept."""
        with (self.directory / "lock").open("w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OSError(f"{self.directory} is in use by another cluster") from error
            try:
                yield
            finally:
                if self._options.directory is None:
                    shutil.rmtree(self.directory, ignore_errors=True)

    async def _serve(self, token: str) -> str:
        try:
            return await self.api.serve(port=self._options.port, token=token)
        except OSError as error:
            port = self._options.port
            raise OSError(
                f"port {port} of 127.0.0.1 cannot be had ({os.strerror(error.errno or 0)}): choose another"
            ) from error

    def _write_kubeconfig(self, token: str) -> None:
        """Only its owner may read it: the token lets pods, hence processes, be started."""
        self.kubeconfig.touch(mode=0o600)
        config = self.api.kubeconfig(token)
        self.kubeconfig.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
