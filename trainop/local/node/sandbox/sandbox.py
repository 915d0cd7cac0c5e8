"""The agent's client of the container runtime: pod sandboxes and container processes.

`ContainerRuntime` starts the supervisor and sends it requests; `ContainerProcess` controls one container through its
init. Both correspond to what a CRI runtime offers to kubelet.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias

from trainop.local.node.sandbox.channel import Message
from trainop.local.node.sandbox.container_init import CANNOT_START
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.link import Link
from trainop.local.node.sandbox.memory import MemoryGroup
from trainop.local.node.sandbox.running import KILLED, Execution, Exit, RunningContainer, SandboxError
from trainop.local.node.sandbox.supervisor import raise_file_limit
from trainop.local.node.sandbox.usage import Usage, measure

NetworkMode: TypeAlias = Literal["namespaces", "addresses"]

_NEEDS = (
    "it needs Linux 5.12 and user namespaces, on Ubuntu: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
)


@dataclass(frozen=True, slots=True)
class Command:
    """The command of one container; `environment` is complete, `directory` is absolute."""

    argv: Sequence[str]
    environment: dict[str, str]
    directory: str
    mounts: Sequence[Mount] = ()
    entry: int = 0
    """How many of the words in `argv` replace the entry point of the image, where images are used."""
    image: str = ""
    """The ID of the image, where images are used."""


class ContainerProcess(RunningContainer):
    """A container whose processes are those of this machine, behind its init."""

    def __init__(self, sock: socket.socket, group: MemoryGroup) -> None:
        """`group` is that of its processes; it is removed at the end."""
        super().__init__()
        self._group = group
        self._exit = Exit(KILLED)  # default if the init was killed before it sent an exit code
        self._execs: dict[int, Execution] = {}
        self._ids = itertools.count(1)
        self._link = Link(sock, self._on_message, self._on_close)

    def signal(self, number: int) -> None:
        self._link.send({"op": "signal", "number": number})

    def kill(self) -> None:
        self._link.send({"op": "kill"})

    def abandon(self) -> None:
        """Closes the channel, which kills the container; `ended` resolves at once."""
        self._link.close()

    def start(self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, *, tty: bool = False) -> Execution:
        if self.ended.done():
            raise SandboxError("the container has ended")
        id_ = next(self._ids)
        execution = self._execs[id_] = Execution(lambda: self._link.send({"op": "kill-exec", "id": id_}))
        self._link.send({"op": "exec", "id": id_, "argv": list(argv), "tty": tty}, (stdin, stdout, stderr))
        return execution

    def _on_message(self, message: Message, _: list[int]) -> None:
        match message["event"]:
            case "started":
                self.started.set_result(True)
            case "start-failed":
                self._exit = Exit(message["code"], message["message"])
            case "exited":
                self._exit = Exit(message["code"])
            case "exec-started" if (execution := self._execs.get(message["id"])) is not None:
                execution.on_start()
            case "exec-exited" if (execution := self._execs.pop(message["id"], None)) is not None:
                execution.on_exit(Exit(message["code"], message.get("message", "")))

    def _on_close(self) -> None:
        for execution in self._execs.values():
            execution.on_exit(Exit(KILLED))
        self._execs.clear()
        if not self.started.done():
            self.started.set_result(False)
        killed = self._group.close()
        if not self.ended.done():
            self.ended.set_result(replace(self._exit, out_of_memory=killed))


@dataclass(slots=True)
class ContainerRuntime:
    """Client of the supervisor process. `lost` resolves when the supervisor has exited, and all containers with it."""

    network: NetworkMode
    fallback_reason: str
    _process: asyncio.subprocess.Process
    _link: Link = field(init=False)
    lost: asyncio.Future[None] = field(init=False)
    _replies: dict[int, asyncio.Future[tuple[Message, list[int]]]] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    async def start(cls, requested: NetworkMode | None = None, *, isolated: bool = False) -> ContainerRuntime:
        """Starts the supervisor in the `requested` network mode, or in the best available mode if None.

        `fallback_reason` then states why mode `namespaces` is not in use. Raises `SandboxError` if the requested mode
        is not available, or with `isolated` if containers cannot be isolated here.
        """
        raise_file_limit()
        if isolated:
            return await cls._start_isolated()
        fallback_reason = "asked for" if requested == "addresses" else ""
        if sys.platform != "linux" and not fallback_reason:
            fallback_reason = "only Linux has network namespaces"
        if not fallback_reason:
            try:
                return await cls._launch("namespaces", "")
            except SandboxError as error:
                fallback_reason = str(error)
        if requested == "namespaces":
            raise SandboxError(f"no namespaces on this machine: {fallback_reason}")
        return await cls._launch("addresses", fallback_reason)

    @classmethod
    async def _start_isolated(cls) -> ContainerRuntime:
        if sys.platform != "linux":
            raise SandboxError("a run cannot be isolated on this machine: only Linux has namespaces")
        try:
            return await cls._launch("namespaces", "", program="isolated")
        except SandboxError as error:
            raise SandboxError(f"a run cannot be isolated on this machine: {error} ({_NEEDS})") from None

    @classmethod
    async def _launch(cls, mode: NetworkMode, fallback_reason: str, *, program: str = "") -> ContainerRuntime:
        local, remote = socket.socketpair()
        with remote:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainop.local.node.sandbox.supervisor", program or mode, str(remote.fileno())),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the same import path as this process
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(remote.fileno(),),
                start_new_session=True,  # only the agent gets Ctrl-C, and stops pods gracefully
            )
        runtime = cls(mode, fallback_reason, process)
        loop = asyncio.get_running_loop()
        runtime.lost = loop.create_future()
        hello = runtime._replies[0] = loop.create_future()
        runtime._link = Link(local, runtime._on_message, runtime._on_close)
        try:
            await runtime._await_reply(hello)
        except BaseException:
            await runtime.close()
            raise
        return runtime

    async def run_pod_sandbox(self, pod: str, hostname: str, address: str) -> None:
        """Creates the namespaces shared by the containers of `pod` (a UID); does nothing in mode `addresses`."""
        await self._call({"op": "run-pod-sandbox", "pod": pod, "hostname": hostname, "address": address})

    async def stop_pod_sandbox(self, pod: str) -> None:
        await self._call({"op": "stop-pod-sandbox", "pod": pod})

    async def start_container(
        self, pod: str, command: Command, stdout: int, stderr: int, group: MemoryGroup | None = None
    ) -> ContainerProcess:
        """Returns once the init is forked; see `started` and `ended` of the result for the outcome. The command joins
        `group`, if it is to have one.

        The caller may close the descriptors when this returns. Raises `SandboxError`.
        """
        local, remote = socket.socketpair()
        group = group or MemoryGroup()
        process = ContainerProcess(local, group)
        request: Message = {
            "op": "start",
            "pod": pod,
            "argv": list(command.argv),
            "env": command.environment,
            "cwd": command.directory,
            "mounts": [asdict(mount) for mount in command.mounts],
            "group": group.path,
        }
        try:
            with remote:
                process.pid = (await self._call(request, (remote.fileno(), stdout, stderr)))[0]["pid"]
        except BaseException:
            process.abandon()
            raise
        return process

    async def network_of(self, pod: str) -> int:
        """A descriptor of the network namespace of `pod` (a UID), in mode `namespaces`. Raises `SandboxError`."""
        _, (fd,) = await self._call({"op": "network", "pod": pod})
        return fd

    async def make_socket(
        self, kind: Literal["tcp", "tcp6", "udp"], address: str = "", port: int = 0, *, pod: str = ""
    ) -> socket.socket:
        """A non-blocking socket in the hub's network; bound, and for TCP listening, if `address` is given.

        With `pod` (a UID) it is in the network of that pod. In mode `addresses` all sockets are in the host's network.
        Raises `SandboxError`.
        """
        _, fds = await self._call({"op": "socket", "kind": kind, "address": address, "port": port, "pod": pod})
        sock = socket.socket(fileno=fds[0])
        sock.setblocking(False)
        return sock

    async def usage(self, containers: Iterable[ContainerProcess]) -> tuple[dict[RunningContainer, Usage], Usage]:
        """What running containers use, and what the whole machine does. Raises `OSError` where /proc is missing."""
        by_pid = {each.pid: each for each in containers}
        used, machine = await measure(self._process.pid, by_pid, nested=self.network == "namespaces")
        return {by_pid[pid]: found for pid, found in used.items()}, machine

    async def close(self) -> None:
        """Kills all containers and waits until the supervisor has exited."""
        self._link.close()
        await self._process.wait()

    async def _call(self, request: Message, fds: Sequence[int] = ()) -> tuple[Message, list[int]]:
        if self.lost.done():
            raise SandboxError("the container runtime has exited")
        id_ = next(self._ids)
        reply = self._replies[id_] = asyncio.get_running_loop().create_future()
        self._link.send({**request, "id": id_}, fds)
        try:
            return await self._await_reply(reply)
        finally:
            self._replies.pop(id_, None)

    async def _await_reply(self, reply: asyncio.Future[tuple[Message, list[int]]]) -> tuple[Message, list[int]]:
        message, fds = await reply
        if "error" in message:
            raise SandboxError(message["error"])
        return message, fds

    def _on_message(self, message: Message, fds: list[int]) -> None:
        reply = self._replies.get(message["reply"])
        if reply is not None and not reply.done():
            reply.set_result((message, fds))
        else:  # the caller was cancelled
            for fd in fds:
                os.close(fd)

    def _on_close(self) -> None:
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(SandboxError("the container runtime has exited"))
        if not self.lost.done():
            self.lost.set_result(None)


__all__ = [
    "CANNOT_START",
    "KILLED",
    "Command",
    "ContainerProcess",
    "ContainerRuntime",
    "Exit",
    "NetworkMode",
    "SandboxError",
]
