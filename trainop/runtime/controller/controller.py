"""Controller: workers take keys from the work queue, call the reconciler, and requeue according to its result.

After `shutdown`, `run` finishes the running reconciles; cancelling `run` cancels them at once.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import structlog
from structlog.contextvars import bind_contextvars

from trainop.runtime.cache.informer import Handler
from trainop.runtime.client.sender import Recovery
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.enqueue import Enqueue, Mapper, Pace, Predicate
from trainop.runtime.controller.ratelimit import ExponentialLimiter, RateLimiter, RetryLimiter
from trainop.runtime.controller.reconcile import Reconciler, Result
from trainop.runtime.controller.workqueue import QueueShutDownError, WorkQueue
from trainop.runtime.errors import ApiError, ReconcileError, TerminalError, describe
from trainop.runtime.metrics.metrics import ControllerMetrics, Metrics
from trainop.runtime.objects.metadata import HasMetadata, Key

T = TypeVar("T", bound=HasMetadata)
T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)

EXPECTED_ERRORS = (ApiError, ConnectionError, TimeoutError, ReconcileError)
"""Errors that are logged in one line without a traceback. All others are bugs."""

STUCK_AFTER = 10.0
"""Seconds that a reconcile may take to end after its timeout, before it is reported as stuck."""

MAX_OUTAGE_WAIT = 60.0
"""Seconds for which a reconcile waits until the caches of its sources are current again, and for which all reconciles
together wait for one of the sources while the server answers."""

OUTAGE_POLL = 0.1
"""Seconds between two checks during that wait."""

OUTAGE_RETRY = 2.0
"""Seconds until the retry of a reconcile that failed while the server was unavailable. Such a failure is not caused by
the object, so it does not increase the back-off, and all objects are retried soon after the outage."""

log = structlog.get_logger(__name__)


class Source(Protocol[T_co]):
    """A source of events: the part of an informer that a controller uses."""

    def add_handler(self, handler: Handler[T_co]) -> None: ...

    async def wait_synced(self) -> None: ...

    @property
    def current(self) -> bool:
        """False during an outage, and after it until the cache is confirmed (`Informer.current`)."""
        ...


class Controller:
    """Runs a reconciler for the keys of its work queue (controller-runtime `controller.Controller`).

    `name` labels metrics and logs. All log lines during a reconcile carry `controller`, `namespace`, `name` and
    `reconcile_id`, as structlog context variables.

    `recovery` is the client's: with it, failures during an outage do not increase the back-off. `due` returns the
    seconds until an object must be reconciled in any case, such as a deadline, which limits the back-off. A reconcile
    is cancelled after `reconcile_timeout` seconds. Raises `ValueError` for fewer than one worker.
    """

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
        """Set by `shutdown`. Long reconciles may check it and finish early."""
        self._reconciler = reconciler
        self._workers = workers
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # jitter and log identifiers, not secrets
        self._timeout = reconcile_timeout
        self._recovery = recovery
        self._due = due
        metrics = metrics or Metrics()
        self._metrics: ControllerMetrics = metrics.controller(name)
        self._metrics.max_concurrent.set(workers)
        self.queue: WorkQueue[Key] = WorkQueue(
            name, self._clock, limiter or RetryLimiter(self._clock, self._rng), metrics.queue(name)
        )
        # Requeues after conflicts are not failures and use no retry token; the delay prevents a busy loop.
        self._conflicts: ExponentialLimiter[Key] = ExponentialLimiter(self._clock, self._rng, cap=0.25)
        self._sources: list[Source[HasMetadata]] = []
        self._stale = _StaleSources(self._clock, recovery)

    def watch(self, source: Source[T], mapper: Mapper[T], *predicates: Predicate, pace: Pace | None = None) -> None:
        """Enqueues the keys that `mapper` returns for each event of `source` that passes all predicates; `pace` sets
        their priority and delay."""
        source.add_handler(Enqueue(self.queue, mapper, predicates, pace))
        self._sources.append(source)

    async def run(self) -> None:
        """Waits until all sources are synced, then runs the workers until `shutdown`. A kind that is not installed and
        not optional blocks only this controller."""
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
        """Starts no further reconciles; `run` returns when the running ones have ended."""
        self.shutting_down.set()
        self.queue.shutdown()

    async def _wait_for_sources(self) -> None:
        for source in self._sources:
            await source.wait_synced()

    async def _wait_for_current_caches(self) -> bool:
        """Waits during an outage until the caches of all sources are current. If etcd is restored from a backup, caches
        of different kinds would otherwise show different histories. The wait is limited, because a single kind may stay
        unavailable. Returns false if the controller is shut down meanwhile."""
        until = self._clock.monotonic() + MAX_OUTAGE_WAIT
        while self._stale.worth_waiting_for(self._sources):
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
                if not await self._wait_for_current_caches():
                    return
                with self._measured():
                    await self._reconcile_in_task(key)
            finally:
                self.queue.done(key)

    async def _reconcile_in_task(self, key: Key) -> None:
        """Runs the reconcile in a separate task. Before CPython 3.13 a failing `TaskGroup` can leave its task marked as
        cancelled, which the worker must not mistake for its own cancellation."""
        try:
            await asyncio.create_task(self._reconcile(key))
        except asyncio.CancelledError:
            if not _is_being_cancelled():
                self._retry(key, RuntimeError("the reconcile awaited something that was cancelled"))
        if _is_being_cancelled():  # even if the reconcile ignored the cancellation
            raise asyncio.CancelledError

    async def _reconcile(self, key: Key) -> None:
        bind_contextvars(**self._log_keys(key))  # limited to this task
        try:
            result = await self._reconcile_with_timeout(key)
        except TerminalError as error:
            self._give_up(key, error)
        # A bug in one reconcile must not end the others, so any exception is caught here.
        except Exception as error:  # noqa: BLE001
            self._retry(key, error)
        else:
            self._apply_result(key, result)

    async def _reconcile_with_timeout(self, key: Key) -> Result:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def wait_on() -> None:
            nonlocal timer  # from now on, as a process that was frozen cancels the reconcile only now
            timer = loop.call_later(STUCK_AFTER, self._report_stuck, key)

        timer = loop.call_later(self._timeout, wait_on)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                result = await self._reconciler.reconcile(key)
        except TimeoutError:
            if limit.expired():
                self._metrics.timeouts.inc()
                raise TimeoutError(f"reconcile took longer than {self._timeout:g} s") from None
            raise
        finally:
            timer.cancel()
        if limit.expired():  # the reconciler swallowed the cancellation
            self._metrics.timeouts.inc()
            raise TimeoutError(f"reconcile took longer than {self._timeout:g} s")
        return result

    def _apply_result(self, key: Key, result: Result) -> None:
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
        log.error("reconcile failed, not retrying", error=str(error))

    def _retry(self, key: Key, error: Exception) -> None:
        self._count_error()
        delay = round(self._schedule_retry(key), 3)
        if _is_expected(error):
            log.warning("reconcile failed", error=describe(error), retry_in=delay)
        else:
            self._metrics.panics.inc()
            log.error("reconcile raised", error=describe(error), retry_in=delay, exc_info=error)

    def _schedule_retry(self, key: Key) -> float:
        """Requeues the key after its back-off, or earlier if it is due; returns the delay in seconds."""
        if self._recovery is not None and not self._recovery.available:
            delay = OUTAGE_RETRY * self._rng.uniform(0.5, 1.0)
            self.queue.add_after(key, delay)
        else:
            delay = self.queue.add_rate_limited(key)
        due = self._due(key) if self._due is not None else None
        if due is None or not 0 < due < delay:
            return delay
        self.queue.add_after(key, due)  # the queue keeps the shorter delay
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


class _StaleSources:
    """The time for which the reconciles of a controller have waited for sources that are not current."""

    def __init__(self, clock: Clock, recovery: Recovery | None) -> None:
        self._clock = clock
        self._recovery = recovery
        self._waited_for: dict[int, float] = {}
        """By place of a source: seconds for which the server has answered during the waits for it."""
        self._waited_at = 0.0

    def worth_waiting_for(self, sources: Sequence[Source[HasMetadata]]) -> bool:
        """Whether a source is not current, and was not waited for long enough by all reconciles together. Otherwise one
        kind that stays unavailable would delay each reconcile by `MAX_OUTAGE_WAIT`. While the server does not answer at
        all, no time counts, so that the caches are waited for after an outage of any length."""
        stale = [place for place, source in enumerate(sources) if not source.current]
        if not stale:
            self._waited_for.clear()
            return False
        before, self._waited_at = self._waited_at, self._clock.monotonic()
        answers = self._recovery is None or self._recovery.available
        passed = min(self._waited_at - before, OUTAGE_POLL) if answers else 0.0
        self._waited_for = {place: self._waited_for.get(place, -passed) + passed for place in stale}
        return any(waited < MAX_OUTAGE_WAIT for waited in self._waited_for.values())


def _is_expected(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(EXPECTED_ERRORS)[1] is None
    return isinstance(error, EXPECTED_ERRORS)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
