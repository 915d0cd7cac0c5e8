"""The init of one container: makes its surroundings, starts its command, passes signals on, ends all that is left.

Forked by the supervisor; never executes anything itself, so it keeps the rights it has in its user namespace. Talks
with the agent over one channel. To the agent:

    {"event": "started", "pid": int}                     the command runs
    {"event": "refused", "code": int, "message": str}    it could not be started; the last message
    {"event": "exited", "code": int}                     it ended (128+N for signal N) and nothing is left of it
    {"event": "probed", "id": int, "code": int}          an `exec` ended

From the agent: {"op": "signal", "number": int}, {"op": "kill"}, {"op": "exec", "id": int, "argv": [...]} with stdin,
stdout and stderr, {"op": "kill-exec", "id": int}. The end of the channel means `kill`.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trainop.local.node.sandbox import processes
from trainop.local.node.sandbox.channel import Channel, Message, wait_readable

NOT_FOUND = 127
NOT_EXECUTABLE = 126
CANNOT_START = 128


@dataclass(slots=True)
class ContainerInit:
    """As PID 1 of a PID namespace it may kill everyone it sees; else it looks for what descends from it."""

    channel: Channel
    argv: list[str]
    environment: dict[str, str]
    directory: str
    _main: int = 0
    _code: int | None = None
    _execs: dict[int, int] = field(default_factory=dict)

    def run(self, output: int, errors: int) -> None:
        """Returns when the command has ended and nobody is left."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        with suppress(ConnectionError, BrokenPipeError):
            if self._start(output, errors):
                self._serve(wake_read)
                self._kill_everyone()
                self.channel.send({"event": "exited", "code": self._code})
        self._kill_everyone()

    def _start(self, output: int, errors: int) -> bool:
        try:
            self._main = self._spawn(self.argv, subprocess.DEVNULL, output, errors)
        except (OSError, ValueError) as error:
            self.channel.send({"event": "refused", **explain(error, self.argv, self.directory)})
            return False
        finally:
            os.close(output)
            os.close(errors)
        self.channel.send({"event": "started", "pid": self._main})
        return True

    def _spawn(self, argv: Sequence[str], stdin: int, output: int, errors: int) -> int:
        process = subprocess.Popen(  # noqa: S603  # a container's command is the user's own
            argv,
            env=self.environment,
            cwd=self.directory,
            stdin=stdin,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        process.returncode = 0  # it is reaped here: nobody else may wait for it
        return process.pid

    def _serve(self, wake: int) -> None:
        """Until the command has ended, or the agent has."""
        while self._code is None:
            ready = wait_readable(self.channel.fileno(), wake)
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self.channel.fileno() in ready:
                messages = self.channel.receive()
                if messages is None:
                    raise BrokenPipeError
                for message, fds in messages:
                    self._obey(message, fds)

    def _reap(self) -> None:
        for pid, code in processes.reap():
            if pid == self._main:
                self._code = code
            elif pid in self._execs:
                self.channel.send({"event": "probed", "id": self._execs.pop(pid), "code": code})

    def _obey(self, message: Message, fds: list[int]) -> None:
        match message["op"]:
            case "signal":
                with suppress(ProcessLookupError):
                    os.kill(self._main, message["number"])
            case "kill":
                self._kill_everyone()
            case "exec":
                self._execute(message, fds)
            case "kill-exec":
                for pid in [pid for pid, number in self._execs.items() if number == message["id"]]:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)

    def _execute(self, message: Message, fds: list[int]) -> None:
        stdin, output, errors = fds
        try:
            pid = self._spawn(message["argv"], stdin, output, errors)
        except (OSError, ValueError) as error:
            why = explain(error, message["argv"], self.directory)
            self.channel.send({"event": "probed", "id": message["id"], **why})
        else:
            self._execs[pid] = message["id"]
        finally:
            for fd in fds:
                os.close(fd)

    def _kill_everyone(self) -> None:
        if os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self._collect()
        else:
            processes.kill_descendants(os.getpid())
            self._reap()

    def _collect(self) -> None:
        """Waits for all: killed processes are gone when they are reaped."""
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                return
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code


def explain(error: OSError | ValueError, argv: Sequence[str], directory: str) -> dict[str, Any]:
    """`code` and `message` for a command that could not be started, in the words of container runtimes."""
    command = argv[0]
    if isinstance(error, ValueError):  # a zero byte, or a name of a variable that is none
        return {"code": CANNOT_START, "message": f'exec: "{command}": {error}'}
    if error.filename == directory and error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
        why = "does not exist on this machine" if error.errno == errno.ENOENT else (error.strerror or "").lower()
        return {"code": CANNOT_START, "message": f"working directory {directory!r}: {why}"}
    if "/" not in command and error.errno in {errno.ENOENT, errno.EACCES}:
        # EACCES may come from a directory of the path that this user cannot read.
        return {"code": NOT_FOUND, "message": f'exec: "{command}": executable file not found in $PATH'}
    if error.errno == errno.ENOENT:
        return {"code": NOT_FOUND, "message": f'exec: "{command}": no such file or directory'}
    if error.errno in {errno.EACCES, errno.ENOEXEC}:
        return {"code": NOT_EXECUTABLE, "message": f'exec: "{command}": {(error.strerror or "").lower()}'}
    return {"code": CANNOT_START, "message": f'exec: "{command}": {error.strerror or error}'}


def refuse(channel: socket.socket, message: str) -> None:
    """Tells the agent that the surroundings of the command could not be made."""
    with suppress(ConnectionError, BrokenPipeError):
        Channel(channel).send({"event": "refused", "code": CANNOT_START, "message": message})
