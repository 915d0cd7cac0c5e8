"""Leader election with Leases, and fencing: a process that may have lost leadership sends no more writes.

The durations, Lease records and the order of requests are those of client-go `tools/leaderelection`. Differences: all
deadlines are measured from the last renewal on the monotonic clock; several Leases can be held together; writes are
rejected once the renew deadline has passed; a Lease is released only after all work has ended; a standby looks at it
more often.

`LeaderElector.gate` is called immediately before a write is passed to the kernel, after all waiting, and again for each
chunk of a large body and each retry of a write. It cannot prevent that a write which was passed on before the deadline
arrives later: the kernel retransmits for up to 30 s while the network is down; up to 128 KiB may wait in the process
for space in the socket buffer, and are sent when a suspended process is resumed; the API server may hold a request in
its queues and webhooks until the request's `timeout` (30 s). Such a late write does no harm only if its content is
safe: deterministic names, `resourceVersion` in updates, UID preconditions in deletions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

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
    describe,
)
from trainop.runtime.manager.lease import MAX_INT32, Lock
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import LEASES, Json, ObjectReference, Resource

CALL_TIMEOUT = 5.0
"""Timeout of one request in seconds; shorter if the renew deadline is earlier."""

ACQUIRE_JITTER = 1.2
"""`JitterFactor` of client-go: after a failed request, a standby waits `retry` to 2.2 times `retry` seconds."""

STANDBY_PAUSE = 0.8
"""The longest pause in seconds of a standby that sees the lease held by another. It finds a lease that was released
within that time; with client-go's pause, an upgrade leaves the jobs without an operator for up to 4.4 s."""

UNHEALTHY_MARGIN = 20.0
"""Seconds. Liveness fails if a leader has not renewed for the lease duration plus this."""

TRANSIENT_ERRORS = (ApiError, ConnectionError, TimeoutError)
log = structlog.get_logger(__name__)


class LeaseClient(Protocol):
    """The part of `Client` that leader election uses. It must not be subject to `LeaderElector.gate`."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json: ...
    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json: ...
    async def replace(self, resource: Resource, body: Json) -> Json: ...


class Announcer(Protocol):
    """The part of `Recorder` that leader election uses."""

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """`LeaseDuration`, `RenewDeadline` and `RetryPeriod` of client-go, in seconds.

    Other replicas may take a lease that has not changed for `lease`. The holder stops leading if it could not renew
    within `renew`. It renews every `retry`. Raises `ValueError` if they contradict each other.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if self.lease <= self.renew:
            raise ValueError("the lease duration has to be longer than the renew deadline")
        if self.renew <= ACQUIRE_JITTER * self.retry:
            raise ValueError(f"the renew deadline has to be longer than {ACQUIRE_JITTER} times the retry period")


class LeaderElector:
    """Is leader while it holds the Leases of all `names` in `namespace`. `identity` must be unique per replica.

    A runnable of the manager. With a `recorder`, changes of leadership are recorded as events of the Leases.
    """

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
        # All replicas acquire them in the same order, to avoid a deadlock between two replicas that hold one each.
        self._locks = [Lock(name) for name in sorted(set(names))]
        if not self._locks:
            raise ValueError("leader election needs the name of a lease")
        for lock in self._locks:
            self._metrics.leader.labels(lock.name).set(0)
            self._metrics.leader_slow_path.labels(lock.name)
        self._leading = asyncio.Event()
        self._failing = False
        """Whether the last attempt to acquire a lease failed for another reason than its holder."""

    @property
    def leading(self) -> bool:
        return self._leading.is_set()

    async def wait_leading(self) -> None:
        """Returns once this process is leader."""
        await self._leading.wait()

    def gate(self) -> None:
        """Raises `NotLeaderError` if another process may be leader, also after this process was suspended.

        For the client of all writes that only the leader may make, but not for writes of the Lease itself.
        """
        if not self.leading:
            raise NotLeaderError("this process does not lead")
        if any(lock.vacant for lock in self._locks):
            raise NotLeaderError("the lease was deleted or emptied and is not held again yet")
        if self._clock.monotonic() > self._deadline():
            raise NotLeaderError("the lease was not renewed in time")

    def check(self) -> None:
        """Liveness check: raises `UnhealthyError` if this leader has not renewed for `lease` + 20 s."""
        if not self.leading:
            return
        elapsed = self._clock.monotonic() - min(lock.renewed_at or 0.0 for lock in self._locks)
        if elapsed > self._timing.lease + UNHEALTHY_MARGIN:
            raise UnhealthyError(f"failed election to renew leadership for {elapsed:.0f} s")

    async def run(self) -> None:
        """Acquires and renews the leases until cancelled. Raises `LeadershipLostError` if one is lost."""
        try:
            while True:
                await self._renew_held()
                await self._acquire_missing()
                await self._clock.sleep(self._pause())
        finally:
            self._stop_leading()

    async def release(self) -> None:
        """Releases all held leases. To be called after all work has ended.

        Failures are only logged, because leases expire.
        """
        self._stop_leading()
        for lock in reversed(self._locks):
            if lock.held:
                await self._release_lock(lock)

    # Renewing ---------------------------------------------------------------------------------------------------------

    async def _renew_held(self) -> None:
        self._check_deadline()
        async with asyncio.TaskGroup() as tasks:
            for lock in self._locks:
                if lock.held:
                    tasks.create_task(self._renew(lock))
        for lock in self._locks:
            if lock.held and lock.holder not in ("", self._identity):
                self._lose(lock, f"{lock.holder} holds it")

    async def _renew(self, lock: Lock) -> None:
        try:
            async with asyncio.timeout(min(CALL_TIMEOUT, self._time_left(lock))):
                await self._write_or_refresh(lock)
        except TRANSIENT_ERRORS as error:
            log.warning("lease not renewed", lease=lock.name, error=describe(error))

    async def _write_or_refresh(self, lock: Lock) -> None:
        """Replaces the record last written (fast path). If that fails, reads the record and writes again."""
        sent = self._clock.monotonic()
        try:
            await self._write(lock, sent)
        except ApiError:
            self._metrics.leader_slow_path.labels(lock.name).inc()
            await self._read(lock)
            if lock.holder in ("", self._identity):
                await self._write(lock, sent)

    def _time_left(self, lock: Lock) -> float:
        return (lock.renewed_at or 0.0) + self._timing.renew - self._clock.monotonic()

    def _deadline(self) -> float:
        return min((lock.renewed_at for lock in self._locks if lock.renewed_at is not None), default=0.0) + (
            self._timing.renew
        )

    def _check_deadline(self) -> None:
        for lock in self._locks:
            if lock.held and self._time_left(lock) <= 0:
                self._lose(lock, f"not renewed for {self._timing.renew:g} s")

    def _lose(self, lock: Lock, why: str) -> None:
        lock.renewed_at = None
        raise LeadershipLostError(f"leader election lost: lease {self._namespace}/{lock.name}: {why}")

    # Acquiring --------------------------------------------------------------------------------------------------------

    async def _acquire_missing(self) -> None:
        """Acquires in order: a Lease is attempted only while all before it are held."""
        self._failing = False
        for lock in self._locks:
            if not lock.held and not await self._try_acquire(lock):
                return
        if not self.leading:
            self._start_leading()

    async def _try_acquire(self, lock: Lock) -> bool:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await self._read(lock)
                now = self._clock.monotonic()
                if lock.holder and lock.holder != self._identity and not lock.expired(now):
                    return False
                await self._write(lock, now)
        except TRANSIENT_ERRORS as error:
            log.warning("lease not acquired", lease=lock.name, error=describe(error))
            self._failing = True
            return False
        log.info("lease acquired", lease=lock.name, identity=self._identity)
        return True

    async def _read(self, lock: Lock) -> None:
        try:
            lease = await self._client.get(LEASES, lock.name, self._namespace)
        except NotFoundError:
            lock.lease = None
            return
        lock.observe(lease, self._clock.monotonic())

    async def _write(self, lock: Lock, sent: float) -> None:
        """Acquires or renews. Raises `ConflictError` or `AlreadyExistsError` if another writer was first."""
        spec = self._next_spec(lock)
        if lock.lease is None:
            metadata = {"name": lock.name, "namespace": self._namespace}
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            lease = await self._client.create(LEASES, body, namespace=self._namespace)
        else:
            lease = await self._client.replace(LEASES, {**lock.lease, "spec": spec})
        lock.observe(lease, self._clock.monotonic())
        lock.renewed_at = sent

    def _next_spec(self, lock: Lock) -> Json:
        now = micro_timestamp(self._clock.now())
        before = lock.spec
        held_by_us = lock.holder == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        if lock.lease is not None and not held_by_us:
            transitions += 1
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._timing.lease),
            "acquireTime": before.get("acquireTime") if held_by_us else now,
            "renewTime": now,
            "leaseTransitions": min(transitions, MAX_INT32),
        }

    # Transitions ------------------------------------------------------------------------------------------------------

    def _pause(self) -> float:
        if self._failing:
            return self._timing.retry * (1 + self._rng.uniform(0, ACQUIRE_JITTER))
        if not self.leading:
            return min(STANDBY_PAUSE, self._timing.retry) * self._rng.uniform(0.5, 1)
        return max(0.0, min(self._timing.retry, self._deadline() - self._clock.monotonic()))

    def _start_leading(self) -> None:
        self._leading.set()
        log.info("became leader", leases=[lock.name for lock in self._locks], identity=self._identity)
        for lock in self._locks:
            self._metrics.leader.labels(lock.name).set(1)
            self._record_event(lock, "became leader")

    def _stop_leading(self) -> None:
        if not self.leading:
            return
        self._leading.clear()
        for lock in self._locks:
            self._metrics.leader.labels(lock.name).set(0)
            self._record_event(lock, "stopped leading")

    def _record_event(self, lock: Lock, what: str) -> None:
        if self._recorder is None:
            return
        metadata = (lock.lease or {}).get("metadata") or {}
        uid = str(metadata.get("uid") or "")
        about = ObjectReference(LEASES.api_version, LEASES.kind, self._namespace, lock.name, uid)
        self._recorder.event(about, "Normal", "LeaderElection", f"{self._identity} {what}")

    async def _release_lock(self, lock: Lock) -> None:
        try:
            async with asyncio.timeout(max(0.0, min(CALL_TIMEOUT, self._time_left(lock)))):
                while not await self._try_release_lock(lock):
                    await self._clock.sleep(0.1)
        except TRANSIENT_ERRORS as error:
            log.warning("lease not released", lease=lock.name, error=describe(error))
        finally:
            lock.renewed_at = None

    async def _try_release_lock(self, lock: Lock) -> bool:
        """Returns False after a conflict with another writer."""
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
