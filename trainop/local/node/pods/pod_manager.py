"""The pod manager: runs one pod worker per pod assigned to this node.

It is the event handler of the pod informer, so its methods must not block; API writes run as tasks. Corresponds to
kubelet's pod manager and pod workers.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from datetime import datetime

from trainop.local.node.network.addresses import AddressAllocator
from trainop.local.node.pods.context import NodeContext
from trainop.local.node.pods.environment import Placement, Reference
from trainop.local.node.pods.status import ContainerState, PodState, Terminated, pod_status
from trainop.local.node.pods.worker import PodWorker, complete_deletion, write_status
from trainop.local.node.sandbox.running import RunningContainer
from trainop.runtime import Json, Key, Unstructured
from trainop.runtime.lowlevel import parse_timestamp

NODE_LOST = ("NodeLost", "the node stopped while the pod ran, and its processes ended with it")

_FINISHED = {"Succeeded", "Failed"}
_LOST_EXIT_CODE = 137


class PodManager:
    """Informer handler for pods; keeps one `PodWorker` per running pod, by UID."""

    def __init__(self, context: NodeContext, node: str, host_ip: str, addresses: AddressAllocator) -> None:
        self._context = context
        self._node = node
        self._host_ip = host_ip
        self._addresses = addresses
        self._tasks: asyncio.TaskGroup | None = None
        self._workers: dict[str, PodWorker] = {}
        self._shutting_down = False
        self._in_flight: set[str] = set()
        """UIDs of pods without a worker that have a pending API write: failed status or deletion."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after every pod event; in mode `addresses` the agent then publishes the ready addresses."""

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Sets the task group for pod workers and writes. Must be called before the informer runs."""
        self._tasks = tasks

    def add(self, obj: Unstructured, initial: bool) -> None:
        self._sync(obj.raw, initial=initial)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._sync(new.raw, initial=False)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        if obj is None:
            return
        worker = self._workers.get(obj.metadata.uid)
        if worker is not None:
            worker.on_object_deleted()
        else:
            self._remove_data(obj.raw)
        self.on_change()

    def refresh(self, reference: Reference, namespace: str) -> None:
        """Refreshes the volumes that contain a changed ConfigMap or Secret."""
        for worker in self._workers.values():
            if worker.uses(reference, namespace):
                self._spawn(worker.refresh())

    def process(self, uid: str, container: str) -> RunningContainer | None:
        """The process of a running container of the pod with this UID; None if it is not running."""
        worker = self._workers.get(uid)
        return worker.process(container) if worker else None

    def address(self, uid: str) -> str | None:
        """The address of the pod with this UID; None if it is not running."""
        worker = self._workers.get(uid)
        return worker.placement.pod_ip if worker and not worker.final else None

    def begin_shutdown(self) -> tuple[int, float]:
        """Graceful node shutdown: terminates all pods and starts no new ones.

        Returns the number of running pods and their longest termination grace period in seconds.
        """
        self._shutting_down = True
        running = [worker for worker in self._workers.values() if not worker.final]
        for worker in running:
            worker.shut_down(worker.grace)
        return len(running), max((worker.grace for worker in running), default=0.0)

    def kill(self) -> None:
        """Kills pods that are still within their termination grace period."""
        for worker in self._workers.values():
            worker.shut_down(0)

    async def wait_ended(self) -> None:
        """Waits until all pods have ended and their final statuses are written."""
        for worker in list(self._workers.values()):
            await worker.ended.wait()

    def _sync(self, pod: Json, *, initial: bool) -> None:
        """Reacts to an added or updated pod: updates its worker, or starts it if it has this node."""
        meta, spec = pod["metadata"], pod["spec"]
        finished = (pod.get("status") or {}).get("phase") in _FINISHED
        worker = self._workers.get(meta["uid"])
        if worker is not None:
            if worker.update(pod):
                self._spawn(worker.refresh())
        elif self._shutting_down:
            return
        elif spec.get("nodeName") == self._node:
            self._sync_assigned(pod, finished=finished, initial=initial)
        self.on_change()

    def _sync_assigned(self, pod: Json, *, finished: bool, initial: bool) -> None:
        """Handles a pod of this node that has no worker.

        In the initial list, a pod with a start time was running when an earlier instance of this node stopped.
        """
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            self._spawn_once(meta["uid"], complete_deletion(self._context, pod))
        elif finished:
            return
        elif initial and (pod.get("status") or {}).get("startTime"):
            self._spawn_once(meta["uid"], self._fail_lost(pod))
        else:
            address = self._addresses.allocate(Key(meta["namespace"], meta["name"]))
            placement = Placement(self._node, self._host_ip, address, self._context.allocatable)
            worker = self._workers[meta["uid"]] = PodWorker(self._context, pod, placement)
            self._spawn(self._run(worker, pod))

    async def _run(self, worker: PodWorker, pod: Json) -> None:
        """Runs the worker until the pod object is deleted, then releases the address and removes logs and volumes."""
        try:
            await worker.run()
        finally:
            del self._workers[pod["metadata"]["uid"]]
            self._addresses.release(worker.placement.pod_ip)
        self._remove_data(pod)

    async def _fail_lost(self, pod: Json) -> None:
        """Fails a pod that was running when an earlier instance of this node stopped."""
        self._context.record_event(pod, "Warning", *NODE_LOST)
        await write_status(self._context, pod, lost_status(pod, self._context.now()))

    def _remove_data(self, pod: Json) -> None:
        """Deletes the pod's logs and volumes from disk; persistent volume claims are stored elsewhere and kept."""
        self._context.logs.forget(pod["metadata"])
        shutil.rmtree(self._context.pod_directory(pod["metadata"]), ignore_errors=True)

    def _spawn(self, task: Coroutine[None, None, None]) -> None:
        if self._tasks is None:
            raise RuntimeError("the pod manager is not started")
        self._tasks.create_task(task)

    def _spawn_once(self, uid: str, task: Coroutine[None, None, None]) -> None:
        """Runs `task` unless another one for this pod is in progress."""

        async def run() -> None:
            try:
                await task
            finally:
                self._in_flight.discard(uid)

        if uid in self._in_flight:
            task.close()
        else:
            self._in_flight.add(uid)
            self._spawn(run())


def lost_status(pod: Json, now: datetime) -> Json:
    """The Failed status of a pod whose containers were killed when the node stopped.

    Containers that had terminated before keep their recorded state.
    """
    previous = pod["status"]
    previous_states = {one["name"]: one for one in previous.get("containerStatuses") or ()}
    state = PodState(
        containers=[
            _lost_container(spec, previous_states.get(spec["name"]) or {}, now) for spec in pod["spec"]["containers"]
        ],
        final=True,
        failure=NODE_LOST,
        started=parse_timestamp(previous["startTime"]),
        address=previous.get("podIP") or "",
        host_address=previous.get("hostIP") or "",
    )
    return pod_status(pod, state, now)


def _lost_container(spec: Json, previous: Json, now: datetime) -> ContainerState:
    states = previous.get("state") or {}
    started_at = (states.get("running") or states.get("terminated") or {}).get("startedAt")
    started = parse_timestamp(started_at) if started_at else now
    ended = Terminated(_LOST_EXIT_CODE, "ContainerStatusUnknown", started, now, NODE_LOST[1])
    if (terminated := states.get("terminated")) is not None:
        finished = parse_timestamp(terminated["finishedAt"])
        ended = Terminated(
            terminated["exitCode"], terminated["reason"], started, finished, terminated.get("message", "")
        )
    restarts = int(previous.get("restartCount") or 0)
    return ContainerState(
        spec["name"],
        spec.get("image") or "",
        ended,
        restarts=restarts,
        container_id=previous.get("containerID") or "",
        image_id=previous.get("imageID") or "",
    )


class ReferenceHandler:
    """Informer handler for ConfigMaps or Secrets: refreshes the volumes of pods that mount a changed object."""

    def __init__(self, kind: str, pod_manager: PodManager) -> None:
        self._kind = kind
        self._pod_manager = pod_manager

    def add(self, obj: Unstructured, initial: bool) -> None:
        if not initial:
            self._refresh(obj)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._refresh(new)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        """Mounted volumes keep the last content, as with kubelet."""

    def _refresh(self, obj: Unstructured) -> None:
        kind = "configmap" if self._kind == "configmap" else "secret"
        self._pod_manager.refresh(Reference(kind, obj.metadata.name), obj.metadata.namespace)  # type: ignore[arg-type]  # one of two
