"""Exec credential plugins: programs named in the kubeconfig (`users[].user.exec`) that print an `ExecCredential`
(API group client.authentication.k8s.io)."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trainop.runtime.client.cluster import AuthHeaders
from trainop.runtime.client.credentials import SharedCredentials
from trainop.runtime.client.transport import NotConnectedError
from trainop.runtime.clock import Clock, parse_timestamp
from trainop.runtime.errors import UNREADABLE
from trainop.runtime.objects.metadata import Json

TIMEOUT = 60.0
"""Seconds after which a plugin is killed."""

EXPIRY_MARGIN = 10.0
"""Seconds before its expiry at which a credential is renewed."""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """The `exec` entry of a kubeconfig user. `command` is a path if it contains a slash, else looked up in `$PATH`.
    `cluster` is the cluster information for the plugin, None unless `provideClusterInfo` is set."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    api_version: str = "client.authentication.k8s.io/v1"
    interactive_mode: str = "IfAvailable"
    install_hint: str = ""
    cluster: Json | None = None

    @classmethod
    def parse(cls, spec: Json, folder: Path, cluster: Json) -> ExecPlugin:
        """Parses `exec` of a kubeconfig in `folder`, against which a relative command is resolved. Raises `KeyError`,
        `TypeError` or `AttributeError` for invalid entries."""
        command = str(spec["command"])
        if "/" in command and not command.startswith("/"):
            command = str(folder / command)
        return cls(
            command,
            tuple(str(arg) for arg in spec.get("args") or ()),
            {str(entry["name"]): str(entry["value"]) for entry in spec.get("env") or ()},
            str(spec.get("apiVersion") or "client.authentication.k8s.io/v1"),
            str(spec.get("interactiveMode") or "IfAvailable"),
            str(spec.get("installHint") or ""),
            cluster if spec.get("provideClusterInfo") else None,
        )


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _Status


_decode = msgspec.json.Decoder(_ExecCredential).decode


class ExecCredentials(SharedCredentials):
    """Runs the plugin when a credential is needed, one run at a time, and caches it until shortly before it expires."""

    def __init__(self, plugin: ExecPlugin, clock: Clock) -> None:
        super().__init__(clock)
        self._plugin = plugin

    async def fetch(self) -> tuple[AuthHeaders, float]:
        try:
            status = _decode(await self._run()).status
            lifetime = self._lifetime(status)
        except UNREADABLE as error:
            raise NotConnectedError(f"exec plugin {self._plugin.command}: not an ExecCredential: {error}") from error
        if not (status.token or status.client_certificate_data):
            raise NotConnectedError(f"exec plugin {self._plugin.command}: neither token nor certificate in its answer")
        if not (status.token.isascii() and status.token.isprintable()):
            raise NotConnectedError(f"exec plugin {self._plugin.command}: its token is not printable ASCII")
        headers = {"authorization": f"Bearer {status.token}"} if status.token else {}
        certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
        return AuthHeaders(headers, certificate or None, key or None), lifetime

    def _lifetime(self, status: _Status) -> float:
        """Seconds until renewal, as a duration so that later jumps of the wall clock have no effect."""
        if status.expiration_timestamp is None:
            return float("inf")
        return (parse_timestamp(status.expiration_timestamp) - self._clock.now()).total_seconds() - EXPIRY_MARGIN

    async def _run(self) -> bytes:
        plugin = self._plugin
        interactive = plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive_mode == "Always" and not interactive:
            raise NotConnectedError(f"exec plugin {plugin.command}: needs a terminal (interactiveMode Always)")
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": self._info(interactive)},
            )
        except (OSError, ValueError) as error:  # ValueError: NUL byte in an argument
            hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
            problem = error.strerror if isinstance(error, OSError) else error
            raise NotConnectedError(f"exec plugin {plugin.command}: {problem}{hint}") from error
        return await self._answer(process)

    async def _answer(self, process: asyncio.subprocess.Process) -> bytes:
        try:
            async with asyncio.timeout(TIMEOUT):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise NotConnectedError(f"exec plugin {self._plugin.command}: no answer in {TIMEOUT:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = err.decode(errors="replace").strip()[-500:]
            raise NotConnectedError(f"exec plugin {self._plugin.command}: exit code {process.returncode}: {said}")
        return out

    def _info(self, interactive: bool) -> str:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._plugin.cluster is not None:
            spec["cluster"] = self._plugin.cluster
        info = {"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec}
        return msgspec.json.encode(info).decode()
