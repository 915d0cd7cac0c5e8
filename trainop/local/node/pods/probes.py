"""The probe manager: startup, readiness and liveness probes of one running container, by exec, TCP or HTTP.

Source: kubelet `pkg/kubelet/prober/worker.go`. Difference: a gRPC probe only tests whether the port accepts a
connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from typing import Any, Protocol

from trainop.local import KUBERNETES
from trainop.local.node.pods.context import MALFORMED_OBJECT_ERRORS, NodeContext
from trainop.local.node.pods.environment import Placement
from trainop.local.node.sandbox.running import RunningContainer
from trainop.runtime import Json

_GRACE = 30


class ProbeError(Exception):
    """A probe attempt failed; the message becomes part of the Unhealthy event."""


class ProbedContainer(Protocol):
    """The probed container, as far as probes use it."""

    spec: Json

    def update_state(self, **fields: object) -> None: ...
    async def stop(self, grace: float, reason: str = "") -> None: ...


class ProbedPod(Protocol):
    """The pod of the probed container, as far as probes use it."""

    obj: Json
    placement: Placement


class ProbeManager:
    """Probes one run of a container.

    `run` returns after a failed startup or liveness probe has stopped the container; otherwise it runs until cancelled.
    """

    def __init__(
        self, context: NodeContext, pod: ProbedPod, container: ProbedContainer, process: RunningContainer
    ) -> None:
        self._context = context
        self._pod = pod
        self._container = container
        self._process = process

    async def run(self) -> None:
        """Runs the startup probe first, then readiness and liveness probes concurrently."""
        spec = self._container.spec
        if probe := spec.get("startupProbe"):
            await self._initial_delay(probe)
            if not await self._wait_for_result(probe, "Startup"):
                await self._stop_container(probe, "startup")
                return
            self._container.update_state(started=True, ready=not spec.get("readinessProbe"))
        async with asyncio.TaskGroup() as tasks:
            if probe := spec.get("readinessProbe"):
                tasks.create_task(self._watch_readiness(probe))
            if probe := spec.get("livenessProbe"):
                tasks.create_task(self._watch_liveness(probe))

    async def _watch_readiness(self, probe: Json) -> None:
        await self._initial_delay(probe)
        while True:
            self._container.update_state(ready=await self._wait_for_result(probe, "Readiness"))
            await self._wait_period(probe)

    async def _watch_liveness(self, probe: Json) -> None:
        await self._initial_delay(probe)
        while await self._wait_for_result(probe, "Liveness"):
            await self._wait_period(probe)
        await self._stop_container(probe, "liveness")

    async def _initial_delay(self, probe: Json) -> None:
        await self._context.clock.sleep(float(probe.get("initialDelaySeconds") or 0))

    async def _wait_period(self, probe: Json) -> None:
        await self._context.clock.sleep(float(probe.get("periodSeconds") or 10))

    async def _wait_for_result(self, probe: Json, kind: str) -> bool:
        """Probes until `successThreshold` consecutive successes (True) or `failureThreshold` failures (False)."""
        thresholds = {True: int(probe.get("successThreshold") or 1), False: int(probe.get("failureThreshold") or 3)}
        latest, streak = True, 0
        while True:
            passed = await self._run_probe(probe, kind)
            streak = streak + 1 if passed == latest else 1
            latest = passed
            if streak >= thresholds[passed]:
                return passed
            await self._wait_period(probe)

    async def _run_probe(self, probe: Json, kind: str) -> bool:
        """One attempt with `timeoutSeconds`; a failure is recorded as the event Unhealthy."""
        timeout = float(probe.get("timeoutSeconds") or 1)
        try:
            async with asyncio.timeout(timeout):
                await self._attempt(probe)
        except TimeoutError:
            message = f"timed out after {timeout:g}s"
        except (ProbeError, OSError, *MALFORMED_OBJECT_ERRORS) as error:
            message = str(error)
        else:
            return True
        text = f"{kind} probe failed: {message}"
        self._context.record_event(self._pod.obj, "Warning", "Unhealthy", text, self._container.spec)
        return False

    async def _stop_container(self, probe: Json, kind: str) -> None:
        """Stops the container with the probe's termination grace period, else the pod's."""
        grace = probe.get("terminationGracePeriodSeconds")
        if grace is None:
            grace = self._pod.obj["spec"].get("terminationGracePeriodSeconds", _GRACE)
        name = self._container.spec["name"]
        await self._container.stop(float(grace), f"Container {name} failed {kind} probe, will be restarted")

    async def _attempt(self, probe: Json) -> None:
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
        address = action.get("host") or self._pod.placement.pod_ip
        if self._context.isolation is not None and not _is_address(address):
            raise ProbeError(f"a run with --isolated looks up no names, such as {address!r}")
        sock = await self._context.runtime.make_socket("tcp")
        try:
            await asyncio.get_running_loop().sock_connect(sock, (address, self._port(action.get("port"))))
            return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname="" if tls else None)
        except BaseException:
            sock.close()
            raise

    async def _get(self, action: Json) -> None:
        tls = _insecure_tls() if (action.get("scheme") or "HTTP") == "HTTPS" else None
        reader, writer = await self._connect(action, tls)
        try:
            headers = {
                "Host": self._pod.placement.pod_ip,
                "User-Agent": f"kube-probe/{KUBERNETES[1:].rpartition('.')[0]}",
                "Connection": "close",
            }
            headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
            lines = [
                f"GET {action.get('path') or '/'} HTTP/1.1",
                *(f"{name}: {text}" for name, text in headers.items()),
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            status_line = (await reader.readline()).split()
        finally:
            writer.close()
        code = int(status_line[1]) if len(status_line) > 1 and status_line[1].isdigit() else 0
        if not 200 <= code < 400:
            raise ProbeError(f"HTTP probe failed with statuscode: {code}")

    def _port(self, port: int | str | None) -> int:
        """The number of a port given by number or by the name of a container port. Raises `ProbeError`."""
        for port_spec in self._container.spec.get("ports") or ():
            if port_spec.get("name") == port:
                return int(port_spec["containerPort"])
        try:
            return int(port or 0)
        except ValueError:
            raise ProbeError(f"unknown port {port!r}") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _insecure_tls() -> ssl.SSLContext:
    """TLS without certificate verification, as kubelet's HTTPS probes."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
