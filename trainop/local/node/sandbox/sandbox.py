"""The machine below the node, as the agent sees it: network modes, pods' sandboxes, containers' processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from trainop.local.node.sandbox.channel import Message
from trainop.local.node.sandbox.container_init import CANNOT_START
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.link import Link
from trainop.local.node.sandbox.supervisor import raise_file_limit

NetworkMode: TypeAlias = Literal["namespaces", "addresses"]

KILLED = 128 + signal.SIGKILL


class SandboxError(OSError):
    """The machine refused; the message says what."""


@dataclass(frozen=True, slots=True)
class Command:
    """What one container runs; `environment` is all of it, `directory` is absolute."""

    argv: Sequence[str]
    environment: dict[str, str]
    directory: str
    mounts: Sequence[Mount] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended; `refusal` says why the command could not even be started."""

    code: int
    refusal: str = ""


class ContainerProcess:
    """One run of a container. `ended` resolves when nothing of it is left; it may never have started."""

    def __init__(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self._exit = Exit(KILLED)  # unless it tells otherwise, its init was killed
        self._probes: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        self._link = Link(sock, self._hear, self._finish)

    def signal(self, number: int) -> None:
        """To the command alone, as a container runtime does."""
        self._link.send({"op": "signal", "number": number})

    def kill(self) -> None:
        """Everything in the container, at once."""
        self._link.send({"op": "kill"})

    def abandon(self) -> None:
        """As `kill`, for when nobody waits any more."""
        self._link.close()

    async def execute(self, argv: Sequence[str], stdin: int, stdout: int, stderr: int) -> int:
        """Runs `argv` beside the command and returns its exit code; cancelled, it is killed.

        The descriptors may be closed when this returns. Raises `SandboxError` if the container has ended.
        """
        if self.ended.done():
            raise SandboxError("the container has ended")
        number = next(self._numbers)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._probes[number] = answer
        self._link.send({"op": "exec", "id": number, "argv": list(argv)}, (stdin, stdout, stderr))
        try:
            return await answer
        except asyncio.CancelledError:
            self._link.send({"op": "kill-exec", "id": number})
            raise
        finally:
            self._probes.pop(number, None)

    def _hear(self, message: Message, _: list[int]) -> None:
        match message["event"]:
            case "started":
                self.started.set_result(True)
            case "refused":
                self._exit = Exit(message["code"], message["message"])
            case "exited":
                self._exit = Exit(message["code"])
            case "probed" if (answer := self._probes.get(message["id"])) is not None and not answer.done():
                answer.set_result(message["code"])

    def _finish(self) -> None:
        for answer in self._probes.values():
            if not answer.done():
                answer.set_exception(SandboxError("the container has ended"))
        if not self.started.done():
            self.started.set_result(False)
        if not self.ended.done():
            self.ended.set_result(self._exit)


@dataclass(slots=True)
class Machine:
    """The supervisor's client. `lost` resolves when the supervisor has ended, and every container with it."""

    network: NetworkMode
    why: str
    _process: asyncio.subprocess.Process
    _link: Link = field(init=False)
    lost: asyncio.Future[None] = field(init=False)
    _replies: dict[int, asyncio.Future[tuple[Message, list[int]]]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    async def start(cls, wanted: NetworkMode | None = None) -> Machine:
        """The machine in the `wanted` mode, else in the best it allows; `why` says why not in namespaces.

        Raises `SandboxError` if the wanted mode cannot be had.
        """
        raise_file_limit()
        why = "asked for" if wanted == "addresses" else ""
        if sys.platform != "linux" and not why:
            why = "only Linux has network namespaces"
        if not why:
            try:
                return await cls._launch("namespaces", "")
            except SandboxError as error:
                why = str(error)
        if wanted == "namespaces":
            raise SandboxError(f"no namespaces on this machine: {why}")
        return await cls._launch("addresses", why)

    @classmethod
    async def _launch(cls, mode: NetworkMode, why: str) -> Machine:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainop.local.node.sandbox.supervisor", mode, str(theirs.fileno())),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # it must find what we found
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the agent, which ends pods in good order
            )
        machine = cls(mode, why, process)
        loop = asyncio.get_running_loop()
        machine.lost = loop.create_future()
        hello = machine._replies[0] = loop.create_future()
        machine._link = Link(ours, machine._hear, machine._finish)
        try:
            await machine._expect(hello)
        except BaseException:
            await machine.close()
            raise
        return machine

    async def open_pod(self, pod: str, hostname: str, address: str) -> None:
        """Makes the namespaces that the containers of `pod` share; in mode `addresses` there is nothing to make."""
        await self._ask({"op": "open-pod", "pod": pod, "hostname": hostname, "address": address})

    async def close_pod(self, pod: str) -> None:
        await self._ask({"op": "close-pod", "pod": pod})

    async def start_container(self, pod: str, command: Command, stdout: int, stderr: int) -> ContainerProcess:
        """Returns when it is under way: `started` and `ended` tell the rest. The descriptors may then be closed."""
        ours, theirs = socket.socketpair()
        process = ContainerProcess(ours)
        request: Message = {
            "op": "start",
            "pod": pod,
            "argv": list(command.argv),
            "env": command.environment,
            "cwd": command.directory,
            "mounts": [asdict(mount) for mount in command.mounts],
        }
        try:
            with theirs:
                await self._ask(request, (theirs.fileno(), stdout, stderr))
        except BaseException:
            process.abandon()
            raise
        return process

    async def make_socket(self, kind: Literal["tcp", "udp"], address: str = "", port: int = 0) -> socket.socket:
        """A socket in the pods' network, bound (and listening) if `address` is given; the host's own otherwise."""
        _, fds = await self._ask({"op": "socket", "kind": kind, "address": address, "port": port})
        made = socket.socket(fileno=fds[0])
        made.setblocking(False)
        return made

    async def close(self) -> None:
        """Ends every container at once and waits until the supervisor is gone."""
        self._link.close()
        await self._process.wait()

    async def _ask(self, request: Message, fds: Sequence[int] = ()) -> tuple[Message, list[int]]:
        if self.lost.done():
            raise SandboxError("the supervisor of the pods' processes has ended")
        number = next(self._numbers)
        answer = self._replies[number] = asyncio.get_running_loop().create_future()
        self._link.send({**request, "id": number}, fds)
        try:
            return await self._expect(answer)
        finally:
            self._replies.pop(number, None)

    async def _expect(self, answer: asyncio.Future[tuple[Message, list[int]]]) -> tuple[Message, list[int]]:
        message, fds = await answer
        if "error" in message:
            raise SandboxError(message["error"])
        return message, fds

    def _hear(self, message: Message, fds: list[int]) -> None:
        answer = self._replies.get(message["reply"])
        if answer is not None and not answer.done():
            answer.set_result((message, fds))

    def _finish(self) -> None:
        for answer in self._replies.values():
            if not answer.done():
                answer.set_exception(SandboxError("the supervisor of the pods' processes has ended"))
        if not self.lost.done():
            self.lost.set_result(None)


__all__ = ["CANNOT_START", "KILLED", "Command", "ContainerProcess", "Exit", "Machine", "NetworkMode", "SandboxError"]
