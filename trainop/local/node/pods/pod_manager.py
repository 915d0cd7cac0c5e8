"""The pods of the node: bound when they are free, run when they are ours, let go when their objects are."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from datetime import datetime

import msgspec

from trainop.local.node.network.addresses import AddressBook
from trainop.local.node.pods.context import Kit
from trainop.local.node.pods.environment import Reference, Surroundings
from trainop.local.node.pods.status import ContainerState, PodState, Terminated, pod_status
from trainop.local.node.pods.worker import PodWorker, complete_deletion, insist, write_status
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import parse_timestamp
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.objects.metadata import Json, Key, ObjectReference, Unstructured
from trainop.runtime.objects.resource import PODS

LOST = ("NodeLost", "the node stopped while the pod ran, and its processes ended with it")

_FINISHED = {"Succeeded", "Failed"}
_LOST_CODE = 137


class Roster:
    """The handler of the pods' informer. What takes time runs in `tasks`."""

    def __init__(self, kit: Kit, node: str, host_ip: str, book: AddressBook, scheduler: Recorder) -> None:
        self._kit = kit
        self._node = node
        self._host_ip = host_ip
        self._book = book
        self._scheduler = scheduler
        self._tasks: asyncio.TaskGroup | None = None
        self._workers: dict[str, PodWorker] = {}
        self._closing = False
        self._busy: set[str] = set()
        """UIDs of pods that are being bound, failed or let go without a worker."""
        self.on_change: Callable[[], None] = lambda: None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Must come before the informer runs."""
        self._tasks = tasks

    def add(self, obj: Unstructured, initial: bool) -> None:
        self._look(obj.raw, initial=initial)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._look(new.raw, initial=False)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        if obj is None:
            return
        worker = self._workers.get(obj.metadata.uid)
        if worker is not None:
            worker.vanish()
        else:
            self._forget(obj.raw)
        self.on_change()

    def refresh(self, reference: Reference, namespace: str) -> None:
        """The object changed: volumes that show it follow."""
        for worker in self._workers.values():
            if worker.shows(reference, namespace):
                self._spawn(worker.refresh())

    def close(self) -> tuple[int, float]:
        """Begins the end of all pods, and starts no more: how many run, and their longest grace period."""
        self._closing = True
        running = [worker for worker in self._workers.values() if not worker.final]
        for worker in running:
            worker.shut_down(worker.grace)
        return len(running), max((worker.grace for worker in running), default=0.0)

    def kill(self) -> None:
        """Ends at once what `close` left its grace period."""
        for worker in self._workers.values():
            worker.shut_down(0)

    async def ended(self) -> None:
        """Returns when nothing runs and every last status is written."""
        for worker in list(self._workers.values()):
            await worker.ended.wait()

    def _look(self, pod: Json, *, initial: bool) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        finished = (pod.get("status") or {}).get("phase") in _FINISHED
        worker = self._workers.get(meta["uid"])
        if worker is not None:
            worker.update(pod)
        elif self._closing:
            return
        elif not spec.get("nodeName"):
            if not (finished or meta.get("deletionTimestamp") or spec.get("schedulingGates")):
                self._spawn_once(meta["uid"], self._bind(pod))
        elif spec["nodeName"] == self._node:
            self._receive(pod, finished=finished, initial=initial)
        self.on_change()

    def _receive(self, pod: Json, *, finished: bool, initial: bool) -> None:
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            self._spawn_once(meta["uid"], complete_deletion(self._kit, pod))
        elif finished:
            return
        elif initial and (pod.get("status") or {}).get("startTime"):
            self._spawn_once(meta["uid"], self._lose(pod))
        else:
            address = self._book.take(Key(meta["namespace"], meta["name"]))
            here = Surroundings(self._node, self._host_ip, address, self._kit.allocatable)
            worker = self._workers[meta["uid"]] = PodWorker(self._kit, pod, here)
            self._spawn(self._run(worker, pod))

    async def _run(self, worker: PodWorker, pod: Json) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[pod["metadata"]["uid"]]
            self._book.release(worker.here.pod_ip)
        self._forget(pod)

    async def _bind(self, pod: Json) -> None:
        """What a scheduler with one node decides: this one."""
        meta = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._node},
        }
        path = PODS.path(meta["namespace"], meta["name"], "binding")
        request = Request("POST", path, body=msgspec.json.encode(binding))
        if await insist(lambda: self._kit.client.request(request), self._kit.clock):
            about = ObjectReference("v1", "Pod", meta["namespace"], meta["name"], meta["uid"])
            message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {self._node}"
            self._scheduler.event(about, "Normal", "Scheduled", message)

    async def _lose(self, pod: Json) -> None:
        """Fails a pod of an earlier run of this node."""
        self._kit.tell(pod, "Warning", *LOST)
        await write_status(self._kit, pod, lost_status(pod, self._kit.now()))

    def _forget(self, pod: Json) -> None:
        self._kit.logs.forget(pod["metadata"])
        shutil.rmtree(self._kit.pod_directory(pod["metadata"]), ignore_errors=True)

    def _spawn(self, task: Coroutine[None, None, None]) -> None:
        if self._tasks is None:
            raise RuntimeError("the roster is not open")
        self._tasks.create_task(task)

    def _spawn_once(self, uid: str, task: Coroutine[None, None, None]) -> None:
        """Unless one for this pod is under way."""

        async def run() -> None:
            try:
                await task
            finally:
                self._busy.discard(uid)

        if uid in self._busy:
            task.close()
        else:
            self._busy.add(uid)
            self._spawn(run())


def lost_status(pod: Json, now: datetime) -> Json:
    """Failed: what had not ended by itself ended with the node."""
    before = pod["status"]
    seen = {one["name"]: one for one in before.get("containerStatuses") or ()}
    state = PodState(
        containers=[_lost_container(spec, seen.get(spec["name"]) or {}, now) for spec in pod["spec"]["containers"]],
        final=True,
        failure=LOST,
        started=parse_timestamp(before["startTime"]),
        address=before.get("podIP") or "",
        host_address=before.get("hostIP") or "",
    )
    return pod_status(pod, state, now)


def _lost_container(spec: Json, before: Json, now: datetime) -> ContainerState:
    states = before.get("state") or {}
    begun = (states.get("running") or states.get("terminated") or {}).get("startedAt")
    started = parse_timestamp(begun) if begun else now
    ended = Terminated(_LOST_CODE, "ContainerStatusUnknown", started, now, LOST[1])
    if (terminated := states.get("terminated")) is not None:
        finished = parse_timestamp(terminated["finishedAt"])
        ended = Terminated(
            terminated["exitCode"], terminated["reason"], started, finished, terminated.get("message", "")
        )
    restarts = int(before.get("restartCount") or 0)
    return ContainerState(
        spec["name"], spec.get("image") or "", ended, restarts=restarts, container_id=before.get("containerID") or ""
    )
