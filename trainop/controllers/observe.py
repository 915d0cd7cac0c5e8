"""Builds the `Snapshot` of a job: everything that one plan reads, and the time at which it does (`Observer`).

A snapshot is normally taken from the caches, without an await in between, so that it is consistent. After a lost watch
event `observe_live` lists the children from the API server instead. The time is that of a `JobClock`, as the wall clock
is stepped by NTP or an administrator: a step forward would expire deadlines of running jobs, and a step backward would
delay them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
import structlog

from trainop.controllers.evictions import EvictionCache
from trainop.controllers.gang import GangCaches
from trainop.controllers.job_state import JobStates
from trainop.controllers.outcome import Passes, Refusals
from trainop.controllers.queue import QueueCaches
from trainop.controllers.silence import Silences
from trainop.engine.children import ChildSelection
from trainop.engine.extensions import read_checkpoint
from trainop.engine.failures import is_under_way
from trainop.engine.kind import Kind
from trainop.engine.kueue import WORKLOADS
from trainop.engine.progress import TRAINER_STATUS, ProgressEndpoint
from trainop.engine.seen import Options, Pod, Service, Snapshot
from trainop.engine.stalls import STALLED_AFTER
from trainop.engine.status import STALLED, WAITING, Status
from trainop.engine.waiting import reason_of
from trainop.runtime import (
    PODS,
    SERVICES,
    ApiError,
    Client,
    Clock,
    DecodeError,
    HasMetadata,
    Informer,
    Json,
    Key,
    Listing,
    Metadata,
    NotFoundError,
    Resource,
    Store,
    Unstructured,
    by_controller,
)
from trainop.runtime.lowlevel import EARLIEST, Index, read_object

T = TypeVar("T", bound=HasMetadata)

CACHE_DELAY = 0.02
"""Seconds to wait for the caches to show the writes of an unfinished pass."""

log = structlog.get_logger(__name__)

_encode = msgspec.json.Encoder().encode


def child_indices(selection: ChildSelection) -> dict[str, Index[HasMetadata]]:
    """The indices by which a snapshot finds the children of a job."""
    return {"owner": by_controller, "job": selection.by_job}


def by_reason(job: Unstructured) -> tuple[str, ...]:
    """Index: the reason for which the job waits."""
    reason = reason_of(job.raw.get("status"))
    return (reason,) if reason else ()


def by_stall(job: Unstructured) -> tuple[str, ...]:
    """Index: the jobs that have stalled."""
    return (STALLED,) if Status(job.raw.get("status"), EARLIEST).is_true(STALLED) else ()


def by_reporting(job: Unstructured) -> tuple[str, ...]:
    """Index: the unfinished jobs that have reported."""
    status = job.raw.get("status") or {}
    if TRAINER_STATUS not in status or Status(status, EARLIEST).finished:
        return ()
    return (TRAINER_STATUS,)


JOB_INDICES: dict[str, Index[Unstructured]] = {WAITING: by_reason, STALLED: by_stall, TRAINER_STATUS: by_reporting}


@dataclass(frozen=True, slots=True)
class View:
    """Read access to the caches of one kind: its jobs and their children."""

    kind: Kind
    jobs: Informer[Unstructured]
    pods: Informer[Pod]
    services: Informer[Service]
    companions: Mapping[Resource, Informer[Unstructured]]
    gang: GangCaches | None = None
    """None: gang scheduling is off."""
    queue: QueueCaches | None = None
    """None: the operator does not queue jobs of the kind."""

    def job(self, key: Key) -> Unstructured | None:
        """The cached job. If it cannot be decoded completely, the decodable part, which has a `fault`."""
        job = self.jobs.store.get(key)
        error = self.unreadable(key) if job is None else None
        return error.remains if error else job

    def unreadable(self, key: Key) -> DecodeError | None:
        """Why the job cannot be decoded; None if it can, or is not cached."""
        return self.jobs.store.unreadable.get(key)

    @property
    def needed(self) -> tuple[Informer[Any], ...]:
        """The informers without which no plan can be made."""
        companions = (self.companions[k.resource] for k in self.kind.companion_kinds if not k.permission_optional)
        return self.jobs, self.pods, self.services, *companions

    def forbidden_in(self, namespace: str) -> str:
        """The kinds that the operator may not list in a namespace, as text; empty if it may list all that it needs."""
        return ", ".join(str(each.resource) for each in self.needed if not each.permitted_in(namespace))

    def look(self, resource: Resource, key: Key) -> Metadata | None:
        """The cached metadata of a child (`trainop.runtime.controller.expectations.CacheLookup`)."""
        store: Store[Any]
        if resource in self.companions:
            store = self.companions[resource].store
        elif self.gang is not None and resource == self.gang.groups.resource:
            store = self.gang.groups.store
        elif self.queue is not None and resource == WORKLOADS:
            store = self.queue.workloads.store
        else:
            store = (self.pods if resource == PODS else self.services).store
        child: HasMetadata | None = store.get(key)
        if child is None and (error := store.unreadable.get(key)):
            child = error.remains
        return child.metadata if child else None

    def snapshot(self, job: Unstructured, now: datetime, options: Options, wall: datetime | None = None) -> Snapshot:
        """Everything that one plan reads. `now` is the time of the job's clock, `wall` that of the wall clock."""
        pods, services = self._children(self.pods.store, job), self._children(self.services.store, job)
        companions = {resource: self._children(each.store, job) for resource, each in self.companions.items()}
        namespace = job.metadata.namespace
        unreadable = {
            kind: {key.name: error.fault for key, error in store.unreadable.items() if key.namespace == namespace}
            for kind, store in (("Pod", self.pods.store), ("Service", self.services.store))
            if store.unreadable
        }
        seen = Snapshot(job, pods, services, now, options, companions, unreadable, wall)
        seen = self.queue.show(seen) if self.queue else seen
        return self.gang.show(seen) if self.gang else seen

    def add_relabelled(self, listed: Snapshot) -> Snapshot:
        """Adds the cached children that the job owns and whose labels were changed, which no list by labels returns.
        One that is gone since does no harm, because all that a plan does to it is bound to its UID."""
        job = listed.job
        companions = {
            resource: (*children, *self._relabelled(self.companions[resource].store, job, children))
            for resource, children in listed.companions.items()
            if resource in self.companions
        }
        pods = (*listed.pods, *self._relabelled(self.pods.store, job, listed.pods))
        services = (*listed.services, *self._relabelled(self.services.store, job, listed.services))
        return replace(listed, pods=pods, services=services, companions={**listed.companions, **companions})

    def labelled_companions(self, key: Key) -> list[Unstructured]:
        """The companions whose labels name a job, which need not exist."""
        label = self.kind.children.index_value(key.namespace, self.kind.controller, key.name)
        return [child for each in self.companions.values() for child in each.store.by_index("job", label)]

    def _relabelled(self, store: Store[T], job: Unstructured, listed: Iterable[T]) -> Iterator[T]:
        metadata, labels = job.metadata, self.kind.children.labels(self.kind.controller, job.metadata.name).items()
        names = {child.metadata.name for child in listed}
        for child in store.by_index("owner", metadata.uid):
            mine = child.metadata
            if mine.namespace == metadata.namespace and mine.name not in names and not labels <= mine.labels.items():
                yield child

    def _children(self, store: Store[T], job: Unstructured) -> tuple[T, ...]:
        """The children that the job controls and those that its selector matches, without duplicates."""
        metadata, selection = job.metadata, self.kind.children
        named = store.by_index("job", selection.index_value(metadata.namespace, self.kind.controller, metadata.name))
        owned = [
            child for child in store.by_index("owner", metadata.uid) if child.metadata.namespace == metadata.namespace
        ]
        return tuple(
            {id(child): child for child in (*named, *owned)}.values()
        )  # a child in both indices is the same object


async def observe_live(
    client: Client,
    kind: Kind,
    job: Unstructured,
    now: datetime,
    options: Options,
    *,
    wall: datetime | None = None,
    gang: GangCaches | None = None,
) -> Snapshot:
    """As `View.snapshot`, but lists the children that match the job's selector from the API server, because the caches
    have missed an event. Raises API errors."""
    labels = kind.children.labels(kind.controller, job.metadata.name)
    text = ",".join(f"{label}={value}" for label, value in labels.items())
    pods = await client.list(PODS, job.metadata.namespace, label_selector=text)
    services = await client.list(SERVICES, job.metadata.namespace, label_selector=text)
    companions: dict[Resource, tuple[Unstructured, ...]] = {}
    for each in kind.companion_kinds:
        listing = await client.list(each.resource, job.metadata.namespace, label_selector=text)
        companions[each.resource], _ = _convert(each.resource, listing, Unstructured)
    pods_seen, pods_not = _convert(PODS, pods, lambda item: kind.children.decode_pod(_encode(item)))
    services_seen, services_not = _convert(SERVICES, services, lambda item: kind.children.decode_service(_encode(item)))
    unreadable = {"Pod": pods_not, "Service": services_not}
    seen = Snapshot(job, pods_seen, services_seen, now, options, companions, unreadable, wall)
    return await gang.show_live(client, seen) if gang else seen


async def look_up(client: Client, seen: Snapshot, names: Iterable[tuple[Resource, str]]) -> Snapshot:
    """Adds companions by name, read from the API server, which the caches lack. Raises API errors."""
    companions = dict(seen.companions)
    for resource, name in names:
        known = companions.get(resource, ())
        if all(each.metadata.name != name for each in known):
            try:
                found = await client.get(resource, name, seen.job.metadata.namespace)
            except NotFoundError:
                continue
            except ApiError as error:
                if error.code != HTTPStatus.FORBIDDEN:
                    raise
                continue  # an installation without rights for the kind has never created one
            companions[resource] = (*known, read_object(resource, found))
    return replace(seen, companions=companions)


def _convert(
    resource: Resource, listing: Listing, convert: Callable[[Json], T]
) -> tuple[tuple[T, ...], dict[str, str]]:
    """Returns the objects, and the faults of those that cannot be decoded, by name."""
    found: list[T] = []
    errors = list(listing.unreadable)
    for item in listing.items:
        try:
            read_object(resource, item)
            found.append(convert(item))
        except DecodeError as error:
            errors.append(error)
    return tuple(found), {error.key.name: error.fault for error in errors if error.key is not None}


MAX_DRIFT = 1.0
"""Seconds. A smaller change of the offset between two passes is drift of the clocks, and is followed."""


class JobClock:
    """One per controller.

    Deadlines and times to live are measured from timestamps in the status: start, completion, last restart. These are
    wall-clock times, because they must outlive the process. For each running job this remembers the offset between
    wall clock and monotonic clock, taken when the job started or when this process first reconciled it. `now` applies
    that offset to the monotonic clock, so that a step of the wall clock moves no deadline, and all timestamps of one
    run of a job are consistent. A job that starts or is resumed after the step uses the new wall clock.

    Timestamps from before the start of this process are compared with the wall clock of the first reconcile, for lack
    of anything better. One offset for the whole process would be simpler, but after a wrong clock is corrected, new
    jobs would get wrong timestamps until the next restart.
    """

    def __init__(self, states: JobStates, clock: Clock) -> None:
        self._states = states
        self._clock = clock

    def now(self, job: Unstructured) -> datetime:
        """The current time for this job, in UTC. The wall clock if the job was not reconciled yet."""
        wall = self._clock.now()
        offset = wall.timestamp() - self._clock.monotonic()
        state = self._states.find(job.metadata.uid)
        if state is None:
            return wall
        kept = offset if state.clock_offset is None else state.clock_offset
        if abs(offset - kept) < MAX_DRIFT or not is_under_way(job, wall):
            state.clock_offset = offset
            return wall
        return wall - timedelta(seconds=offset - kept)


class Observer:
    """One per controller. Adds to a snapshot what the controller remembers of the job."""

    def __init__(
        self,
        view: View,
        client: Client,
        states: JobStates,
        clock: Clock,
        options: Options,
        *,
        endpoint: Callable[[], ProgressEndpoint] | None,
        refusals: Refusals,
        passes: Passes,
        silences: Silences,
        evictions: EvictionCache,
    ) -> None:
        """`endpoint` returns what pods are told about the endpoint for progress; None: no reports are taken."""
        self.view = view
        self._client = client
        self._states = states
        self._clock = clock
        self._job_clock = JobClock(states, clock)
        self._options = options
        self._endpoint = endpoint
        self._refusals = refusals
        self._passes = passes
        self._silences = silences
        self._evictions = evictions

    def now(self, job: Unstructured) -> datetime:
        """The current time for this job, in UTC."""
        return self._job_clock.now(job)

    async def observe(self, job: Unstructured) -> Snapshot | float:
        """The snapshot of the job, or the seconds to wait until the caches show the operator's writes of its children.
        If they do not in time, the children are listed. Raises API errors."""
        now, wall = self.now(job), self._clock.now()
        restarts = self.view.kind.restart is not None
        responds = restarts and read_checkpoint(job.metadata.annotations).responds
        if responds and (wait := self._evictions.seconds_to_wait()) > 0:
            return wait
        if self._states.expectations.satisfied(job.metadata.uid, self.view.look):
            seen = self.view.snapshot(job, now, self._current_options(), wall=wall)
        elif (wait := self._seconds_to_wait(job, now)) > 0:
            return wait
        else:
            listed = await observe_live(
                self._client, self.view.kind, job, now, self._current_options(), wall=wall, gang=self.view.gang
            )
            seen = self.view.add_relabelled(listed)
            seen = await self.view.queue.show_live(self._client, seen) if self.view.queue else seen
        seen = self._refusals.show(seen)
        if names := self.view.kind.lookups(job):
            seen = await look_up(self._client, seen, names)
        seen = self._passes.show(seen)
        if restarts and self._evictions.informer is not None:
            seen = self._evictions.show(seen, self.view.pods.store)
        return self._silences.show(seen) if STALLED_AFTER in job.metadata.annotations else seen

    def _seconds_to_wait(self, job: Unstructured, now: datetime) -> float:
        """Seconds that the caches still have to show the writes of children; 0 also if a deadline of the job is due."""
        uid, expectations = job.metadata.uid, self._states.expectations
        wait, due = expectations.expires_in(uid), self.view.kind.seconds_to_due(job, now)
        if wait is None or wait <= 0:
            log.warning("expectations expired, listing children", missing=expectations.expire(uid))
            return 0.0
        if self._states.ensure(uid).unfinished:
            wait = min(wait, CACHE_DELAY)
        return wait if due is None else max(0.0, min(wait, due))

    def _current_options(self) -> Options:
        """The options of a plan that is made now."""
        return replace(self._options, progress=self._endpoint()) if self._endpoint else self._options
