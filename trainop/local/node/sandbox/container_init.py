"""The init process of one container: starts the command, forwards signals, reaps children, kills what remains.

It is forked by the supervisor and never calls exec(2) itself, so it keeps its capabilities in the user namespace. It
communicates with the agent over one channel. Messages to the agent:

    {"event": "started", "pid": int}                          the command is running
    {"event": "start-failed", "code": int, "message": str}    the command could not be started; last message
    {"event": "exited", "code": int}                          the command has exited (128+N for signal N) and all
                                                              processes of the container are gone; last message
    {"event": "exec-started", "id": int}                      a command is running beside the container's own
    {"event": "exec-exited", "id": int, "code": int}          it has exited; with `message` if it could not be started

Messages from the agent: {"op": "signal", "number": int}, {"op": "kill"}, {"op": "kill-exec", "id": int}, and
{"op": "exec", "id": int, "argv": [...], "tty": bool} with descriptors for stdin, stdout and stderr, which with `tty`
are a terminal. End-of-file acts as `kill`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainop.local.node.sandbox import isolation, memory, processes
from trainop.local.node.sandbox.channel import Channel, Message, wait_readable

NOT_FOUND = 127
NOT_EXECUTABLE = 126
CANNOT_START = 128


@dataclass(slots=True)
class ContainerInit:
    """Runs one container. As PID 1 of a PID namespace it kills all visible processes, else only its descendants."""

    channel: Channel
    argv: list[str]
    environment: dict[str, str]
    directory: str
    hidden: dict[str, str] = field(default_factory=dict)
    """The working directory or the command if a volume hides it, with the mount point."""
    group: str = ""
    """The control group of its commands, if they have one; the init itself stays outside."""
    isolated: bool = False
    """Whether its commands are confined, in namespaces that the first of them makes."""
    _main: int = 0
    _code: int | None = None
    _execs: dict[int, int] = field(default_factory=dict)

    def run(self, output: int, errors: int) -> None:
        """Returns when the command has exited and no process of the container is left."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        with suppress(ConnectionError, BrokenPipeError):
            if self._start(output, errors):
                self._serve(wake_read)
                self._kill_all()
                self.channel.send({"event": "exited", "code": self._code})
        self._kill_all()

    def _start(self, output: int, errors: int) -> bool:
        try:
            self._main = self._spawn(self.argv, subprocess.DEVNULL, output, errors)
        except (OSError, ValueError) as error:
            details = describe_start_error(error, self.argv, self.directory, self.hidden)
            self.channel.send({"event": "start-failed", **details})
            return False
        finally:
            os.close(output)
            os.close(errors)
        self.channel.send({"event": "started", "pid": self._main})
        return True

    def _spawn(self, argv: Sequence[str], stdin: int, output: int, errors: int, *, tty: bool = False) -> int:
        enter = partial(_enter, self.group, tty, self._confine if self.isolated else None)
        try:
            process = subprocess.Popen(  # noqa: S603  # a container's command is the user's own
                argv,
                env={"TERM": "xterm", **self.environment} if tty else self.environment,
                cwd=self.directory,
                stdin=stdin,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                preexec_fn=enter if tty or self.group or self.isolated else None,  # noqa: PLW1509  # no threads here
            )
        except subprocess.SubprocessError as error:
            raise OSError("the command could not be put into its control group, terminal or namespaces") from error
        process.returncode = 0  # reaped by `_reap`: Popen must not call wait(2) for it
        return process.pid

    def _confine(self) -> None:
        if self._main:
            isolation.join(self._main, self.directory)
        else:
            isolation.confine(self.directory)

    def _serve(self, wake: int) -> None:
        """Serves requests until the command has exited. Raises `BrokenPipeError` if the agent is gone."""
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
                    self._on_request(message, fds)
                self._kill_execs({message["id"] for message, _ in messages if message["op"] == "kill-exec"})

    def _reap(self) -> None:
        for pid, code in processes.reap():
            if pid == self._main:
                self._code = code
            elif pid in self._execs:
                self.channel.send({"event": "exec-exited", "id": self._execs.pop(pid), "code": code})

    def _on_request(self, message: Message, fds: list[int]) -> None:
        match message["op"]:
            case "signal":
                with suppress(ProcessLookupError):
                    os.kill(self._main, message["number"])
            case "kill":
                self._kill_all()
            case "exec":
                self._execute(message, fds)

    def _kill_execs(self, ids: set[int]) -> None:
        """Kills commands with their descendants; many at once, because each look at all processes takes a while."""
        pids = [pid for pid, number in self._execs.items() if number in ids]
        if pids:
            processes.kill_tree(pids)
        for pid in pids:
            with suppress(ProcessLookupError):  # of its group, those whose parent had exited
                os.killpg(pid, signal.SIGKILL)

    def _execute(self, message: Message, fds: list[int]) -> None:
        stdin, output, errors = fds
        try:
            pid = self._spawn(message["argv"], stdin, output, errors, tty=message["tty"])
        except (OSError, ValueError) as error:
            details = describe_start_error(error, message["argv"], self.directory, self.hidden)
            self.channel.send({"event": "exec-exited", "id": message["id"], **details})
        else:
            self._execs[pid] = message["id"]
            self.channel.send({"event": "exec-started", "id": message["id"]})
        finally:
            for fd in fds:
                os.close(fd)

    def _kill_all(self) -> None:
        if os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self._reap_all()
        else:
            processes.kill_descendants(os.getpid())
            self._reap()

    def _reap_all(self) -> None:
        """Waits for all children: a killed process is certainly gone only once it is reaped."""
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                return
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code


def _enter(group: str, tty: bool, confine: Callable[[], None] | None) -> None:
    """In the child, before its command: joins the control group, with `tty` makes stdin the controlling terminal of its
    session, which it leads, and gives up its rights."""
    if group:
        memory.join(group)
    if tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if confine is not None:
        confine()


def locate_needed(argv: Sequence[str], environment: Mapping[str, str], directory: str) -> dict[str, str]:
    """Where the working directory and the command are found now, by the name by which the container asks for them."""
    command = argv[0]
    located = shutil.which(command, path=environment.get("PATH", os.defpath)) if "/" not in command else command
    return {directory: directory, command: str(Path(directory, located or command))}


def describe_start_error(
    error: OSError | ValueError, argv: Sequence[str], directory: str, hidden: Mapping[str, str]
) -> dict[str, Any]:
    """Exit `code` and `message` for a command that could not be started, worded as by runc and Docker.

    `hidden`: what a volume hides, with the path at which it is mounted.
    """
    command = argv[0]
    if isinstance(error, ValueError):  # a NUL byte, or an invalid variable name
        return {"code": CANNOT_START, "message": f'exec: "{command}": {error}'}
    covered = hidden.get(error.filename)
    missing = f"hidden by the volume mounted at {covered}" if covered else ""
    if error.filename == directory and error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
        absent = missing or "does not exist on this machine"
        details = absent if error.errno == errno.ENOENT else (error.strerror or "").lower()
        return {"code": CANNOT_START, "message": f"working directory {directory!r}: {details}"}
    if "/" not in command and error.errno in {errno.ENOENT, errno.EACCES}:
        # EACCES may be caused by a directory in PATH that this user cannot read.
        return {"code": NOT_FOUND, "message": f'exec: "{command}": {missing or "executable file not found in $PATH"}'}
    if error.errno == errno.ENOENT:
        return {"code": NOT_FOUND, "message": f'exec: "{command}": {missing or "no such file or directory"}'}
    if error.errno in {errno.EACCES, errno.ENOEXEC}:
        return {"code": NOT_EXECUTABLE, "message": f'exec: "{command}": {(error.strerror or "").lower()}'}
    return {"code": CANNOT_START, "message": f'exec: "{command}": {error.strerror or error}'}


def report_start_failure(channel: socket.socket, message: str) -> None:
    """Reports to the agent that the container's namespaces or mounts could not be set up."""
    with suppress(ConnectionError, BrokenPipeError):
        Channel(channel).send({"event": "start-failed", "code": CANNOT_START, "message": message})
