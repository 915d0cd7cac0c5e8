"""Leader election by Leases, with fencing: a process that may have lost the lead sends no write any more.

Numbers, records and order of requests are those of client-go `tools/leaderelection`; different are that all deadlines
count from the last renewal on the monotonic clock, that several leases can be held together, that writes are refused
once the renew deadline has passed, and that a lease is given back only after all work has ended.

`LeaderElector.gate` is asked in the step that hands a write to the kernel, after all waiting, and again for each piece
of a large body and each copy of a write. What this cannot prevent: a write that was handed over before the deadline
may arrive later. The kernel repeats it for up to 30 s while the network is down, up to 128 KiB may wait in the process
for room in the socket buffer and follow when it is continued, and the API server may hold a request in its queues and
webhooks until the request's `timeout` (30 s). Such a late write is harmless only by its content: names that are the
same for every leader, `resourceVersion` in updates, UIDs in deletions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec
import structlog

from trainop.runtime.clock import Clock, SystemClock, micro_timestamp
from trainop.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    LeadershipLostError,
    NotFoundError,
    NotLeaderError,
    UnhealthyError,
)
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import Json, ObjectReference
from trainop.runtime.objects.resource import LEASES, Resource

CALL_TIMEOUT = 5.0
"""Seconds for one request, or less if the renew deadline comes earlier."""

ACQUIRE_JITTER = 1.2
UNHEALTHY_AFTER = 20.0
"""Seconds beyond the lease's duration without a renewal after which a leader is not alive."""

FAILURES = (ApiError, ConnectionError, TimeoutError)
MAX_INT32 = 2**31 - 1

log = structlog.get_logger(__name__)


class LeaseClient(Protocol):
    """The part of `Client` that election uses; it must not be the one that the gate guards."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json: ...
    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json: ...
    async def replace(self, resource: Resource, body: Json) -> Json: ...


class Announcer(Protocol):
    """The part of `Recorder` that election uses."""

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: how long a lease lasts for others, how long its holder trusts its last renewal, how often it renews."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if self.lease <= self.renew:
            raise ValueError("the lease duration has to be longer than the renew deadline")
        if self.renew <= ACQUIRE_JITTER * self.retry:
            raise ValueError(f"the renew deadline has to be longer than {ACQUIRE_JITTER} times the retry period")


_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]


class _Identity(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    resource_version: Annotated[str, msgspec.Meta(min_length=1)]


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: _Count | None = None
    lease_transitions: _Count | None = None


class _Lease(msgspec.Struct):
    """What every answer about a Lease has."""

    metadata: _Identity
    spec: _Spec | None = None


class _Lock:
    """One Lease, as last seen and as held. A record is judged by how long ago, here, it last changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease: Json | None = None
        self.changed_at = 0.0
        self.renewed_at: float | None = None
        """When the last renewal that succeeded was sent; None if it is not held."""

    @property
    def held(self) -> bool:
        return self.renewed_at is not None

    @property
    def vacant(self) -> bool:
        """The lease was taken from us without another holder, as far as was seen: anybody may take it at any time."""
        return self.held and not self.holder

    @property
    def spec(self) -> Json:
        return (self.lease or {}).get("spec") or {}

    @property
    def holder(self) -> str:
        return self.spec.get("holderIdentity") or ""

    def see(self, lease: Json, now: float) -> None:
        """Raises `ConnectionError` if that is not our Lease, as from a server that lies: it says nothing about it."""
        try:
            named = msgspec.convert(lease, _Lease).metadata.name
        except msgspec.ValidationError as error:
            raise ConnectionError(f"the answer is not a Lease: {error}") from error
        if named != self.name:
            raise ConnectionError(f"the answer is about another Lease: {named[:64]!r}")
        if self.lease is None or (lease.get("spec") or {}) != self.spec:
            self.changed_at = now
        self.lease = lease

    def expired(self, now: float) -> bool:
        return now >= self.changed_at + float(self.spec.get("leaseDurationSeconds") or 0)


class LeaderElector:
    """Leads while it holds the Leases of all `names` in one namespace; `identity` tells replicas apart."""

    def __init__(
        self,
        client: LeaseClient,
        namespace: str,
        names: Iterable[str],
        identity: str,
        *,
        timing: Timing | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: Metrics | None = None,
        recorder: Announcer | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._timing = timing or Timing()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._metrics = metrics or Metrics()
        self._recorder = recorder
        # All replicas take them in the same order, so that two cannot hold one each for ever.
        self._locks = [_Lock(name) for name in sorted(set(names))]
        if not self._locks:
            raise ValueError("leader election needs the name of a lease")
        for lock in self._locks:
            self._metrics.leader.labels(lock.name).set(0)
            self._metrics.leader_slow_path.labels(lock.name)
        self._leading = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self._leading.is_set()

    async def wait_leading(self) -> None:
        await self._leading.wait()

    def gate(self) -> None:
        """For the client of everything that only the leader may write: raises `NotLeaderError` once another may lead,
        also after the process stood still. Writes of the Lease itself must not go through it."""
        if not self.leading:
            raise NotLeaderError("this process does not lead")
        if any(lock.vacant for lock in self._locks):
            raise NotLeaderError("the lease was deleted or emptied and is not held again yet")
        if self._clock.monotonic() > self._deadline():
            raise NotLeaderError("the lease was not renewed in time")

    def check(self) -> None:
        """Liveness: raises `UnhealthyError` if this process leads and has not renewed for far too long."""
        if not self.leading:
            return
        silence = self._clock.monotonic() - min(lock.renewed_at or 0.0 for lock in self._locks)
        if silence > self._timing.lease + UNHEALTHY_AFTER:
            raise UnhealthyError(f"failed election to renew leadership for {silence:.0f} s")

    async def run(self) -> None:
        """Takes the leases and keeps them until cancelled; raises `LeadershipLostError` when one is lost."""
        try:
            while True:
                await self._renew_held()
                await self._acquire_missing()
                await self._clock.sleep(self._pause())
        finally:
            self._stop_leading()

    async def release(self) -> None:
        """Gives back what is held; to be called when all work has ended. Failures are logged: leases expire."""
        self._stop_leading()
        for lock in reversed(self._locks):
            if lock.held:
                await self._give_back(lock)

    # Holding ----------------------------------------------------------------------------------------------------------

    async def _renew_held(self) -> None:
        self._check_deadline()
        async with asyncio.TaskGroup() as tasks:
            for lock in self._locks:
                if lock.held:
                    tasks.create_task(self._renew(lock))
        for lock in self._locks:
            if lock.held and lock.holder not in ("", self._identity):
                self._lose(lock, f"{lock.holder} holds it")

    async def _renew(self, lock: _Lock) -> None:
        try:
            async with asyncio.timeout(min(CALL_TIMEOUT, self._time_left(lock))):
                await self._write_or_reread(lock)
        except FAILURES as error:
            log.warning("lease not renewed", lease=lock.name, error=f"{type(error).__name__}: {error}")

    async def _write_or_reread(self, lock: _Lock) -> None:
        """The fast path is a write over what was written last; if that fails, a look at what is there now."""
        sent = self._clock.monotonic()
        try:
            await self._write(lock, sent)
        except ApiError:
            self._metrics.leader_slow_path.labels(lock.name).inc()
            await self._read(lock)
            if lock.holder in ("", self._identity):
                await self._write(lock, sent)

    def _time_left(self, lock: _Lock) -> float:
        return (lock.renewed_at or 0.0) + self._timing.renew - self._clock.monotonic()

    def _deadline(self) -> float:
        return min((lock.renewed_at for lock in self._locks if lock.renewed_at is not None), default=0.0) + (
            self._timing.renew
        )

    def _check_deadline(self) -> None:
        for lock in self._locks:
            if lock.held and self._time_left(lock) <= 0:
                self._lose(lock, f"not renewed for {self._timing.renew:g} s")

    def _lose(self, lock: _Lock, why: str) -> None:
        lock.renewed_at = None
        raise LeadershipLostError(f"leader election lost: lease {self._namespace}/{lock.name}: {why}")

    # Acquiring --------------------------------------------------------------------------------------------------------

    async def _acquire_missing(self) -> None:
        """The next only while all before it are held."""
        for lock in self._locks:
            if not lock.held and not await self._try_acquire(lock):
                return
        if not self.leading:
            self._start_leading()

    async def _try_acquire(self, lock: _Lock) -> bool:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await self._read(lock)
                now = self._clock.monotonic()
                if lock.holder and lock.holder != self._identity and not lock.expired(now):
                    return False
                await self._write(lock, now)
        except FAILURES as error:
            log.warning("lease not acquired", lease=lock.name, error=f"{type(error).__name__}: {error}")
            return False
        log.info("lease acquired", lease=lock.name, identity=self._identity)
        return True

    async def _read(self, lock: _Lock) -> None:
        try:
            lease = await self._client.get(LEASES, lock.name, self._namespace)
        except NotFoundError:
            lock.lease = None
            return
        lock.see(lease, self._clock.monotonic())

    async def _write(self, lock: _Lock, sent: float) -> None:
        """Makes us the holder, or renews; raises `ConflictError` or `AlreadyExistsError` if somebody was faster."""
        spec = self._next_spec(lock)
        if lock.lease is None:
            metadata = {"name": lock.name, "namespace": self._namespace}
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            lease = await self._client.create(LEASES, body, namespace=self._namespace)
        else:
            lease = await self._client.replace(LEASES, {**lock.lease, "spec": spec})
        lock.see(lease, self._clock.monotonic())
        lock.renewed_at = sent

    def _next_spec(self, lock: _Lock) -> Json:
        now = micro_timestamp(self._clock.now())
        before = lock.spec
        ours = lock.holder == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        if lock.lease is not None and not ours:
            transitions += 1
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._timing.lease),
            "acquireTime": before.get("acquireTime") if ours else now,
            "renewTime": now,
            "leaseTransitions": min(transitions, MAX_INT32),
        }

    # Both -------------------------------------------------------------------------------------------------------------

    def _pause(self) -> float:
        if not self.leading:
            return self._timing.retry * (1 + self._rng.uniform(0, ACQUIRE_JITTER))
        return max(0.0, min(self._timing.retry, self._deadline() - self._clock.monotonic()))

    def _start_leading(self) -> None:
        self._leading.set()
        log.info("leading", leases=[lock.name for lock in self._locks], identity=self._identity)
        for lock in self._locks:
            self._metrics.leader.labels(lock.name).set(1)
            self._announce(lock, "became leader")

    def _stop_leading(self) -> None:
        if not self.leading:
            return
        self._leading.clear()
        for lock in self._locks:
            self._metrics.leader.labels(lock.name).set(0)
            self._announce(lock, "stopped leading")

    def _announce(self, lock: _Lock, what: str) -> None:
        if self._recorder is None:
            return
        metadata = (lock.lease or {}).get("metadata") or {}
        about = ObjectReference(
            LEASES.api_version, LEASES.kind, self._namespace, lock.name, str(metadata.get("uid") or "")
        )
        self._recorder.event(about, "Normal", "LeaderElection", f"{self._identity} {what}")

    async def _give_back(self, lock: _Lock) -> None:
        try:
            async with asyncio.timeout(max(0.0, min(CALL_TIMEOUT, self._time_left(lock)))):
                while not await self._try_give_back(lock):
                    await self._clock.sleep(0.1)
        except FAILURES as error:
            log.warning("lease not released", lease=lock.name, error=f"{type(error).__name__}: {error}")
        finally:
            lock.renewed_at = None

    async def _try_give_back(self, lock: _Lock) -> bool:
        """False if somebody wrote at the same time."""
        await self._read(lock)
        if lock.lease is None or lock.holder != self._identity:
            return True
        now = micro_timestamp(self._clock.now())
        released = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
        try:
            await self._client.replace(LEASES, {**lock.lease, "spec": {**lock.spec, **released}})
        except (ConflictError, AlreadyExistsError):
            return False
        log.info("lease released", lease=lock.name)
        return True
