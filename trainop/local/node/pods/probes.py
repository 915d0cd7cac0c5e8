"""Startup, readiness and liveness probes of a running container: exec, TCP and HTTP.

Source: kubelet `pkg/kubelet/prober/worker.go`. A gRPC probe succeeds when its port accepts a connection.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any, Protocol

from trainop.local.node.pods.context import SHAPE_FAULTS, Kit
from trainop.local.node.pods.environment import Surroundings
from trainop.local.node.sandbox.sandbox import ContainerProcess
from trainop.runtime.objects.metadata import Json

_GRACE = 30


class ProbeError(Exception):
    """The probe failed; the message says how."""


class Probed(Protocol):
    """The container, as its probes see it."""

    spec: Json

    def change(self, **fields: object) -> None: ...
    async def stop(self, grace: float, why: str = "") -> None: ...


class PodOfProbed(Protocol):
    """Its pod."""

    pod: Json
    here: Surroundings


class Probes:
    """`run` ends after a failed startup or liveness probe has stopped the container; else it is cancelled."""

    def __init__(self, kit: Kit, side: PodOfProbed, container: Probed, process: ContainerProcess) -> None:
        self._kit = kit
        self._side = side
        self._container = container
        self._process = process

    async def run(self) -> None:
        spec = self._container.spec
        if probe := spec.get("startupProbe"):
            await self._begin(probe)
            if not await self._verdict(probe, "Startup"):
                await self._end(probe, "startup")
                return
            self._container.change(started=True, ready=not spec.get("readinessProbe"))
        async with asyncio.TaskGroup() as tasks:
            if probe := spec.get("readinessProbe"):
                tasks.create_task(self._watch_readiness(probe))
            if probe := spec.get("livenessProbe"):
                tasks.create_task(self._watch_life(probe))

    async def _watch_readiness(self, probe: Json) -> None:
        await self._begin(probe)
        while True:
            self._container.change(ready=await self._verdict(probe, "Readiness"))
            await self._pause(probe)

    async def _watch_life(self, probe: Json) -> None:
        await self._begin(probe)
        while await self._verdict(probe, "Liveness"):
            await self._pause(probe)
        await self._end(probe, "liveness")

    async def _begin(self, probe: Json) -> None:
        await self._kit.clock.sleep(float(probe.get("initialDelaySeconds") or 0))

    async def _pause(self, probe: Json) -> None:
        await self._kit.clock.sleep(float(probe.get("periodSeconds") or 10))

    async def _verdict(self, probe: Json, kind: str) -> bool:
        """True after so many successes in a row, False after so many failures in a row."""
        wanted = {True: int(probe.get("successThreshold") or 1), False: int(probe.get("failureThreshold") or 3)}
        latest, row = True, 0
        while True:
            passed = await self._passes(probe, kind)
            row = row + 1 if passed == latest else 1
            latest = passed
            if row >= wanted[passed]:
                return passed
            await self._pause(probe)

    async def _passes(self, probe: Json, kind: str) -> bool:
        limit = float(probe.get("timeoutSeconds") or 1)
        try:
            async with asyncio.timeout(limit):
                await self._try(probe)
        except TimeoutError:
            message = f"timed out after {limit:g}s"
        except (ProbeError, OSError, *SHAPE_FAULTS) as error:
            message = str(error)
        else:
            return True
        told = f"{kind} probe failed: {message}"
        self._kit.tell(self._side.pod, "Warning", "Unhealthy", told, self._container.spec)
        return False

    async def _end(self, probe: Json, kind: str) -> None:
        grace = probe.get("terminationGracePeriodSeconds")
        if grace is None:
            grace = self._side.pod["spec"].get("terminationGracePeriodSeconds", _GRACE)
        name = self._container.spec["name"]
        await self._container.stop(float(grace), f"Container {name} failed {kind} probe, will be restarted")

    async def _try(self, probe: Json) -> None:
        if action := probe.get("exec"):
            await self._execute(action.get("command") or [])
        elif action := probe.get("httpGet"):
            await self._get(action)
        else:
            action = probe.get("tcpSocket") or probe.get("grpc") or {}
            _, writer = await self._connect(action)
            writer.close()

    async def _execute(self, argv: list[str]) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            code = await self._process.execute(argv, null, null, null)
        finally:
            os.close(null)
        if code != 0:
            raise ProbeError(f"command exited with code {code}")

    async def _connect(self, action: Json, tls: ssl.SSLContext | None = None) -> tuple[Any, asyncio.StreamWriter]:
        address = action.get("host") or self._side.here.pod_ip
        sock = await self._kit.machine.make_socket("tcp")
        try:
            await asyncio.get_running_loop().sock_connect(sock, (address, self._port(action.get("port"))))
            return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname="" if tls else None)
        except BaseException:
            sock.close()
            raise

    async def _get(self, action: Json) -> None:
        tls = _trusting() if (action.get("scheme") or "HTTP") == "HTTPS" else None
        reader, writer = await self._connect(action, tls)
        try:
            headers = {"Host": self._side.here.pod_ip, "User-Agent": "kube-probe/1.34", "Connection": "close"}
            headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
            lines = [
                f"GET {action.get('path') or '/'} HTTP/1.1",
                *(f"{name}: {text}" for name, text in headers.items()),
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            answer = (await reader.readline()).split()
        finally:
            writer.close()
        code = int(answer[1]) if len(answer) > 1 and answer[1].isdigit() else 0
        if not 200 <= code < 400:
            raise ProbeError(f"HTTP probe failed with statuscode: {code}")

    def _port(self, port: int | str | None) -> int:
        for stated in self._container.spec.get("ports") or ():
            if stated.get("name") == port:
                return int(stated["containerPort"])
        try:
            return int(port or 0)
        except ValueError:
            raise ProbeError(f"unknown port {port!r}") from None


def _trusting() -> ssl.SSLContext:
    """As kubelet: a probe asks whether the pod answers, not who it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
