"""The pod worker: runs one pod and reports it to the API server.

Status manager: it patches `status` whenever the pod's state changes. After the pod has ended and its deletion is
requested, it completes the deletion. Uses `pod.Pod` for the processes and `status.pod_status` for the status.
"""

from __future__ import annotations

import asyncio

from trainop.local.node.pods.context import NodeContext
from trainop.local.node.pods.environment import Placement, Reference
from trainop.local.node.pods.pod import DEFAULT_GRACE_PERIOD, SHUTDOWN, Pod
from trainop.local.node.pods.status import pod_status
from trainop.local.node.pods.volumes import shows_fields, volume_references
from trainop.local.node.sandbox.running import RunningContainer
from trainop.local.retries import retry_api_call
from trainop.runtime import PODS, Json


async def complete_deletion(context: NodeContext, pod: Json) -> None:
    """Deletes the pod object with grace period 0, as kubelet does once the pod has ended."""
    meta = pod["metadata"]
    await retry_api_call(
        lambda: context.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace_seconds=0),
        context.clock,
    )


async def write_status(context: NodeContext, pod: Json, status: Json) -> bool:
    """Patches the pod's status; False if the pod is gone or the status was rejected."""
    meta = pod["metadata"]
    body = {"metadata": {"uid": meta["uid"]}, "status": status}
    return await retry_api_call(
        lambda: context.client.patch(PODS, meta["name"], meta["namespace"], body, subresource="status"), context.clock
    )


class PodWorker:
    """Runs one pod from its binding until its object is deleted."""

    def __init__(self, context: NodeContext, pod: Json, placement: Placement) -> None:
        self.placement = placement
        self._context = context
        self._changed = asyncio.Event()
        self._deletion_requested = asyncio.Event()
        self._object_deleted = False
        self.ended = asyncio.Event()
        """Set when no process of the pod is left and its final status is written."""
        self._pod = Pod(context, pod, placement, self._changed.set)
        self._references = volume_references(pod)
        self._shows_fields = shows_fields(pod)
        self.update(pod)

    def update(self, pod: Json) -> bool:
        """Sets the latest pod object; starts termination if it has a deletion timestamp.

        Returns whether volumes show fields of the pod that have changed.
        """
        old, self._pod.obj = self._pod.obj, pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            self._pod.stop(DEFAULT_GRACE_PERIOD if grace is None else grace)
            self._deletion_requested.set()
        changed = (old["metadata"].get(name) != pod["metadata"].get(name) for name in ("annotations", "labels"))
        return self._shows_fields and any(changed)

    def on_object_deleted(self) -> None:
        """The pod object was deleted from the API: kills the processes without a grace period."""
        self._object_deleted = True
        self._pod.stop(0)
        self._deletion_requested.set()
        self._changed.set()

    @property
    def final(self) -> bool:
        """Whether no process of the pod is running or will be started."""
        return self._pod.final

    def process(self, container: str) -> RunningContainer | None:
        """The process of a running container; None if it is not running."""
        return self._pod.process(container)

    @property
    def grace(self) -> float:
        """The pod's termination grace period in seconds."""
        return self._pod.grace

    def shut_down(self, grace: float) -> None:
        """Terminates the pod for a node shutdown; another call with a shorter `grace` shortens the grace period."""
        self._pod.stop(grace, SHUTDOWN)

    def uses(self, reference: Reference, namespace: str) -> bool:
        """Whether a volume of the pod contains this ConfigMap or Secret."""
        return reference in self._references and self._pod.obj["metadata"].get("namespace") == namespace

    async def refresh(self) -> None:
        """Updates the pod's volumes from the current ConfigMaps, Secrets and fields of the pod, with retries."""
        await retry_api_call(self._pod.refresh_volumes, self._context.clock)

    async def run(self) -> None:
        """Runs the pod and writes its statuses; after the final one, waits for the deletion and completes it."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_statuses())
            await self._pod.run()
        self.ended.set()
        await self._deletion_requested.wait()
        if not self._object_deleted:
            await complete_deletion(self._context, self._pod.obj)

    async def _write_statuses(self) -> None:
        """Writes the status after each change until the final one; changes in quick succession share one patch."""
        written: Json = {}
        final = False
        while not final and not self._object_deleted:
            await self._changed.wait()
            if not self._pod.final:
                await self._context.clock.sleep(self._context.timing.status_batch_delay)
            self._changed.clear()
            final = self._pod.final
            status = pod_status(self._pod.obj, self._pod.state, self._context.now())
            if status != written and await write_status(self._context, self._pod.obj, status):
                written = status
