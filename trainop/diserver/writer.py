"""Creates and deletes the pods of one request, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from trainop.diserver.journal import HeldLease
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.records import JobKey
from trainop.diserver.retries import persist
from trainop.diserver.seen import PodId, SeenPod, decode_pod
from trainop.kinds.dijob.names import REPLICA_TYPE, REQUEST, job_selector
from trainop.runtime import (
    PODS,
    AlreadyExistsError,
    Client,
    Clock,
    ConflictError,
    Json,
    Metadata,
    NotFoundError,
    OwnerReference,
)
from trainop.runtime.lowlevel import BodyBudget

CONCURRENCY = 32
"""Requests to the API server at a time, of each request of a client."""

UNCERTAIN_PAUSE = 2.0
"""Seconds before pods are deleted a second time: a create whose connection broke may still be carried out."""

T = TypeVar("T")
Build: TypeAlias = Callable[[], Json]
"""Makes the pod, each time under another name."""
Warned: TypeAlias = Callable[[Json, str], None]
"""(pod, text of a warning)."""


class Created(NamedTuple):
    """A pod as it was created."""

    pod: Json
    uid: str


class _Labelled(msgspec.Struct, gc=False):
    metadata: Metadata


_decode_labelled = msgspec.json.Decoder(_Labelled).decode
_encode = msgspec.json.Encoder().encode


class PodWriter:
    """Writes pods through one client. Methods raise `ApiError`, `ConnectionError` or `TimeoutError` once repetition
    does not help."""

    def __init__(self, client: Client, clock: Clock, metrics: DiServerMetrics, *, grace_seconds: int = 0) -> None:
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._grace_seconds = grace_seconds
        self._budget = BodyBudget()

    async def create(self, build: Build, held: HeldLease, warned: Warned) -> Created:
        """Creates one pod for the request that `held` stands for. `warned` receives what the API server says about it,
        also if it refuses the pod."""
        while True:
            pod = build()
            try:
                uid = await persist(partial(self._create, pod, held, warned), self._clock)
            except AlreadyExistsError:
                uid = await self._uid_of_ours(pod, held.record.request)
            if uid:
                self._metrics.pods_created.labels(pod["metadata"]["labels"][REPLICA_TYPE]).inc()
                return Created(pod, uid)

    async def _create(self, pod: Json, held: HeldLease, warned: Warned) -> str:
        async with self._budget.reserve(lambda: _encode(pod)) as body:
            held.check()
            namespace = pod["metadata"]["namespace"]
            made = await self._client.create(
                PODS, body, namespace=namespace, metadata_only=True, warned=partial(warned, pod)
            )
        return str(made["metadata"]["uid"])

    async def _uid_of_ours(self, pod: Json, request: str) -> str:
        """The UID of the pod of this name if an earlier attempt created it; empty if it is another pod."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            found = await persist(lambda: self._client.get(PODS, name, namespace), self._clock)
        except NotFoundError:
            return ""
        metadata = found["metadata"]
        ours = (metadata.get("annotations") or {}).get(REQUEST) == request
        return str(metadata["uid"]) if ours else ""

    async def delete_pods(self, job: JobKey, pods: Sequence[PodId]) -> None:
        """Deletes the pods of the job; those that are gone count as deleted."""

        async def delete(pod: PodId) -> None:
            if uid := pod.uid or await self._uid_in_job(job, pod.name):
                await self.delete(job.namespace, pod.name, uid)

        await each(pods, delete)

    async def _uid_in_job(self, job: JobKey, name: str) -> str:
        """The UID of the pod of this name if it is the job's, for records of releases that wrote no UIDs."""
        try:
            found = await persist(lambda: self._client.get(PODS, name, job.namespace), self._clock)
        except NotFoundError:
            return ""
        metadata = found["metadata"]
        owners = (owner.get("uid") for owner in metadata.get("ownerReferences") or ())
        return str(metadata["uid"]) if job.uid in owners else ""

    async def delete(self, namespace: str, name: str, uid: str) -> None:
        """Deletes one pod; no-op if it is gone or the name belongs to another."""

        async def send() -> None:
            await self._client.delete(PODS, name, namespace, uid=uid, grace_seconds=self._grace_seconds)

        try:
            await persist(send, self._clock)
        except (NotFoundError, ConflictError):
            return
        self._metrics.pods_deleted.inc()

    async def undo(self, job: JobKey, request: str, *, uncertain: bool = False) -> None:
        """Deletes the pods of a request, twice if the outcome of a create is `uncertain`."""
        await self._undo(job, request)
        if uncertain:
            await self._clock.sleep(UNCERTAIN_PAUSE)
            await self._undo(job, request)

    async def _undo(self, job: JobKey, request: str) -> None:
        found: list[Metadata] = []

        def note(raw: bytes) -> None:
            metadata = _decode_labelled(raw).metadata
            if metadata.annotations.get(REQUEST) == request:
                found.append(metadata)

        await self._list(job, note)
        self._metrics.pods_undone.inc(len(found))
        await each(found, lambda pod: self.delete(job.namespace, pod.name, pod.uid))

    async def list_pods(self, job: JobKey) -> list[SeenPod]:
        """The pods of the job as the API server has them, not the cache."""
        found: list[SeenPod] = []
        await self._list(job, lambda raw: found.append(decode_pod(raw)))
        return [pod for pod in found if _owner_uid(pod.job) == job.uid]

    async def _list(self, job: JobKey, take: Callable[[bytes], None]) -> None:
        token = ""
        query = {"labelSelector": job_selector(job.name)}
        while True:
            page = await persist(partial(self._client.page, PODS, job.namespace, query, token), self._clock)
            for raw in page.items:
                take(bytes(raw))
            token = page.token
            if not token:
                return
            await asyncio.sleep(0)


def _owner_uid(owner: OwnerReference | None) -> str:
    return owner.uid if owner else ""


async def each(things: Iterable[T], work: Callable[[T], Awaitable[None]], concurrency: int = CONCURRENCY) -> None:
    """Awaits `work` for each thing, `concurrency` at a time. After a failure no more are begun, those that were begun
    end, and the first failure is raised."""
    left = iter(things)
    failures: list[BaseException] = []

    async def worker() -> None:
        for thing in left:
            try:
                await work(thing)
            except BaseException as error:
                failures.append(error)
                raise
            if failures:
                return

    tasks = [asyncio.create_task(worker()) for _ in range(concurrency)]
    await asyncio.gather(*tasks, return_exceptions=True)
    if failures:
        raise failures[0]
