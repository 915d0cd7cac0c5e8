"""Writes what jobs report into `status.trainerStatus`, rarely: the newest report of each job, and few in all.

Every report could be a write to etcd; a thousand jobs report two hundred times a second. Each job is written at most
once per `interval`, all together at most `MAX_RATE` times a second, in the order in which they are due, so that with
many jobs the interval of all grows evenly. A job that ends keeps its turn: its last report is written.

Replicas of the operator share the limits without talking to each other: each sees in its cache what the others write,
counts it as a write of its own, drops its own report if that one is newer, and repeats it if that one is older.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

import structlog

from trainop.controllers.crd_check import INSTALL
from trainop.controllers.progress.payload import TrainerStatus
from trainop.engine.progress import TRAINER_STATUS
from trainop.runtime import (
    ApiError,
    Client,
    Clock,
    ConflictError,
    Json,
    Key,
    NotFoundError,
    PatchKind,
    Resource,
    Unstructured,
)
from trainop.runtime.lowlevel import LogThrottle, is_older, read_time

FIELD_MANAGER = "trainop-progress"
INTERVAL = 10.0
"""Seconds between two writes of one job."""
MAX_RATE = 20.0
"""Writes per second of all jobs."""
MAX_IN_FLIGHT = 4
CONFLICT_DELAY = 1.0
"""Seconds after a conflict, twice as many after each further one, if the cache shows no newer version before."""
MAX_DELAY = 300.0
"""Seconds between two attempts if writes fail."""
REPEATS = 60.0
"""Seconds after a report within which it is repeated if another replica writes an older one over it. Later, another pod
may report, whose clock may be behind."""
MANY, SILENT_AFTER = 1000, 600.0
"""Jobs from which on those that have not reported for so many seconds are forgotten, until they report again."""
LAST_WORDS = 3.0
"""Seconds for the reports that are left when the process ends."""
LOG_INTERVAL = 600.0
_UNDECLARED = f".status.{TRAINER_STATUS}: field not declared in schema"
"""What server-side apply answers if the CRD lacks the field (structured-merge-diff `typed/validate.go`)."""

log = structlog.get_logger(__name__)


class Job(NamedTuple):
    """A job as the writer addresses it."""

    resource: Resource
    key: Key
    uid: str

    def body(self, status: Json, version: str) -> Json:
        """What server-side apply sends: only this field, so that it owns nothing else. The API server ignores the UID
        in a status; so it is the resourceVersion that keeps a report away from a later job of the same name."""
        metadata = {"name": self.key.name, "namespace": self.key.namespace, "resourceVersion": version}
        resource = self.resource
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "status": {TRAINER_STATUS: status},
        }


class _State:
    """What is known of one job that has reported."""

    __slots__ = (
        "announced",
        "conflicts",
        "failures",
        "job",
        "last",
        "newest",
        "queued",
        "shown",
        "taken",
        "taken_at",
        "version",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.version = ""
        """The newest resourceVersion that is known."""
        self.conflicts = 0
        self.newest: TrainerStatus | None = None
        """The report that is still to be written."""
        self.taken: TrainerStatus | None = None
        """The last report to this replica, which came at `taken_at`."""
        self.taken_at = float("-inf")
        self.shown: Json | None = None
        """The field as this replica has written or seen it."""
        self.last = float("-inf")
        """Time of the last write, of any replica."""
        self.failures = 0
        self.queued = False
        self.announced = False
        """Whether its user was told that the CRD lacks the field."""

    def learn(self, version: str) -> bool:
        """Whether this resourceVersion is another one than was known, and no older one."""
        if not version or version == self.version or is_older(version, self.version):
            return False
        self.version = version
        return True


class ProgressWriter:
    """One per process, a runnable for `Manager.add`. `client` writes on every replica, so that it must not be gated by
    leader election."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        count: Callable[[str], None] = lambda _result: None,
        *,
        interval: float = INTERVAL,
        announce: Callable[[Job, str], None] = lambda _job, _message: None,
    ) -> None:
        """`count` gets the result of each write: `written`, `conflict` or `failed`. `interval` are the seconds between
        two writes of one job. `announce` gets a job whose CRD lacks the field, once, and a message for its user."""
        self._interval = interval
        self._announce = announce
        self._client = client
        self._clock = clock
        self._count = count
        self._states: dict[str, _State] = {}
        self._most = MANY
        """Jobs at which those that report no more are forgotten."""
        self._queue: list[tuple[float, int, str]] = []
        """When it is due, a number that keeps the order, and the UID."""
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._next_slot = 0.0
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._throttle = LogThrottle(clock, LOG_INTERVAL)

    @property
    def pending(self) -> int:
        """Reports that are still to be written."""
        return sum(state.newest is not None for state in self._states.values())

    def last(self, uid: str) -> Json | None:
        """The last report of a job to this replica, as a value of `trainerStatus`; None if it is not known."""
        state = self._states.get(uid)
        return state.taken.as_json() if state is not None and state.taken is not None else None

    def put(self, job: Job, status: TrainerStatus, version: str) -> None:
        """Takes a report, which replaces an earlier one that is not written yet. `version` is the resourceVersion of
        the job in the cache."""
        state = self._states.get(job.uid)
        if state is None:
            self._forget_silent()
            state = self._states[job.uid] = _State(job)
        state.learn(version)
        state.newest = state.taken = status
        state.taken_at = self._clock.monotonic()
        self._enqueue(state)

    def _forget_silent(self) -> None:
        """Forgets jobs that report no more, such as finished ones, whenever twice as many as after the last time are
        known: a report may take 64 KiB."""
        if len(self._states) >= self._most:
            since = self._clock.monotonic() - SILENT_AFTER
            silent = [uid for uid, each in self._states.items() if each.newest is None and each.taken_at < since]
            for uid in silent:
                del self._states[uid]
            self._most = max(MANY, 2 * len(self._states))

    def observe(self, job: Unstructured) -> None:
        """A job as the cache has it. A change of the field that is not this writer's is a write of another replica."""
        state = self._states.get(job.metadata.uid)
        shown = (job.raw.get("status") or {}).get(TRAINER_STATUS)
        if state is None:
            return
        if state.learn(job.metadata.resource_version) and state.conflicts and state.newest is not None:
            state.conflicts = 0
            self._enqueue(state, anew=True)
        if not isinstance(shown, dict) or shown == state.shown:
            return
        now = self._clock.monotonic()
        state.shown, state.last = shown, now
        self._next_slot = max(self._next_slot, now) + 1 / MAX_RATE
        order = _compare(state.taken, shown)
        if order < 0 or (state.newest is not None and state.newest.as_json() == shown):
            state.newest = None
        elif order > 0 and state.newest is None and now - state.taken_at < REPEATS:
            state.newest = state.taken
            self._enqueue(state)

    def forget(self, uid: str) -> None:
        """The job is deleted."""
        self._states.pop(uid, None)

    async def run(self) -> None:
        """Writes until cancelled; then what is left, the most advanced first, for `LAST_WORDS`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    state = await self._take()
                    await self._in_flight.acquire()
                    tasks.create_task(self._write(state), name="progress")
        finally:
            await self._write_rest()

    async def _write_rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                while rest := [state for state in self._states.values() if state.newest is not None]:
                    for state in sorted(rest, key=_percent, reverse=True):
                        await self._in_flight.acquire()
                        await self._write(state)
                        await self._clock.sleep(1 / MAX_RATE)

    def _enqueue(self, state: _State, *, after: float = 0.0, anew: bool = False) -> None:
        """`anew`: also if it is queued for later."""
        if anew or not state.queued:
            state.queued = True
            due = max(self._clock.monotonic() + after, state.last + self._interval)
            heapq.heappush(self._queue, (due, next(self._numbers), state.job.uid))
            self._changed.set()

    async def _take(self) -> _State:
        """Waits for a job that is due, and for the next write that the rate permits."""
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            wait = max(self._queue[0][0], self._next_slot) - now if self._queue else None
            if wait is not None and wait <= 0:
                _, _, uid = heapq.heappop(self._queue)
                state = self._states.get(uid)
                if state is None:
                    continue
                state.queued = False
                if state.newest is None:
                    continue
                if state.last + self._interval > now:  # another replica has written meanwhile
                    self._enqueue(state)
                    continue
                self._next_slot = max(self._next_slot, now) + 1 / MAX_RATE
                return state
            await self._wait(wait)

    async def _wait(self, seconds: float | None) -> None:
        """Until something is added, or for so many seconds."""
        added = asyncio.ensure_future(self._changed.wait())
        timer = asyncio.ensure_future(self._clock.sleep(seconds)) if seconds is not None else None
        try:
            await asyncio.wait({added, timer} if timer else {added}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            added.cancel()
            if timer:
                timer.cancel()

    async def _write(self, state: _State) -> None:
        report, state.newest = state.newest, None
        if report is None:
            self._in_flight.release()
            return
        job, before, last = state.job, state.shown, state.last
        state.last, state.shown = self._clock.monotonic(), report.as_json()
        try:
            written = await self._client.patch(
                job.resource,
                job.key.name,
                job.key.namespace,
                job.body(state.shown, state.version),
                kind=PatchKind.APPLY,
                subresource="status",
                force=True,
                field_manager=FIELD_MANAGER,
                metadata_only=True,
            )
            self._count("written")
            state.failures = state.conflicts = 0
            state.learn((written.get("metadata") or {}).get("resourceVersion") or "")
        except NotFoundError:
            self._states.pop(job.uid, None)
        except ConflictError:
            state.shown, state.last = before, last
            self._wait_for_version(state, report)
        except (ApiError, ConnectionError, TimeoutError) as error:
            state.shown = before
            self._retry(state, report, error)
        finally:
            self._in_flight.release()

    def _wait_for_version(self, state: _State, report: TrainerStatus) -> None:
        """Somebody has written the job meanwhile, or another job has its name: the cache will show which."""
        self._count("conflict")
        state.newest = state.newest or report
        self._enqueue(state, after=min(CONFLICT_DELAY * 2 ** min(state.conflicts, 10), MAX_DELAY))
        state.conflicts += 1

    def _retry(self, state: _State, report: TrainerStatus, error: Exception) -> None:
        self._count("failed")
        state.failures += 1
        if (left_out := self._throttle.count("write")) is not None:
            log.warning("progress cannot be written", job=str(state.job.key), error=str(error), left_out=left_out)
        state.newest = state.newest or report
        if _UNDECLARED in str(error) and not state.announced:
            state.announced = True
            self._announce(state.job, describe_undeclared(state.job.resource))
        self._enqueue(state, after=min(self._interval * 2 ** min(state.failures, 8), MAX_DELAY))


def _percent(state: _State) -> int:
    return (state.newest and state.newest.progress_percentage) or 0


def describe_undeclared(resource: Resource) -> str:
    """What is wrong with a CRD without the field, and who can do what."""
    return (
        f"what the job reports cannot be shown: the CRD {resource.plural}.{resource.group} has no field"
        f" status.{TRAINER_STATUS}, as that of another operator or of an older release; its administrator has to"
        f" install those of this release: {INSTALL}"
    )


def _compare(taken: TrainerStatus | None, shown: Json) -> float:
    """Seconds by which a report is newer than the one in a status; 0 if that is not known. Both have the time of the
    client, of which there is one at a time."""
    at = read_time(shown.get("lastUpdatedTime"))
    if taken is None or taken.last_updated_time is None or at is None:
        return 0.0
    return (taken.last_updated_time.replace(microsecond=0) - at).total_seconds()
