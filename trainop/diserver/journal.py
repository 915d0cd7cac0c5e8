"""One request at a time for each job, over all servers, and a record of it that survives the server.

A request that changes pods holds a Lease, named by the UID of its job. It is created before the first pod and deleted
when the client has the answer. Its record contains what another server needs if this one dies: the request whose pods
are to be deleted, or once it is decided, which pods remain to be deleted, and the answer. A client that did not get its
answer and repeats the request soon gets the same answer instead of more pods
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
from trainop.diserver.replies import Answer, Refusal
from trainop.diserver.retries import FAILURES, persist
from trainop.kinds.dijob.names import CONTROLLER_NAME, DI_SERVER, JOURNAL, LEASES_OF_REQUESTS
from trainop.runtime.client.client import Client
from trainop.runtime.clock import Clock, micro_timestamp, read_time
from trainop.runtime.errors import AlreadyExistsError, ConflictError, NotFoundError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import LEASES

MAX_RECORD = 200_000
"""Bytes of a record; an annotation may have 256 KiB. A longer record is kept without its answer and deletions."""

log = structlog.get_logger(__name__)


class Times(NamedTuple):
    """Seconds."""

    lease: float = 10.0
    """A Lease that nobody renews for so long belongs to a server that died."""
    renew: float = 3.0
    wait: float = 40.0
    """For the end of another request for the same job."""
    sweep: float = 5.0
    """Between two searches for Leases of servers that died."""
    remembered: float = 10.0
    """For which an answer that was not delivered is kept."""


class JobKey(NamedTuple):
    """A job, by all its names."""

    namespace: str
    name: str
    uid: str


class Past(msgspec.Struct, frozen=True):
    """The answer of an earlier request for the job, which its client did not get."""

    digest: str
    at: str
    """When it was recorded."""
    status: int
    body: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one request."""

    request: str
    namespace: str
    job: str
    uid: str
    digest: str = ""
    """Of method, path, caller and body."""
    state: str = "open"
    """`open` while pods are created; `decided` when they all exist; `unsent` if the client did not get the answer."""
    delete: Sequence[str] = ()
    """Pods that are to be deleted once it is decided."""
    status: int = 0
    body: str = ""
    earlier: Sequence[Past] = ()

    @property
    def key(self) -> JobKey:
        return JobKey(self.namespace, self.job, self.uid)

    @property
    def answer(self) -> Answer | None:
        return Answer(self.status, self.body.encode()) if self.status else None


class Repairs(Protocol):
    """What ends the request of a server that died."""

    async def undo(self, job: JobKey, request: str) -> None:
        """Deletes the pods of the request."""
        ...

    async def delete_pods(self, namespace: str, names: Sequence[str]) -> None:
        """Deletes the pods."""
        ...


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Held:
    """The right to change the pods of one job, until the end of `Journal.hold`."""

    def __init__(self, client: Client, clock: Clock, times: Times, lease: Json, record: Record) -> None:
        self._client = client
        self._clock = clock
        self._times = times
        self._lease = lease
        self.writing = asyncio.Lock()
        self._renewed = clock.monotonic()
        self.record = record
        self.unfinished = False
        """Pods may exist that must not, or remain to be deleted: the Lease is left to the sweep."""
        self.sent = False
        """The client has the answer."""

    def check(self) -> None:
        """Raises `Refusal` if another server may have taken over. To be called before each write."""
        if self._clock.monotonic() > self._renewed + 0.8 * self._times.lease:
            raise Refusal(500, "the lease of the job was lost")

    async def decide(self, answer: Answer, delete: Sequence[str] = ()) -> None:
        """Records that all pods exist. From here on the request is completed and no longer undone."""
        body = answer.body.decode()
        decided = {"state": "decided", "delete": delete, "status": answer.status, "body": body}
        record = _fit(msgspec.structs.replace(self.record, **decided))
        if len(_encode(record)) > MAX_RECORD:
            record = msgspec.structs.replace(self.record, state="decided", earlier=())
        await persist(lambda: self.write(record), self._clock)

    async def write(self, record: Record) -> None:
        """Writes the record, and so renews the Lease. Raises `ConflictError` if another server has taken over."""
        async with self.writing:
            sent = self._clock.monotonic()
            renewed = {**self._lease["spec"], "renewTime": micro_timestamp(self._clock.now())}
            metadata = {**self._lease["metadata"], "annotations": {JOURNAL: _encode(record).decode()}}
            lease = {**self._lease, "metadata": metadata, "spec": renewed}
            self._lease = await self._client.replace(LEASES, lease)
            self.record, self._renewed = record, sent

    async def keep(self) -> None:
        """Renews the Lease until cancelled."""
        while True:
            await self._clock.sleep(self._times.renew)
            with suppress(*FAILURES):
                await self.write(self.record)

    async def end(self) -> None:
        """Gives the right up. Failures are only logged: the sweep does the rest."""
        if self.unfinished:
            return
        try:
            if self.record.answer is not None and not self.sent:
                await self.write(msgspec.structs.replace(self.record, state="unsent"))
            elif self.record.earlier:
                none = {"state": "unsent", "digest": "", "delete": (), "status": 0, "body": ""}
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
    version: str
    since: float


class Journal:
    """The Leases of all requests in progress, in one namespace."""

    def __init__(
        self,
        client: Client,
        repairs: Repairs,
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
        self._repairs = repairs
        self._clock = clock
        self._namespace = namespace
        self._prefix = prefix
        self._identity = identity
        self._times = times
        self._metrics = metrics
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, job: JobKey, digest: str) -> AsyncIterator[Held]:
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

    async def _acquire(self, job: JobKey, digest: str, arrived: datetime) -> Held:
        deadline, delay = self._clock.monotonic() + self._times.wait, 0.02
        record = Record(uuid.uuid4().hex, *job, digest)
        observed: _Observed | None = None
        while True:
            try:
                lease = await persist(lambda: self._client.create(LEASES, self._new_lease(record)), self._clock)
                return Held(self._client, self._clock, self._times, lease, record)
            except AlreadyExistsError:
                found = await self._read(self._name(job.uid))
            if found is not None:
                observed = self._observe(found, observed)
                if self._is_free(found, observed, record.request) and (held := await self._take(found)):
                    past = _undelivered(held.record, found, arrived, self._times.remembered)
                    mine = next((each for each in past if each.digest == digest), None)
                    others = [each for each in past if each is not mine]
                    known = {}
                    if mine is not None:
                        self._metrics.answers_repeated.inc()
                        known = {"state": "decided", "status": mine.status, "body": mine.body}
                    await held.write(_fit(msgspec.structs.replace(record, earlier=others, **known)))
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
            record = _read_record(lease)
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

    async def _take(self, lease: Json) -> Held | None:
        """Takes a Lease over and ends its request; None if another server was first."""
        record = _read_record(lease) or Record("", "", "", "")
        lease = {**lease, "spec": {**_spec_of(lease), "holderIdentity": self._identity}}
        held = Held(self._client, self._clock, self._times, lease, record)
        try:
            await held.write(record)
        except (ConflictError, NotFoundError):
            return None
        if record.state == "open" and record.request:
            await self._repairs.undo(record.key, record.request)
        await self._repairs.delete_pods(record.namespace, record.delete)
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
        record = _read_record(lease)
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
            "annotations": {JOURNAL: _encode(record).decode()},
        }
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def _fit(record: Record) -> Record:
    """The record without as many of the earliest answers as are too much for an annotation."""
    while record.earlier and len(_encode(record)) > MAX_RECORD:
        record = msgspec.structs.replace(record, earlier=record.earlier[:-1])
    return record


def _undelivered(record: Record, lease: Json, now: datetime, remembered: float) -> list[Past]:
    """The answers that their clients did not get, and may still ask for within `remembered` seconds."""
    written = str(_spec_of(lease).get("renewTime"))
    last = [Past(record.digest, written, record.status, record.body)] if record.answer is not None else []
    found = []
    for past in (*last, *record.earlier):
        at = read_time(past.at)
        if at is not None and (now - at).total_seconds() < remembered:
            found.append(past)
    return found


def _read_record(lease: Json) -> Record | None:
    try:
        return _decode((lease["metadata"].get("annotations") or {}).get(JOURNAL, ""))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _spec_of(lease: Json) -> Json:
    """Its spec, which a Lease that somebody else made may lack."""
    return lease.get("spec") or {}
