"""The pod subresources that connect a client to a pod: exec, attach and portforward.

A request is checked here as by kube-apiserver; what speaks the protocols on the connection is `serving/channels.py` and
`serving/port_forward.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from trainop.local.api.registry.backend import Backend
from trainop.local.api.request.lists import parse_bool
from trainop.local.api.request.pod_subresources import PodSubresources, select_container
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.status_errors import StatusError, bad_request, internal_error, method_not_allowed
from trainop.runtime import ApiError, Json

SESSIONS = frozenset({"exec", "attach", "portforward"})

Arguments: TypeAlias = Sequence[tuple[str, str]]
"""The query of a request, in which a name such as `command` can occur more than once."""


Connect: TypeAlias = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a TCP port of a pod. Raises `OSError`."""


class Exit(Protocol):
    """How a command has ended; `start_error` is empty unless it could not be started."""

    @property
    def code(self) -> int: ...
    @property
    def start_error(self) -> str: ...


class Session(Protocol):
    """A process in a container and its streams, within an `async with` block. Entering raises `OSError`."""

    @property
    def outputs(self) -> Sequence[str]:
        """Of `stdout` and `stderr`, those that can be read."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def read(self, stream: str) -> bytes:
        """The next bytes of an output; empty at its end."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes to stdin, if there is one."""
        ...

    def end_input(self) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...
    async def wait(self) -> Exit: ...


class ExecSource(Protocol):
    """The source of `pods/exec`, which is the node that runs the pods; a call may raise `ApiError`."""

    def __call__(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
        tty: bool = False,
    ) -> Session: ...


class PortSource(Protocol):
    """The source of `pods/portforward`, which is the node that runs the pods; a call may raise `ApiError`."""

    def __call__(self, namespace: str, pod: str) -> Connect: ...


@dataclass(frozen=True, slots=True)
class PodPorts:
    """The TCP ports of one pod, for a client that forwards connections to them."""

    pod: str
    uid: str
    connect: Connect


@dataclass(frozen=True, slots=True)
class _Completed:
    """The end of a session that reports no exit code."""

    code: int = 0
    start_error: str = ""


class AttachedLog:
    """A session that follows a container's log. Containers have no stdin, and one log for stdout and stderr."""

    outputs: Sequence[str] = ("stdout",)

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        async with aclosing(self._source):  # type: ignore[type-var]  # log sources are generators
            pass

    async def read(self, stream: str) -> bytes:
        return await anext(self._source, b"")

    async def write(self, data: bytes) -> None:
        """Without effect."""

    def end_input(self) -> None:
        """Without effect."""

    def resize(self, columns: int, rows: int) -> None:
        """Without effect."""

    async def wait(self) -> Exit:
        return _Completed()


class PodStreams:
    """Opens sessions. The sources may be set later, because the node needs the server first."""

    def __init__(self, backend: Backend, logs: PodSubresources) -> None:
        self._backend = backend
        self._logs = logs
        self.exec_source: ExecSource | None = None
        self.port_source: PortSource | None = None

    def connect(self, info: RequestInfo, method: str, arguments: Arguments) -> Session | PodPorts:
        """The session, or the ports, that a request asks for. Raises `StatusError`."""
        stored = self._backend.store.get(info.kind.table, info.key)
        if method not in {"GET", "POST"}:
            raise method_not_allowed()
        if stored is None:
            raise info.not_found()
        pod, query = stored.value, dict(arguments)
        forwards = info.subresource == "portforward"
        container = "" if forwards else select_container(pod, query.get("container", ""), info.name)
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {info.name} does not have a host assigned")
        try:
            if forwards:
                return self._forward(info, pod["metadata"]["uid"])
            return (self._attach if info.subresource == "attach" else self._execute)(info, container, arguments)
        except ApiError as error:
            raise StatusError(error.code, error.reason, error.message, error.status.get("details")) from error

    def _forward(self, info: RequestInfo, uid: str) -> PodPorts:
        if self.port_source is None:
            raise _no_node()
        return PodPorts(info.name, uid, self.port_source(info.namespace or "", info.name))

    def _attach(self, info: RequestInfo, container: str, arguments: Arguments) -> Session:
        source = self._logs.log_source
        if source is None:
            raise _no_node()
        return AttachedLog(source(info.namespace or "", info.name, container, follow=True, tail_lines=0))

    def _execute(self, info: RequestInfo, container: str, arguments: Arguments) -> Session:
        if self.exec_source is None:
            raise _no_node()
        query: Json = dict(arguments)
        command = [value for name, value in arguments if name == "command"]
        if not command:
            raise bad_request("you must specify at least one command for the container")
        wanted = {name: parse_bool(query.get(name)) for name in ("stdin", "stdout", "stderr", "tty")}
        if not any(wanted[name] for name in ("stdin", "stdout", "stderr")):
            raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
        return self.exec_source(info.namespace or "", info.name, container, command, **wanted)


def _no_node() -> StatusError:
    return internal_error("this server has no node that runs pods")
