"""Makes requests for the same job wait for each other, over all di-servers, and finishes those of a server that died.

A request that changes pods holds a Lease, named by the UID of its job, from before its first write until its client has
the response. Other requests for the job wait until the Lease is gone. An annotation of the Lease is the record of the
request, and says what another server has to do if this one dies:

    open      pods are being created            -> delete the pods of the request
    decided   all pods exist                    -> delete the pods that the request replaces or removes
    unsent    the client did not get the answer -> nothing; the answer is kept for a while

A client that repeats a request because it got no answer gets the recorded one, instead of more pods
(docs/decisions/0005-a-lease-per-request-of-di-server.md).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec
import structlog

from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.records import (
    MAX_RECORD,
    JobKey,
    Record,
    encode,
    fit,
    read_record,
    spec_of,
    undelivered,
)
from trainop.diserver.replies import Answer, Refusal
from trainop.diserver.retries import FAILURES, persist
from trainop.diserver.seen import PodId
from trainop.kinds.dijob.names import CONTROLLER_NAME, DI_SERVER, JOURNAL, LEASES_OF_REQUESTS
from trainop.runtime import LEASES, AlreadyExistsError, Client, Clock, ConflictError, Json, NotFoundError
from trainop.runtime.lowlevel import micro_timestamp

log = structlog.get_logger(__name__)


class Times(NamedTuple):
    """Durations in seconds."""

    lease: float = 10.0
    """A Lease that was not renewed for this long belongs to a server that died."""
    renew: float = 3.0
    """Between two renewals."""
    wait: float = 40.0
    """For which a request waits for others of the same job before it is refused."""
    sweep: float = 5.0
    """Between two searches for Leases of servers that died."""
    remembered: float = 10.0
    """For which an answer that its client did not get is kept."""


class Cleaner(Protocol):
    """Deletes what the request of a server that died has left (`PodWriter`)."""

    async def undo(self, job: JobKey, request: str) -> None:
        """Deletes the pods that the request created."""
        ...

    async def delete_pods(self, job: JobKey, pods: Sequence[PodId]) -> None:
        """Deletes the pods."""
        ...


class HeldLease:
    """A Lease that this server holds: the right to change the pods of one job, inside `Journal.hold`."""

    def __init__(self, client: Client, clock: Clock, times: Times, lease: Json, record: Record) -> None:
        self._client = client
        self._clock = clock
        self._times = times
        self._lease = lease
        self.writing = asyncio.Lock()
        """Held during a write of the Lease: each needs the resourceVersion of the one before."""
        self._renewed = clock.monotonic()
        self.record = record
        self.own = record.request
        """The identity of the request of this server for which the Lease is held; empty while it is still another's."""
        self.unfinished = False
        """Pods may have to be deleted still, so that the Lease stays until `Journal.run` of some server has done so."""
        self.sent = False
        """The client has the answer."""

    def check(self) -> None:
        """Raises `Refusal` if another server may have taken over. To be called before each write."""
        if self._clock.monotonic() > self._renewed + 0.8 * self._times.lease:
            raise Refusal(500, "the lease of the job was lost")

    async def decide(self, answer: Answer, delete: Sequence[PodId] = ()) -> None:
        """Records that all pods exist, the answer, and the pods to `delete`. From here on the request is completed by
        whoever holds the Lease, and no longer undone."""
        body = answer.body.decode()
        names, uids = [pod.name for pod in delete], [pod.uid for pod in delete]
        decided = {"state": "decided", "delete": names, "uids": uids, "status": answer.status, "body": body}
        record = fit(msgspec.structs.replace(self.record, **decided))
        if len(encode(record)) > MAX_RECORD:
            record = msgspec.structs.replace(self.record, state="decided", earlier=())
        await persist(lambda: self.write(record), self._clock)

    async def write(self, record: Record | None = None) -> None:
        """Writes the record, or what it is once the writes before this one have ended, and so renews the Lease. Raises
        `ConflictError` if another server has taken over."""
        async with self.writing:
            if record is None:
                record = self.record
            sent = self._clock.monotonic()
            try:
                self._lease = await self._replace(record)
            except ConflictError:
                if not await self._is_own_write():
                    raise
                self._lease = await self._replace(record)
            self.record, self._renewed = record, sent

    async def _is_own_write(self) -> bool:
        """Whether the Lease has changed by an earlier write of this server, whose answer was lost. The next write is
        then based on it. A server that takes over writes the same record, under its own identity."""
        metadata = self._lease["metadata"]
        found = await self._client.get(LEASES, metadata["name"], metadata["namespace"])
        record, holder = read_record(found), spec_of(found).get("holderIdentity")
        if record is None or record.request != self.own or holder != self._lease["spec"]["holderIdentity"]:
            return False
        self._lease = found
        return True

    async def _replace(self, record: Record) -> Json:
        renewed = {**self._lease["spec"], "renewTime": micro_timestamp(self._clock.now())}
        metadata = {**self._lease["metadata"], "annotations": {JOURNAL: encode(record).decode()}}
        return await self._client.replace(LEASES, {**self._lease, "metadata": metadata, "spec": renewed})

    async def keep(self) -> None:
        """Renews the Lease until cancelled."""
        while True:
            await self._clock.sleep(self._times.renew)
            with suppress(*FAILURES):
                await self.write()

    async def end(self) -> None:
        """Deletes the Lease, or leaves it with the answers that clients did not get. A failure is only logged: `run`
        removes Leases that nobody renews."""
        if self.unfinished:
            return
        try:
            if self.record.answer is not None and not self.sent:
                await self.write(msgspec.structs.replace(self.record, state="unsent"))
            elif self.record.earlier:
                none = {"state": "unsent", "digest": "", "delete": (), "uids": (), "status": 0, "body": ""}
                await self.write(msgspec.structs.replace(self.record, **none))
            else:
                await self.delete()
        except FAILURES as error:
            log.warning("lease of a job not released", lease=self._lease["metadata"]["name"], error=str(error))

    async def delete(self) -> None:
        """Deletes the Lease, unless another server has taken it over."""
        metadata = self._lease["metadata"]
        place, version = (metadata["name"], metadata["namespace"]), metadata["resourceVersion"]
        with suppress(NotFoundError):
            await self._client.delete(LEASES, *place, uid=metadata["uid"], resource_version=version)


class _Observed(NamedTuple):
    """Since when a Lease has not changed, by the own clock: those of other servers may differ."""

    version: str
    since: float
    """Monotonic seconds."""


class Journal:
    """Takes the Leases of this server's requests, and ends the requests of servers that died. All servers keep their
    Leases in one namespace."""

    def __init__(
        self,
        client: Client,
        cleaner: Cleaner,
        clock: Clock,
        *,
        namespace: str,
        prefix: str,
        identity: str,
        times: Times = Times(),  # noqa: B008  # immutable
        metrics: DiServerMetrics,
    ) -> None:
        """`prefix` starts the names of the Leases."""
        self._client = client
        self._cleaner = cleaner
        self._clock = clock
        self._namespace = namespace
        self._prefix = prefix
        self._identity = identity
        self._times = times
        self._metrics = metrics
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, job: JobKey, digest: str) -> AsyncIterator[HeldLease]:
        """Waits for the end of other requests for this job. The record already has an answer if this very request was
        carried out before. Raises `Refusal`, and what the client raises."""
        arrived = self._clock.now()
        async with self._turn(job.uid):
            held = await self._acquire(job, digest, arrived)
            keeping = asyncio.create_task(held.keep(), name=f"lease {job.uid}")
            try:
                yield held
            finally:
                async with held.writing:  # a renewal that is cut off would leave the version of the Lease unknown
                    keeping.cancel()
                await asyncio.wait([keeping])
                await held.end()

    @asynccontextmanager
    async def _turn(self, uid: str) -> AsyncIterator[None]:
        """One request at a time within this process, in order of arrival."""
        lock, users = self._turns.get(uid, (asyncio.Lock(), 0))
        self._turns[uid] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns[uid]
            if users == 1:
                del self._turns[uid]
            else:
                self._turns[uid] = (lock, users - 1)

    async def _acquire(self, job: JobKey, digest: str, arrived: datetime) -> HeldLease:
        deadline, delay = self._clock.monotonic() + self._times.wait, 0.02
        record = Record(uuid.uuid4().hex, *job, digest)
        observed: _Observed | None = None
        while True:
            try:
                lease = await persist(lambda: self._client.create(LEASES, self._new_lease(record)), self._clock)
                return HeldLease(self._client, self._clock, self._times, lease, record)
            except AlreadyExistsError:
                found = await self._read(self._name(job.uid))
            if found is not None:
                observed = self._observe(found, observed)
                if self._is_free(found, observed, record.request) and (held := await self._take(found)):
                    past = undelivered(held.record, found, arrived, self._times.remembered)
                    mine = next((each for each in past if each.digest == digest), None)
                    others = [each for each in past if each is not mine]
                    known = {}
                    if mine is not None:
                        self._metrics.answers_repeated.inc()
                        known = {"state": "decided", "status": mine.status, "body": mine.body}
                    held.own = record.request
                    await held.write(fit(msgspec.structs.replace(record, earlier=others, **known)))
                    return held
            if self._clock.monotonic() > deadline:
                raise Refusal(500, f"DIJob {job.namespace}/{job.name} is busy with another request")
            await self._clock.sleep(delay)
            delay = min(delay * 2, 0.5)

    async def run(self) -> None:
        """Ends the requests of servers that died, until cancelled."""
        known: dict[str, _Observed] = {}
        while True:
            try:
                known = await self._sweep(known)
            except FAILURES as error:
                log.warning("leases of jobs not examined", error=str(error))
            await self._clock.sleep(self._times.sweep)

    async def _sweep(self, known: dict[str, _Observed]) -> dict[str, _Observed]:
        found: dict[str, _Observed] = {}
        for lease in (await self._client.list(LEASES, self._namespace, label_selector=LEASES_OF_REQUESTS)).items:
            name = lease["metadata"]["name"]
            found[name] = observed = self._observe(lease, known.get(name))
            age = self._clock.monotonic() - observed.since
            record = read_record(lease)
            kept = max(self._times.lease, self._times.remembered if record and record.state == "unsent" else 0.0)
            if name.removeprefix(f"{self._prefix}-") not in self._turns and age >= kept:
                await self._collect(lease)
        return found

    async def _collect(self, lease: Json) -> None:
        """Ends the request of a server that died. A failure must not keep others from being ended."""
        try:
            held = await self._take(lease)
            if held is not None:
                await held.delete()
        except FAILURES as error:
            log.warning("request of another server not ended", lease=lease["metadata"]["name"], error=str(error))

    async def _take(self, lease: Json) -> HeldLease | None:
        """Takes a Lease over and ends its request; None if another server was first."""
        record = read_record(lease) or Record("", "", "", "")
        lease = {**lease, "spec": {**spec_of(lease), "holderIdentity": self._identity}}
        held = HeldLease(self._client, self._clock, self._times, lease, record)
        held.own = ""
        try:
            await held.write(record)
        except (ConflictError, NotFoundError):
            return None
        if record.state == "open" and record.request:
            await self._cleaner.undo(record.key, record.request)
        await self._cleaner.delete_pods(record.key, record.deleted)
        log.info("request of another server ended", job=f"{record.namespace}/{record.job}", state=record.state)
        self._metrics.requests_recovered.labels(record.state).inc()
        return held

    def _observe(self, lease: Json, before: _Observed | None) -> _Observed:
        version = lease["metadata"]["resourceVersion"]
        if before is not None and before.version == version:
            return before
        return _Observed(version, self._clock.monotonic())

    def _is_free(self, lease: Json, observed: _Observed, request: str) -> bool:
        """Whether nobody works under this Lease. `request` is our own: an attempt to create it may have succeeded."""
        record = read_record(lease)
        if record is not None and (record.state == "unsent" or record.request == request):
            return True
        return self._clock.monotonic() - observed.since >= self._times.lease

    async def _read(self, name: str) -> Json | None:
        try:
            return await persist(lambda: self._client.get(LEASES, name, self._namespace), self._clock)
        except NotFoundError:
            return None

    def _name(self, uid: str) -> str:
        return f"{self._prefix}-{uid}"

    def _new_lease(self, record: Record) -> Json:
        now = micro_timestamp(self._clock.now())
        seconds = max(1, round(self._times.lease))
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": seconds, "acquireTime": now, "renewTime": now}
        metadata = {
            "name": self._name(record.uid),
            "namespace": self._namespace,
            "labels": {CONTROLLER_NAME: DI_SERVER},
            "annotations": {JOURNAL: encode(record).decode()},
        }
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
