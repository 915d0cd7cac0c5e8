"""A command that a client runs in a container (`kubectl exec`), with pipes or a terminal for its streams.

No data is buffered here: a client that does not read blocks the command in write(2), as a full pipe does, and a command
that does not read delays `write`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from trainop.local.node.sandbox.running import Execution, Exit, RunningContainer

_CHUNK = 32 * 1024
_DRAIN_TIMEOUT = 2.0  # seconds to wait for end-of-file on the output after the command has exited


class _End:
    """The node's end of a pipe or terminal. Reads and writes wait without blocking the event loop."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def read(self) -> bytes:
        """The next bytes; empty at end-of-file. A terminal reports EIO once no process has it open."""
        while True:
            try:
                return os.read(self.fd, _CHUNK)
            except BlockingIOError:
                await self._wait(self._loop.add_reader, self._loop.remove_reader)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return b""

    async def write(self, data: bytes) -> None:
        """Writes everything. Raises `OSError` if no process has the other end open."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                await self._wait(self._loop.add_writer, self._loop.remove_writer)

    async def _wait(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        ready = self._loop.create_future()
        add(self.fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            if not self._closed:
                remove(self.fd)

    def close(self) -> None:
        """Also ends the waits, because the number of a closed descriptor can be in use again when they notice."""
        self._closed = True
        self._loop.remove_reader(self.fd)
        self._loop.remove_writer(self.fd)
        os.close(self.fd)


class ExecSession:
    """One command and its streams, which `async with` starts; at the end of the block it is killed unless it has ended.

    With `tty`, stdout is the output of the terminal and there is no stderr. A command that could not be started is one
    that has exited with a message.
    """

    def __init__(
        self, process: RunningContainer, argv: Sequence[str], *, stdin: bool, stdout: bool, stderr: bool, tty: bool
    ) -> None:
        self._process = process
        self._argv = argv
        self._wanted = (stdin, stdout or tty, stderr and not tty)
        self._tty = tty
        self._stdin: _End | None = None
        self._outputs: dict[str, _End] = {}
        self._ends: list[_End] = []
        self._foreign: list[int] = []
        self._execution: Execution | None = None

    @property
    def outputs(self) -> Sequence[str]:
        """The streams that can be read: `stdout`, `stderr`."""
        return list(self._outputs)

    async def __aenter__(self) -> Self:
        """Raises `OSError` if the container has ended or no descriptors are left."""
        try:
            fds = self._open_terminal() if self._tty else self._open_pipes()
            self._execution = self._process.start(self._argv, *fds, tty=self._tty)
            await self._execution.started
        except BaseException:
            self._close()
            raise
        self._close_foreign()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._close()

    async def read(self, stream: str) -> bytes:
        """The next bytes of a stream; empty at its end, which is at the latest shortly after the command has exited."""
        data = asyncio.ensure_future(self._outputs[stream].read())
        try:
            either: set[asyncio.Future[Any]] = {data, self._exited}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({data}, timeout=_DRAIN_TIMEOUT)
            return data.result() if data.done() else b""
        finally:
            data.cancel()

    async def write(self, data: bytes) -> None:
        """Writes to stdin; without effect if the session has none or no process reads it any more."""
        if self._stdin is not None:
            with suppress(OSError):
                await self._stdin.write(data)

    def end_input(self) -> None:
        """End-of-file on stdin; a terminal has none."""
        if self._stdin is not None and not self._tty:
            self._ends.remove(self._stdin)
            self._stdin.close()
            self._stdin = None

    def resize(self, columns: int, rows: int) -> None:
        """Sets the size of the terminal, if the session has one."""
        if self._tty:
            fcntl.ioctl(self._ends[0].fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> Exit:
        """How the command has ended, once it has."""
        return await asyncio.shield(self._exited)

    @property
    def _exited(self) -> asyncio.Future[Exit]:
        if self._execution is None:
            raise RuntimeError("the session is not open")
        return self._execution.exited

    def _open_terminal(self) -> tuple[int, int, int]:
        own, foreign = os.openpty()
        self._foreign.append(foreign)
        end = _End(own)
        self._ends.append(end)
        self._stdin = end if self._wanted[0] else None
        self._outputs["stdout"] = end
        return foreign, foreign, foreign

    def _open_pipes(self) -> tuple[int, int, int]:
        """The command's ends of a pipe for each wanted stream; the others are `/dev/null`."""
        fds: list[int] = []
        for name, wanted in zip(("stdin", "stdout", "stderr"), self._wanted, strict=True):
            if not wanted:
                fds.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
                self._foreign.append(fds[-1])
                continue
            reader, writer = os.pipe()
            own, foreign = (writer, reader) if name == "stdin" else (reader, writer)
            self._foreign.append(foreign)
            fds.append(foreign)
            self._ends.append(end := _End(own))
            if name == "stdin":
                self._stdin = end
            else:
                self._outputs[name] = end
        return fds[0], fds[1], fds[2]

    def _close_foreign(self) -> None:
        for fd in self._foreign:
            os.close(fd)
        self._foreign.clear()

    def _close(self) -> None:
        if self._execution is not None:
            self._execution.kill()
        self._close_foreign()
        for end in self._ends:
            end.close()
        self._ends.clear()
        self._outputs.clear()
        self._stdin = None
