"""The programs that listen, started as users start them, and what a well-behaved client of each of their ports does.

Which ports a program listens on is read from the kernel: a server that is not in the table fails a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from e2e.cluster.daemons import free_ports
from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer
from trainop.programs.schemes import crds
from trainop.runtime.client.client import Client
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS

ROOT = Path(__file__).parents[2]
LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""
DESCRIPTORS = 256
"""The limit of every program, so that the number of its connections is known."""
SMALL = DESCRIPTORS // 8
"""Connections of a server of the operator, at that limit."""
REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "object": {"metadata": {"name": "j"}, "spec": {}}},
    }
).encode()


class Server(NamedTuple):
    """One port, from outside."""

    name: str
    """As the log calls it."""
    tls: bool
    connections: int
    """Its limit."""
    request: bytes
    """Of a well-behaved client; `{token}` is replaced."""
    wanted: bytes
    """Part of the answer."""
    posts: str = "/"
    """A path that takes a body."""


def _get(path: str, *headers: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", "")
    return "\r\n".join(lines).encode()


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def _webhooks(path: str) -> Server:
    return Server("webhooks", True, SMALL, _post(f"{path}?timeout=10s", REVIEW), b'"uid":"u"', path)


PROBES = Server("health probes", False, SMALL, _get("/healthz"), b"200 OK")
METRICS = Server("metrics", False, SMALL, _get("/metrics"), b"# HELP")
SECURE = Server("metrics", True, SMALL, _get("/metrics"), b"401 Unauthorized")
DI_SERVER = Server(
    "di-server", False, SMALL, _get("/v1alpha1/replicas?namespace=x"), b'"success":true', "/v1alpha1/replicas"
)
API = Server(
    "API",
    True,
    DESCRIPTORS // 2,
    _get("/api/v1/namespaces", "Authorization: Bearer {token}"),
    b"NamespaceList",
    "/api/v1/namespaces",
)
PROGRESS_PATH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/j/status"
PROGRESS = Server("progress", True, DESCRIPTORS // 8, _post(PROGRESS_PATH, b"{}"), b'"code":403', PROGRESS_PATH)
PAGE = Server("page", False, SMALL, _get("/"), b"<title>trainop</title>", "/stacks")
PAGE_OF_MANY = PAGE._replace(request=_get("/healthz"), wanted=b"200 OK")
DIJOBS = _webhooks("/validate-diengine-opendilab-org-v1alpha1-dijob")
JOBS = _webhooks("/validate-kubeflow-org-v1-pytorchjob")


class Program(NamedTuple):
    """One command and its servers."""

    command: str
    servers: Sequence[Server]
    flags: Sequence[str] = ()
    module: Sequence[str] = ()
    """Run instead of `trainop` and the command."""


_PORTS = ("--metrics-bind-address=127.0.0.1:{}", "--health-probe-bind-address=127.0.0.1:{}")
_WEBHOOKS = "--webhook-server-port={}"
PROGRAMS = {
    "operator": Program("operator", (PROBES, METRICS, JOBS), (*_PORTS, _WEBHOOKS, "--di-webhooks")),
    "operator with progress": Program(
        "operator",
        (PROBES, METRICS, JOBS, PROGRESS),
        (*_PORTS, _WEBHOOKS, "--progress-bind-address=127.0.0.1:{}"),
    ),
    "secure metrics": Program("operator", (PROBES, SECURE), (*_PORTS, "--metrics-secure", "--webhook-server-port=0")),
    "mpi-operator": Program(
        "mpi-operator",
        (PROBES, METRICS),
        (*_PORTS, "--webhook-server-port=0", "--lock-namespace=default"),
        ("tests.server.mpi_program",),  # its own flags leave no choice of the health port
    ),
    "di-operator": Program("di-operator", (PROBES, METRICS), _PORTS),
    "di-webhook": Program(
        "di-webhook", (PROBES, METRICS, DIJOBS), (*_PORTS, _WEBHOOKS, "--webhook-cert-dir=/nonexistent")
    ),
    "di-server": Program("di-server", (DI_SERVER,), ("--server-bind-address=127.0.0.1:{}",)),
    "ui": Program("ui", (PAGE,), ("--port={}",)),
    "ui behind a proxy": Program("ui", (PAGE_OF_MANY,), ("--behind-proxy", "--listen=127.0.0.1:{}")),
    "cluster": Program("cluster", (API, PROGRESS), ("--network=addresses", "--data={data}")),
}
ENDING = {
    "run": "has the servers of `cluster`, until its jobs have ended",
    "rerun": "is `run` with the arguments of before",
    **dict.fromkeys(
        (
            *("manifests", "plan", "check", "submit", "why", "describe", "ps", "top", "logs", "stacks"),
            *("attach", "stop", "clean", "completion", "version"),
        ),
        "listens on nothing",
    ),
}
"""Commands that are not started here -> why."""


class Running:
    """A program that runs, seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, token: str) -> None:
        self.process = process
        self.log = log
        self.token = token
        self.ports: dict[str, int] = {}

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def descriptors(self) -> int:
        return len(list(self._opened.iterdir()))

    @property
    def _opened(self) -> Path:
        return Path(f"/proc/{self.process.pid}/fd")

    def listening(self) -> set[int]:
        """The TCP ports on which the process listens."""
        return {port for port, state in self._sockets() if state == LISTENING}

    def connections(self, port: int) -> int:
        """The connections that a server of the process has open."""
        return sum(own == port and state != LISTENING for own, state in self._sockets())

    def _sockets(self) -> list[tuple[int, str]]:
        """Local port and state of each TCP socket of the process."""
        own = set()
        for link in self._opened.iterdir():
            with contextlib.suppress(OSError):
                own.add(str(link.readlink()))
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if f"socket:[{fields[9]}]" in own:
                    found.append((int(fields[1].rpartition(":")[2], 16), fields[3]))
        return found

    def reset_peak(self) -> int:
        """Forgets the peak of the resident memory; returns what is resident now, in bytes."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self._memory("VmRSS")

    def peak(self) -> int:
        """Bytes."""
        return self._memory("VmHWM")

    def _memory(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def named(self) -> dict[int, str]:
        """The servers of the log, by port."""
        found = re.findall(r"listening\s+port=(\d+)\s+server=('[^']+'|\S+)", self.text)
        return {int(port): name.strip("'") for port, name in found}


async def ask(server: Server, port: int, token: str, within: float, address: str = "127.0.0.1") -> bytes:
    """The answer to a well-behaved client, on a connection of its own."""
    async with asyncio.timeout(within):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=untrusting() if server.tls else None, local_addr=(address, 0)
        )
        try:
            writer.write(server.request.replace(b"{token}", token.encode()))
            return await reader.read()
        finally:
            writer.transport.abort()


def untrusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Backstage:
    """An API server for the programs, on a thread of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._ready, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="API server")

    async def _serve(self) -> None:
        api = ApiServer()
        await api.serve(token="secret")
        client = Client(api.transport())
        for crd in crds():
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        self._kubeconfig.write_text(json.dumps(api.kubeconfig("secret")))
        self._ready.set()
        await asyncio.to_thread(self._done.wait)
        await api.close()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@contextlib.contextmanager
def running(program: Program, kubeconfig: Path, folder: Path) -> Iterator[Running]:
    """The program, once all its servers answer."""
    flags = [flag.replace("{data}", str(folder / "data")) for flag in program.flags]
    flags = [flag.format(*free_ports(1)) if "{}" in flag else flag for flag in flags]
    own = program.command == "cluster"
    if not own and not program.module:
        flags.append(f"--kubeconfig={kubeconfig}")
    log = folder / "log"
    limits = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    environment = {
        **os.environ,
        "MY_POD_NAMESPACE": "default",
        "KUBECONFIG": str(kubeconfig),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    log.touch(mode=0o600)  # `trainop ui` prints a token
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*limits, sys.executable, "-m", *(program.module or ("trainop", program.command)), *flags],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=environment,
        )
    try:
        found = Running(process, folder / "data" / "trainop.log" if own else log, "")
        _wait(lambda: found.log.exists() and len(found.named()) >= len(program.servers), found, log)
        if own:  # its kubeconfig may come after its servers
            _wait(lambda: bool(_token(folder / "data" / "kubeconfig")), found, log)
            found.token = _token(folder / "data" / "kubeconfig")
        found.ports = {name: port for port, name in found.named().items()}
        for server in program.servers:
            _wait(partial(_answers, server, found), found, log)
        yield found
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _token(kubeconfig: Path) -> str:
    """The token in it; empty while the program has not written it."""
    found = re.search(r'"?token"?: "?([^"\s]+)', kubeconfig.read_text()) if kubeconfig.exists() else None
    return found[1] if found else ""


def _answers(server: Server, program: Running) -> bool:
    try:
        answer = asyncio.run(ask(server, program.ports[server.name], program.token, PATIENCE))
    except (OSError, KeyError):
        return False
    return server.wanted in answer


def _wait(condition: Callable[[], bool], program: Running, output: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        said = output.read_text(errors="replace") + (program.text if program.log.exists() else "")
        assert program.process.poll() is None, said
        assert time.monotonic() < end, said
        time.sleep(0.1)
