"""A container that runs, whatever runs it: how it ends, signals, and commands beside its own."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

KILLED = 128 + signal.SIGKILL


class SandboxError(OSError):
    """The operating system or the container runtime rejected an operation; the message says which."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended: exit code, and a `start_error` message if the command could not be started."""

    code: int
    start_error: str = ""
    out_of_memory: bool = False
    """Whether the kernel has killed one of its processes at its memory limit."""

    unexplained: bool = False
    """Whether `start_error` is what the container's log says."""

    @property
    def reason(self) -> str:
        """The reason of a command that was started, as container runtimes name it."""
        if not self.code:
            return "Completed"
        return "OOMKilled" if self.out_of_memory else "Error"


class Execution:
    """A command that runs in a container beside the container's own.

    `started` resolves once the command runs or could not be started; the descriptors given to it may then be closed.
    `exited` resolves with the exit code, which is that of SIGKILL if the container has ended.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self._kill = kill

    def kill(self) -> None:
        """Sends SIGKILL to the command and its descendants, unless it has exited."""
        if not self.exited.done():
            self._kill()

    def on_start(self) -> None:
        if not self.started.done():
            self.started.set_result(None)

    def on_exit(self, exit_status: Exit) -> None:
        self.on_start()
        if not self.exited.done():
            self.exited.set_result(exit_status)


class RunningContainer(ABC):
    """One run of a container.

    `started` resolves to whether the command was started. `ended` resolves when no process of the container is left.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self.pid = 0
        """The PID of the process whose descendants are the container's; that of an init, as its supervisor sees it."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends a signal to the container's main process only, as container runtimes do."""

    @abstractmethod
    def kill(self) -> None:
        """Sends SIGKILL to all processes in the container."""

    @abstractmethod
    def abandon(self) -> None:
        """Kills the container, if it has not ended, without anyone who waits for its end."""

    @abstractmethod
    def start(self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, *, tty: bool = False) -> Execution:
        """Starts `argv` in the container; with `tty`, the descriptors are a terminal, which it gets as its own.

        The descriptors must stay open until `Execution.started` has resolved. Raises `SandboxError` if the container
        has ended.
        """

    async def execute(self, argv: Sequence[str], stdin: int, stdout: int, stderr: int) -> int:
        """Runs `argv` in the container and returns its exit code; cancellation kills it.

        The caller may close the descriptors when this returns. Raises `SandboxError` if the container has ended.
        """
        execution = self.start(argv, stdin, stdout, stderr)
        try:
            return (await asyncio.shield(execution.exited)).code
        except asyncio.CancelledError:
            execution.kill()
            raise
