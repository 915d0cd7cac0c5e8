"""The program podman: calls of it, and whether it can run containers on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from trainop.local.node.sandbox.running import SandboxError
from trainop.runtime import Json

OLDEST = (4, 3)
_NOT_FOUND = 127
_PROBE = "/trainop-is-there-podman"
_CALL_TIMEOUT = 120.0  # seconds for a call that does not pull


class Result(NamedTuple):
    """How a call of podman ended."""

    code: int
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """The last line of what it complained about, without podman's prefix."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return lines[-1].strip().removeprefix("Error: ") if lines else f"podman ended with exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Podman:
    """podman on this machine."""

    path: str
    version: str = ""

    @classmethod
    async def find(cls) -> Podman:
        """Raises `SandboxError` with what is wrong and what would be right."""
        path = shutil.which("podman")
        if path is None:
            raise SandboxError(
                "--runtime podman: podman is not installed (no such program in PATH); install it, or leave the option "
                "out, and containers run as processes of this machine"
            )
        found = await cls(path).call("info", "--format", "json")
        if found.code:
            raise SandboxError(f"--runtime podman: podman does not work here: {found.problem}; try: podman info")
        podman = cls(path, _read_version(found.output))
        await podman._check_run()
        return podman

    async def call(
        self, *arguments: str, environment: Mapping[str, str] | None = None, limit: float | None = _CALL_TIMEOUT
    ) -> Result:
        """Runs podman with more variables, at most `limit` seconds; cancellation ends it. Raises `SandboxError`."""
        process = await self.spawn(
            *arguments, environment=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(limit):
                output, errors = await process.communicate()
        except TimeoutError:
            raise SandboxError(f"podman {arguments[0]} has not ended within {limit:g} seconds") from None
        finally:
            await end(process)
        return Result(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))

    async def spawn(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        stdout: int,
        stderr: int,
        stdin: int = asyncio.subprocess.DEVNULL,
        prepare: Callable[[], None] | None = None,
    ) -> asyncio.subprocess.Process:
        """Starts podman out of reach of Ctrl-C; `prepare` runs in its process before. Raises `SandboxError`."""
        try:
            return await asyncio.create_subprocess_exec(
                self.path,
                *arguments,
                env={**os.environ, **(environment or {})},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SandboxError(f"podman could not be started: {error}") from error

    async def _check_run(self) -> None:
        """Runs a container without any file. If all is well, podman only misses its program."""
        with tempfile.TemporaryDirectory(prefix="trainop-podman-") as folder:
            options = ("--rm", "--network=host", "--log-driver=none", "--security-opt=label=disable")
            done = await self.call("run", *options, "--rootfs", folder, _PROBE)
        if done.code != _NOT_FOUND or _PROBE not in done.errors:
            raise SandboxError(
                f"--runtime podman: podman cannot run a container on this machine: {done.problem}; "
                "try: podman run --rm --network host IMAGE true"
            )


async def end(process: asyncio.subprocess.Process) -> None:
    """Kills a call of podman unless it has exited, and waits for it. An ordinary user's podman has a child that does
    the work."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _read_version(text: str) -> str:
    """Raises `SandboxError` if it is too old, or not the podman of this machine."""
    try:
        info = msgspec.json.decode(text, type=Json)
        version, remote = str(info["version"]["Version"]), bool(info["host"].get("serviceIsRemote"))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as error:
        raise SandboxError(f"--runtime podman: podman info says nothing that is understood: {error!r}") from error
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise SandboxError(f"--runtime podman: podman {version} is too old: install podman {needed} or newer")
    if remote:
        raise SandboxError("--runtime podman: podman runs on another machine, which has none of the files of this one")
    return version


def is_rootless() -> bool:
    return os.geteuid() != 0


def this_process() -> str:
    """A text that no other process of this machine has, also after a reboot."""
    return f"{_boot()}.{os.getpid()}.{_started(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether the process with this text still runs."""
    boot, _, rest = owner.partition(".")
    pid, _, started = rest.partition(".")
    return boot == _boot() and pid.isdecimal() and started == _started(int(pid)) != ""


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _started(pid: int) -> str:
    """In ticks since the boot; empty if there is no such process (proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, LookupError):
        return ""
