"""What the API server sees of one pod of the node: its status is written, its deletion completed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from trainop.local.node.pods.context import Kit
from trainop.local.node.pods.environment import Reference, Surroundings
from trainop.local.node.pods.pod import GRACE, SHUTDOWN, Pod
from trainop.local.node.pods.status import pod_status
from trainop.local.node.pods.volumes import volume_references
from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import PODS

_FIRST_RETRY, _LAST_RETRY = 0.2, 10.0

log = structlog.get_logger(__name__)


async def insist(action: Callable[[], Awaitable[object]], clock: Clock) -> bool:
    """Repeats `action` until the API server has done it (True) or says that it never will (False)."""
    delay = _FIRST_RETRY
    while True:
        try:
            await action()
        except (NotFoundError, ConflictError):
            return False  # another pod of that name, or none
        except (InvalidError, ForbiddenError) as error:
            log.warning("write refused", error=str(error))
            return False
        except (ApiError, ConnectionError, TimeoutError) as error:
            log.warning("write failed", error=str(error), retry_in=delay)
        else:
            return True
        await clock.sleep(delay)
        delay = min(2 * delay, _LAST_RETRY)


async def complete_deletion(kit: Kit, pod: Json) -> None:
    """Nothing of the pod runs: its object may go."""
    meta = pod["metadata"]
    await insist(
        lambda: kit.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace_seconds=0), kit.clock
    )


async def write_status(kit: Kit, pod: Json, status: Json) -> bool:
    meta = pod["metadata"]
    body = {"metadata": {"uid": meta["uid"]}, "status": status}
    return await insist(
        lambda: kit.client.patch(PODS, meta["name"], meta["namespace"], body, subresource="status"), kit.clock
    )


class PodWorker:
    """`run` lasts from the binding of a pod until its object is gone."""

    def __init__(self, kit: Kit, pod: Json, here: Surroundings) -> None:
        self.here = here
        self._kit = kit
        self._changed = asyncio.Event()
        self._leaving = asyncio.Event()
        self._gone = False
        self.ended = asyncio.Event()
        """Nothing of it runs, and its last status is written."""
        self._pod = Pod(kit, pod, here, self._changed.set)
        self._references = volume_references(pod)
        self.update(pod)

    def update(self, pod: Json) -> None:
        """The object as it is now."""
        self._pod.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            self._pod.stop(GRACE if grace is None else grace)
            self._leaving.set()

    def vanish(self) -> None:
        """The object is gone: so are, at once, the processes."""
        self._gone = True
        self._pod.stop(0)
        self._leaving.set()
        self._changed.set()

    @property
    def final(self) -> bool:
        """Nothing of it runs or will run."""
        return self._pod.final

    @property
    def grace(self) -> float:
        """Seconds that its processes get when the node stops."""
        return self._pod.grace

    def shut_down(self, grace: float) -> None:
        """Ends it because the node stops; once more with a shorter grace hastens it."""
        self._pod.stop(grace, SHUTDOWN)

    def shows(self, reference: Reference, namespace: str) -> bool:
        """Whether a volume of the pod shows this object."""
        return reference in self._references and self._pod.pod["metadata"].get("namespace") == namespace

    async def refresh(self) -> None:
        await insist(self._pod.refresh_volumes, self._kit.clock)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_statuses())
            await self._pod.run()
        self.ended.set()
        await self._leaving.wait()
        if not self._gone:
            await complete_deletion(self._kit, self._pod.pod)

    async def _write_statuses(self) -> None:
        """Every change, as long as the object is there; what changes in between is written together."""
        written: Json = {}
        final = False
        while not final and not self._gone:
            await self._changed.wait()
            if not self._pod.final:
                await self._kit.clock.sleep(self._kit.timing.settle)
            self._changed.clear()
            final = self._pod.final
            status = pod_status(self._pod.pod, self._pod.state, self._kit.now())
            if status != written and await write_status(self._kit, self._pod.pod, status):
                written = status
