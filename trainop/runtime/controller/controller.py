"""Workers that take keys from a queue and have them reconciled, and what becomes of each result.

`run` works until `shutdown`, after which it finishes what it has begun; cancelling it cancels the reconciles at once.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import structlog
from structlog.contextvars import bind_contextvars

from trainop.runtime.cache.informer import Handler
from trainop.runtime.client.recovery import Recovery
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.enqueue import Enqueue, Mapper, Pace, Predicate
from trainop.runtime.controller.ratelimit import ExponentialLimiter, RateLimiter, RetryLimiter
from trainop.runtime.controller.reconcile import Reconciler, Result
from trainop.runtime.controller.workqueue import QueueShutDownError, WorkQueue
from trainop.runtime.errors import ApiError, ReconcileError, TerminalError
from trainop.runtime.metrics.metrics import ControllerMetrics, Metrics
from trainop.runtime.objects.metadata import HasMetadata, Key
from trainop.runtime.texts import cut, join_some

T = TypeVar("T", bound=HasMetadata)
T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)

EXPECTED = (ApiError, ConnectionError, TimeoutError, ReconcileError)
"""What any reconcile may run into: one line in the log, no traceback. Everything else is a bug."""

STUCK_AFTER = 10.0
"""Seconds that a reconcile has to end once it was cancelled."""

MAX_OUTAGE = 60.0
OUTAGE_RETRY = 2.0
"""Seconds until the next try of a reconcile that failed while no server answered: that says nothing about its object,
so no back-off grows by it, and all is tried soon once the server is back."""
OUTAGE_POLL = 0.1
"""Seconds for which a reconcile waits for its sources in an outage, and between looks."""

log = structlog.get_logger(__name__)


class Source(Protocol[T_co]):
    """The part of an informer that a controller uses."""

    def add_handler(self, handler: Handler[T_co]) -> None: ...

    async def wait_synced(self) -> None: ...

    @property
    def current(self) -> bool:
        """False in an outage, and after it until the store is known to hold."""
        ...


class Controller:
    """`name` labels metrics and logs. Log lines of a reconcile carry `controller`, `namespace`, `name` and
    `reconcile_id`, those of the reconciler too, by way of structlog's context variables.

    With the client's `recovery` an outage lets no back-off grow. `due` answers the seconds until an object has to be
    looked at in any case, such as a deadline of its own: no back-off is waited for beyond that."""

    def __init__(
        self,
        name: str,
        reconciler: Reconciler,
        *,
        workers: int = 1,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: Metrics | None = None,
        limiter: RateLimiter[Key] | None = None,
        reconcile_timeout: float = 120.0,
        group: str = "",
        kind: str = "",
        recovery: Recovery | None = None,
        due: Callable[[Key], float | None] | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name} needs at least one worker, not {workers}")
        self.name = name
        self.group = group
        self.kind = kind
        self.shutting_down = asyncio.Event()
        """For long reconciles: no new work, finish soon."""
        self._reconciler = reconciler
        self._workers = workers
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # jitter and names of log lines, no secrets
        self._timeout = reconcile_timeout
        self._recovery = recovery
        self._due = due
        metrics = metrics or Metrics()
        self._metrics: ControllerMetrics = metrics.controller(name)
        self._metrics.max_concurrent.set(workers)
        self.queue: WorkQueue[Key] = WorkQueue(
            name, self._clock, limiter or RetryLimiter(self._clock, self._rng), metrics.queue(name)
        )
        # A conflict is no failure, so it waits for no token; but a writer that always loses must not spin.
        self._conflicts: ExponentialLimiter[Key] = ExponentialLimiter(self._clock, self._rng, cap=0.25)
        self._sources: list[Source[HasMetadata]] = []

    def watch(self, source: Source[T], mapper: Mapper[T], *predicates: Predicate, pace: Pace | None = None) -> None:
        """Every event of the source that passes all predicates adds the keys that the mapper names."""
        source.add_handler(Enqueue(self.queue, mapper, predicates, pace))
        self._sources.append(source)

    async def run(self) -> None:
        """Waits for the sources, then works. Sources of kinds that are not installed keep only this controller
        waiting, unless they are optional."""
        async with asyncio.TaskGroup() as tasks:
            syncing = tasks.create_task(self._wait_for_sources())
            stopping = tasks.create_task(self.shutting_down.wait())
            await asyncio.wait((syncing, stopping), return_when=asyncio.FIRST_COMPLETED)
            syncing.cancel()
            stopping.cancel()
        if self.shutting_down.is_set():
            return
        log.info("controller started", controller=self.name, workers=self._workers)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"{self.name}-{number}")

    def shutdown(self) -> None:
        """No key is begun any more; `run` returns when the running reconciles have ended."""
        self.shutting_down.set()
        self.queue.shutdown()

    async def _wait_for_sources(self) -> None:
        for source in self._sources:
            await source.wait_synced()

    async def _may_begin(self) -> bool:
        """In an outage the next look at the caches can wait: the server may come back from a backup, and what one kind
        showed before does not go with what another shows then. Not for ever, since some kinds may stay away alone.
        False if the controller is shut down meanwhile."""
        until = self._clock.monotonic() + MAX_OUTAGE
        while not all(source.current for source in self._sources):
            if self.shutting_down.is_set():
                return False
            if self._clock.monotonic() >= until:
                break
            await self._clock.sleep(OUTAGE_POLL)
        return True

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueShutDownError:
                return
            try:
                if not await self._may_begin():
                    return
                with self._measured():
                    await self._reconcile_apart(key)
            finally:
                self.queue.done(key)

    async def _reconcile_apart(self, key: Key) -> None:
        """In a task of its own: a `TaskGroup` that fails may leave its task marked as being cancelled (CPython before
        3.13), which a worker must not take for its own end."""
        try:
            await asyncio.create_task(self._reconcile(key))
        except asyncio.CancelledError:
            if not _is_being_cancelled():
                self._retry(key, RuntimeError("the reconcile awaited something that was cancelled"))
        if _is_being_cancelled():  # whether the reconcile has obeyed or not
            raise asyncio.CancelledError

    async def _reconcile(self, key: Key) -> None:
        bind_contextvars(**self._log_keys(key))  # as long as this task lives
        try:
            result = await self._reconcile_in_time(key)
        except TerminalError as error:
            self._give_up(key, error)
        # The one place where any exception is caught: a bug in one reconcile must not end the others.
        except Exception as error:  # noqa: BLE001
            self._retry(key, error)
        else:
            self._follow(key, result)

    async def _reconcile_in_time(self, key: Key) -> Result:
        loop = asyncio.get_running_loop()
        stuck = loop.call_later(self._timeout + STUCK_AFTER, self._report_stuck, key)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                result = await self._reconciler.reconcile(key)
        except TimeoutError:
            if limit.expired():
                self._metrics.timeouts.inc()
                raise TimeoutError(f"reconcile took longer than {self._timeout:g} s") from None
            raise
        finally:
            stuck.cancel()
        if limit.expired():  # it was cancelled, and made light of it
            self._metrics.timeouts.inc()
            raise TimeoutError(f"reconcile took longer than {self._timeout:g} s")
        return result

    def _follow(self, key: Key, result: Result) -> None:
        self.queue.forget(key)
        if result.requeue:
            self._metrics.results["requeue"].inc()
            self.queue.add_again(key, self._conflicts.delay(key))
            return
        self._conflicts.forget(key)
        if result.requeue_after is not None and result.requeue_after > 0:
            self._metrics.results["requeue_after"].inc()
            self.queue.add_again(key, result.requeue_after)
        else:
            self._metrics.results["success"].inc()

    def _give_up(self, key: Key, error: TerminalError) -> None:
        self._count_error()
        self._metrics.terminal_errors.inc()
        self.queue.forget(key)
        log.error("reconcile failed for good", error=str(error))

    def _retry(self, key: Key, error: Exception) -> None:
        self._count_error()
        delay = round(self._put_off(key), 3)
        if _is_expected(error):
            log.warning("reconcile failed", error=describe(error), retry_in=delay)
        else:
            self._metrics.panics.inc()
            log.error("reconcile raised", error=describe(error), retry_in=delay, exc_info=error)

    def _put_off(self, key: Key) -> float:
        """Until the next try at the latest; returns the seconds."""
        if self._recovery is not None and not self._recovery.available:
            delay = OUTAGE_RETRY * self._rng.uniform(0.5, 1.0)
            self.queue.add_after(key, delay)
        else:
            delay = self.queue.add_rate_limited(key)
        due = self._due(key) if self._due is not None else None
        if due is None or not 0 < due < delay:
            return delay
        self.queue.add_after(key, due)  # of two delays the shorter holds
        return due

    def _count_error(self) -> None:
        self._metrics.results["error"].inc()
        self._metrics.errors.inc()

    def _report_stuck(self, key: Key) -> None:
        log.error("reconcile is stuck", controller=self.name, namespace=key.namespace, name=key.name)

    def _log_keys(self, key: Key) -> dict[str, str]:
        reconcile_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        return {
            "controller": self.name,
            "namespace": key.namespace,
            "name": key.name,
            "reconcile_id": reconcile_id,
        }

    @contextmanager
    def _measured(self) -> Iterator[None]:
        started = self._clock.monotonic()
        with self._metrics.active_workers.track_inprogress():
            try:
                yield
            finally:
                self._metrics.time.observe(self._clock.monotonic() - started)


def describe(error: BaseException) -> str:
    """One line that tells the kind of the error and what it says; for a group, of each in it."""
    if isinstance(error, BaseExceptionGroup):
        return join_some(map(describe, error.exceptions), len(error.exceptions), separator="; ")
    return cut(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _is_expected(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(EXPECTED)[1] is None
    return isinstance(error, EXPECTED)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
