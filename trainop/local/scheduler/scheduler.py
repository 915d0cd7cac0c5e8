"""The scheduler of a cluster with one node: gives the node to waiting pods, and says of the others why they wait.

The queue is kube-scheduler's: by priority, then by age. A pod that does not fit lets those behind it pass, so that a
large pod can wait for as long as small ones keep coming, as in Kubernetes. No pod is preempted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from trainop.local.retries import retry_api_call
from trainop.local.scheduler.filters import STRICT, Amounts, Leniency, counted, find_obstacle, requested
from trainop.runtime import (
    PODS,
    Client,
    Clock,
    Key,
    ObjectReference,
    PatchKind,
    Recorder,
    Store,
    Unstructured,
)
from trainop.runtime.lowlevel import Request, timestamp

FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Stores:
    """What the scheduler looks at."""

    pods: Store[Unstructured]
    nodes: Store[Unstructured]


class Scheduler:
    """Informer handler for pods and nodes. `run` schedules until it is cancelled."""

    def __init__(
        self,
        client: Client,
        stores: Stores,
        node: str,
        *,
        clock: Clock,
        recorder: Recorder,
        leniency: Leniency = STRICT,
    ) -> None:
        self._client = client
        self._stores = stores
        self._node = node
        self._clock = clock
        self._recorder = recorder
        self._leniency = leniency
        self._changed = asyncio.Event()
        self._stopped = False
        self._requests: dict[str, Amounts] = {}
        """By UID; reading the same quantities again for every change would be slow."""
        self._assumed: dict[str, Amounts] = {}
        """What pods request to which the node was given, by UID, until the cache shows it."""
        self._obstacles: dict[str, str] = {}
        """What was last reported of a waiting pod, by UID."""

    def add(self, obj: Unstructured, initial: bool) -> None:
        self._changed.set()

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._changed.set()

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        if obj is not None:
            for known in (self._requests, self._assumed, self._obstacles):
                known.pop(obj.metadata.uid, None)
        self._changed.set()

    def stop(self) -> None:
        """Gives the node to no further pod."""
        self._stopped = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for write in self._schedule():
                    tasks.create_task(write)

    def _schedule(self) -> list[Coroutine[None, None, None]]:
        """Decides about all waiting pods, and returns the writes to make."""
        pods = self._stores.pods.list()
        waiting = sorted((pod for pod in pods if self._waits(pod)), key=_order)
        if not waiting or self._stopped:
            return []
        found = self._stores.nodes.get(Key("", self._node))
        node = found.raw if found else None
        used = self._used(pods)
        writes = []
        for pod in waiting:
            amounts = self._amounts(pod)
            if node is not None:
                amounts = counted(amounts, node, self._leniency)
            obstacle = find_obstacle(pod.raw["spec"], amounts, node, used)
            if not obstacle:
                _add(used, amounts)
                self._assumed[pod.metadata.uid] = amounts
                writes.append(self._bind(pod))
            elif self._obstacles.get(pod.metadata.uid) != obstacle:
                self._obstacles[pod.metadata.uid] = obstacle
                writes.append(self._report(pod, obstacle))
        return writes

    def _waits(self, pod: Unstructured) -> bool:
        spec = pod.raw["spec"]
        if spec.get("nodeName"):
            self._assumed.pop(pod.metadata.uid, None)
            return False
        held = _is_finished(pod) or pod.raw["metadata"].get("deletionTimestamp") or spec.get("schedulingGates")
        return not held and pod.metadata.uid not in self._assumed

    def _used(self, pods: Sequence[Unstructured]) -> Amounts:
        """What the pods request that have the node or are about to."""
        used: Amounts = {}
        for pod in pods:
            if pod.raw["spec"].get("nodeName") == self._node and not _is_finished(pod):
                _add(used, self._amounts(pod))
        for amounts in self._assumed.values():
            _add(used, amounts)
        return used

    def _amounts(self, pod: Unstructured) -> Amounts:
        known = self._requests.get(pod.metadata.uid)
        if known is None:
            known = self._requests[pod.metadata.uid] = requested(pod.raw["spec"])
        return known

    async def _bind(self, pod: Unstructured) -> None:
        meta = pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._node},
        }
        path = PODS.path(meta.namespace, meta.name, "binding")
        request = Request("POST", path, body=msgspec.json.encode(binding))
        if await retry_api_call(lambda: self._client.request(request), self._clock):
            message = f"Successfully assigned {meta.namespace}/{meta.name} to {self._node}"
            self._recorder.event(_reference(pod), "Normal", "Scheduled", message)
        else:  # the pod was deleted or replaced
            self._assumed.pop(meta.uid, None)
            self._changed.set()

    async def _report(self, pod: Unstructured, obstacle: str) -> None:
        """Writes the condition PodScheduled and an event."""
        meta = pod.metadata
        known = {one["type"]: one for one in (pod.raw.get("status") or {}).get("conditions") or ()}
        before = known.get("PodScheduled") or {}
        since = before.get("lastTransitionTime") if before.get("status") == "False" else None
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": obstacle,
            "lastProbeTime": None,
            "lastTransitionTime": since or timestamp(self._clock.now()),
        }
        body = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}

        async def write() -> None:
            await self._client.patch(
                PODS, meta.name, meta.namespace, body, kind=PatchKind.STRATEGIC, subresource="status"
            )

        if await retry_api_call(write, self._clock):
            self._recorder.event(_reference(pod), "Warning", "FailedScheduling", obstacle)


def _order(pod: Unstructured) -> tuple[int, str, str, str]:
    meta = pod.raw["metadata"]
    priority = pod.raw["spec"].get("priority") or 0
    return -priority, meta.get("creationTimestamp") or "", meta.get("namespace") or "", meta["name"]


def _is_finished(pod: Unstructured) -> bool:
    return (pod.raw.get("status") or {}).get("phase") in FINISHED


def _reference(pod: Unstructured) -> ObjectReference:
    meta = pod.metadata
    return ObjectReference("v1", "Pod", meta.namespace, meta.name, meta.uid)


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount
