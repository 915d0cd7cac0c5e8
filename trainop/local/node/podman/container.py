"""One container of podman: its start, its end, signals, and commands beside its own.

`podman run --detach` ends once the container runs. From then on there is conmon, podman's monitor of the container,
which ends after it. The container's output goes directly to the descriptors that `podman run` was given.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import termios
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from trainop.local.node.podman.arguments import QUIET
from trainop.local.node.podman.program import Podman, end
from trainop.local.node.sandbox.container_init import CANNOT_START, NOT_EXECUTABLE, NOT_FOUND
from trainop.local.node.sandbox.running import KILLED, Execution, Exit, RunningContainer, SandboxError
from trainop.runtime import Json

_MARK = "TRAINOP_EXEC"
_SETTLE, _LOOKS = 0.2, 50  # seconds between two looks at a container whose monitor has ended, and their number

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""Runs something in the background until the node ends."""


@dataclass(frozen=True, slots=True)
class _State:
    """Of a container, as `podman inspect` shows it."""

    status: str
    pid: int
    monitor: int
    code: int
    out_of_memory: bool

    @property
    def has_ended(self) -> bool:
        return self.status in {"exited", "stopped", "dead", "removing"}


class PodmanContainer(RunningContainer):
    """A container that podman runs. `follow` is to be called once, with the start of it."""

    def __init__(self, podman: Podman, name: str, spawn: Spawn) -> None:
        super().__init__()
        self._podman = podman
        self._name = name
        self._spawn = spawn
        self._main = -1
        self._killed = False
        self._ending = False

    async def follow(self, starting: asyncio.subprocess.Process, on_start: Callable[[], None]) -> None:
        """Waits for the start, then for the end, and removes the container; if cancelled, at once. `on_start` is called
        once `starting` has ended."""
        status = Exit(KILLED)
        try:
            try:
                code = await starting.wait()
            finally:
                await end(starting)
                on_start()
            if code:
                reason = f"podman run ended with exit code {code}"
                known = code if code in {NOT_FOUND, NOT_EXECUTABLE} else CANNOT_START
                status = Exit(known, reason, unexplained=True)
            else:
                status = await self._run()
        except SandboxError as error:
            status = Exit(CANNOT_START, str(error))
        finally:
            if self._main >= 0:
                os.close(self._main)
                self._main = -1
            self._spawn(self._remove())
            if not self.started.done():
                self.started.set_result(False)
            if not self.ended.done():
                self.ended.set_result(status)

    async def _run(self) -> Exit:
        state = await self._inspect()
        monitor = _open(state.monitor)
        try:
            self._main = _open(state.pid)
            self.pid = state.monitor
            if not self.started.done():
                self.started.set_result(True)
            if self._killed:
                self.signal(signal.SIGKILL)
            await _wait_for(monitor)
        finally:
            if monitor >= 0:
                os.close(monitor)
        return await self._find_end()

    async def _find_end(self) -> Exit:
        for _ in range(_LOOKS):
            state = await self._inspect()
            if state.has_ended:
                return Exit(state.code, out_of_memory=state.out_of_memory)
            await asyncio.sleep(_SETTLE)
        return Exit(KILLED)  # somebody has killed the monitor: nobody learns how the container ends, which is removed

    async def _inspect(self) -> _State:
        """Raises `SandboxError`, also if somebody has removed the container."""
        done = await self._podman.call("container", "inspect", "--format", "{{json .State}}", "--", self._name)
        if done.code:
            raise SandboxError(f"the container is gone: {done.problem}")
        try:
            found = msgspec.json.decode(done.output, type=Json)
            status, code, killed = found["Status"], int(found["ExitCode"]), bool(found.get("OOMKilled"))
        except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
            raise SandboxError(f"podman inspect says nothing that is understood: {error!r}") from error
        return _State(status, int(found.get("Pid") or 0), int(found.get("ConmonPid") or 0), code, killed)

    def signal(self, number: int) -> None:
        if self._main < 0:
            return
        try:
            signal.pidfd_send_signal(self._main, number)
        except ProcessLookupError:
            return
        except PermissionError:  # a user of the image, in a container of an ordinary user
            self._spawn(self._call("kill", f"--signal={number}", "--", self._name))

    def kill(self) -> None:
        """Ends with its first process, all others of the container end, too."""
        self._killed = True
        self.signal(signal.SIGKILL)

    def abandon(self) -> None:
        self.kill()
        if not self.ended.done() and not self._ending:
            self._ending = True
            self._spawn(self._remove())

    async def _remove(self) -> None:
        await self._call("rm", "--force", "--time=0", "--volumes", "--ignore", "--", self._name)

    async def _call(self, *arguments: str) -> None:
        with suppress(SandboxError):  # what is left is removed when the node ends
            await self._podman.call(*arguments)

    def start(self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, *, tty: bool = False) -> Execution:
        if self.ended.done():
            raise SandboxError("the container has ended")
        mark = f"{_MARK}={secrets.token_hex(16)}"
        stop = asyncio.Event()
        execution = Execution(stop.set)
        options = ["--interactive", *(["--tty"] if tty else []), f"--env={mark}"]
        arguments = (*QUIET, "exec", *options, "--", self._name, *argv)
        self._spawn(self._execute(arguments, (stdin, stdout, stderr), execution, stop, tty=tty, mark=mark))
        return execution

    async def _execute(
        self,
        arguments: Sequence[str],
        fds: tuple[int, int, int],
        execution: Execution,
        stop: asyncio.Event,
        *,
        tty: bool,
        mark: str,
    ) -> None:
        """Runs one command until it ends, is stopped, or the container ends."""
        code = KILLED
        try:
            process = await self._podman.spawn(
                *arguments, stdin=fds[0], stdout=fds[1], stderr=fds[2], prepare=_take_terminal if tty else None
            )
            execution.on_start()
            waits: set[asyncio.Future[Any]] = {
                asyncio.ensure_future(process.wait()),
                asyncio.ensure_future(stop.wait()),
            }
            try:
                await asyncio.wait(waits | {self.ended}, return_when=asyncio.FIRST_COMPLETED)
                code = KILLED if process.returncode is None else process.returncode
            finally:
                for each in waits:
                    each.cancel()
                if process.returncode is None:
                    await end(process)
                    await asyncio.to_thread(_kill_marked, mark.encode())
        except SandboxError as error:
            execution.on_exit(Exit(CANNOT_START, str(error)))
        finally:
            execution.on_exit(Exit(code if code >= 0 else 128 - code))


def _take_terminal() -> None:
    """In podman's process, before it starts: only the owner of a terminal learns that its size has changed."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _open(pid: int) -> int:
    """A descriptor of a process; -1 if it has ended."""
    if not pid:
        return -1
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


async def _wait_for(process: int) -> None:
    """Waits until the process with this descriptor has ended."""
    if process < 0:
        return
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(process, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(process)


def _kill_marked(mark: bytes) -> None:
    """Kills the processes that began with this variable, as far as this user may: podman leaves them behind."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
