"""The simulated node: a metadata-only watch on pods; sets pods to Running, and to Succeeded or Failed on request.

It writes statuses as a kubelet does: strategic merge patches of the subresource, for the pod with this UID.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.transport import Request
from trainop.runtime.errors import ConflictError, NotFoundError
from trainop.runtime.objects.metadata import PODS, Json, Key, PartialObject

JOB, ROLE = "training.kubeflow.org/job-name", "training.kubeflow.org/job-role"
CONCURRENCY = 32
NODE = "node-0"


@dataclass(slots=True)
class SimulatedPod:
    name: str
    uid: str
    job: str
    role: str
    """Value of the label job-role: `master`, `launcher` or empty."""
    added: float
    """Monotonic time of the watch event."""
    phase: str = "Pending"
    ran: float = 0.0
    """When the API server had accepted that it runs, monotonic seconds."""


@dataclass
class SimulatedNode:
    """Simulates the pods of one namespace. Unless it binds them, deletion removes them at once."""

    client: Client
    namespace: str
    container: str
    delay: float = 0.0
    """Seconds from creation to Running."""
    binds: bool = False
    """Whether it acts as the scheduler too and binds each pod to `NODE`, with a request of its own."""
    pods: dict[str, SimulatedPod] = field(default_factory=dict)
    added: int = 0
    """Number of pods observed since the start, including replacements."""
    last_added: float = 0.0
    written: int = 0
    on_added: Callable[[SimulatedPod], None] | None = None

    def __post_init__(self) -> None:
        self._todo: deque[tuple[SimulatedPod, str, int]] = deque()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Watches pods and writes their statuses until cancelled."""
        decode = msgspec.json.Decoder(PartialObject).decode
        pods = Informer(self.client, PODS, decode, namespaces=(self.namespace,), metadata_only=True)
        pods.add_handler(self)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pods.run())
            for _ in range(CONCURRENCY):
                tasks.create_task(self._work())

    def finish(self, predicate: Callable[[SimulatedPod], bool]) -> int:
        """Ends all running pods that satisfy `predicate` with exit code 0; returns their number."""
        chosen = [pod for pod in self.pods.values() if pod.phase == "Running" and predicate(pod)]
        for pod in chosen:
            self._enqueue(pod, "Succeeded")
        return len(chosen)

    async def fail(self, pod: SimulatedPod, code: int) -> float:
        """Sets phase Failed with this exit code; returns the monotonic time of the API server's response."""
        await self._write(pod, "Failed", code)
        return time.monotonic()

    # Informer handler

    def add(self, obj: PartialObject, initial: bool) -> None:
        metadata = obj.metadata
        job, role = metadata.labels.get(JOB, ""), metadata.labels.get(ROLE, "")
        pod = self.pods[metadata.name] = SimulatedPod(metadata.name, metadata.uid, job, role, time.monotonic())
        self.added += 1
        self.last_added = pod.added
        if self.on_added:
            self.on_added(pod)
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, self._enqueue, pod, "Running")
        else:
            self._enqueue(pod, "Running")

    def update(self, old: PartialObject, new: PartialObject) -> None:
        """Ignored: updates are this node's own status writes."""

    def delete(self, obj: PartialObject | None, key: Key, final_state_unknown: bool) -> None:
        self.pods.pop(key.name, None)

    # Status writes

    def _enqueue(self, pod: SimulatedPod, phase: str, code: int = 0) -> None:
        self._todo.append((pod, phase, code))
        self._wake.set()

    async def _work(self) -> None:
        while True:
            while self._todo:
                await self._write(*self._todo.popleft())
                await asyncio.sleep(0)  # an API server in the same process may respond without suspending
            self._wake.clear()
            await self._wake.wait()

    async def _write(self, pod: SimulatedPod, phase: str, code: int) -> None:
        body = {"status": self._status(pod, phase, code), "metadata": {"uid": pod.uid}}
        try:
            if self.binds and phase == "Running":
                await self._bind(pod)
            await self.client.patch(
                PODS,
                pod.name,
                self.namespace,
                body,
                kind=PatchKind.STRATEGIC,
                subresource="status",
                metadata_only=True,
            )
        except (NotFoundError, ConflictError):  # the operator has deleted the pod
            return
        pod.phase = phase
        if phase == "Running":
            pod.ran = time.monotonic()
        self.written += 1

    async def _bind(self, pod: SimulatedPod) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        }
        path = PODS.path(self.namespace, pod.name, "binding")
        await self.client.request(Request("POST", path, body=msgspec.json.encode(body)))

    def _status(self, pod: SimulatedPod, phase: str, code: int) -> Json:
        now, runs = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), phase == "Running"
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": now, "finishedAt": now}
        conditions = {"PodScheduled": True, "Initialized": True, "Ready": runs, "ContainersReady": runs}
        container = {
            "name": self.container,
            "image": "busybox:1.36",
            "imageID": "busybox@sha256:0",
            "containerID": f"sim://{pod.uid}",
            "ready": runs,
            "started": runs,
            "restartCount": 0,
            "lastState": {},
            "state": {"running": {"startedAt": now}} if runs else {"terminated": ended},
        }
        status: Json = {
            "phase": phase,
            "conditions": [
                {"type": name, "status": str(value), "lastProbeTime": None, "lastTransitionTime": now}
                for name, value in conditions.items()
            ],
            "containerStatuses": [container],
        }
        if runs:
            ip = f"10.{64 + (self.written >> 16)}.{self.written >> 8 & 255}.{self.written & 255}"
            status |= {"podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "10.2.0.1", "startTime": now}
        return status
