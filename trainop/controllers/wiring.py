"""Builds the controller of one kind: its informers, event handlers and work queue, and the reconciler behind them.

Events of jobs and children become keys of jobs in the queue. Deletions of children reach the expectations first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trainop.controllers.apply import Applier
from trainop.controllers.body_budget import BodyBudget
from trainop.controllers.children import ChildWriter
from trainop.controllers.consequences import Consequences
from trainop.controllers.counters import JobMetrics
from trainop.controllers.gang import GROUP_CHANGES, NoKeys, open_gang_caches, waits_for_groups
from trainop.controllers.job_state import JobStates
from trainop.controllers.observe import View, child_indices
from trainop.controllers.own_writes import NotOwnStatus, NotProgress, OwnWrites
from trainop.controllers.owner_check import OwnerCheck
from trainop.controllers.progress.feed import ReportFeed
from trainop.controllers.reconciler import JobReconciler
from trainop.controllers.refusals import Refusals
from trainop.controllers.report import EventRecorder, Reporter
from trainop.controllers.routing import ChildDispatchers, ChildPace, Concerned, EnqueueJob, JobPace, ObserveDeleted
from trainop.controllers.silence import Silences
from trainop.engine.children import ChildSelection
from trainop.engine.framework import CompanionKind
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.kind import Kind
from trainop.engine.progress import TRAINER_STATUS, ProgressEndpoint
from trainop.engine.seen import Options
from trainop.engine.status import STALLED, WAITING, Status
from trainop.engine.waiting import REASONS, reason_of
from trainop.runtime import (
    PODS,
    SERVICES,
    Cache,
    Client,
    Clock,
    Controller,
    EnqueueObject,
    EnqueueOwner,
    Expectations,
    HasMetadata,
    Informer,
    Key,
    Predicate,
    Unstructured,
    decode_unstructured,
)
from trainop.runtime.lowlevel import EARLIEST, Index, Pace

T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDependencies:
    """Shared by all controllers of the process. `workers` is the number of concurrent reconciles per controller."""

    client: Client
    cache: Cache
    clock: Clock
    rng: random.Random
    metrics: JobMetrics
    options: Options
    workers: int = 1
    pod_events: bool = False
    endpoint: Callable[[], ProgressEndpoint] | None = None
    """Returns what pods are told about the endpoint for progress; None: no reports are taken."""
    reports: ReportFeed = field(default_factory=ReportFeed)
    dispatchers: ChildDispatchers = field(default_factory=ChildDispatchers)
    bodies: BodyBudget = field(default_factory=BodyBudget)

    def current_options(self) -> Options:
        """The options of a plan that is made now."""
        return replace(self.options, progress=self.endpoint()) if self.endpoint else self.options


def open_view(kind: Kind, cache: Cache, gang: GangScheduler | None = None) -> View:
    """Opens the informers of one kind; those of pods and services are shared with all kinds of the same selection. The
    job informer is optional: until its CRD is installed, only the controller of this kind waits."""
    children, indices = kind.children, child_indices(kind.children)
    return View(
        kind,
        jobs=cache.informer(kind.source, kind.decode, indices=JOB_INDICES, optional=True),
        pods=cache.informer(PODS, children.decode_pod, label_selector=children.watch, indices=indices),
        services=cache.informer(SERVICES, children.decode_service, label_selector=children.watch, indices=indices),
        companions={each.resource: _open_companions(each, children, cache) for each in kind.companion_kinds},
        gang=open_gang_caches(gang, cache) if gang else None,
    )


def _open_companions(kind: CompanionKind, selection: ChildSelection, cache: Cache) -> Informer[Unstructured]:
    """Only companions with the labels of a job are watched."""
    return cache.informer(
        kind.resource,
        decode_unstructured,
        label_selector=selection.watch,
        indices=child_indices(selection),
        optional=True,
        permission_optional=kind.permission_optional,
        metadata_only=kind.metadata_only,
    )


def build_controller(kind: Kind, needs: ControllerDependencies, recorder: EventRecorder) -> Controller:
    """Builds the controller of one kind, ready to run. Its own status writes wake it no more."""
    view = open_view(kind, needs.cache, needs.options.gang)
    _show_jobs(view, needs.metrics)
    expectations = Expectations(needs.clock, needs.metrics.controller(kind.controller).expectations_expired)
    states = JobStates(expectations)
    writes = OwnWrites(needs.client, kind.source, states, needs.clock)
    owner_check = OwnerCheck(needs.client, kind.source, states)
    report = Reporter(kind, recorder, needs.metrics, states, pod_events=needs.pod_events)
    reconciler = JobReconciler(
        view=view,
        client=needs.client,
        expectations=expectations,
        states=states,
        writes=writes,
        owner_check=owner_check,
        report=report,
        applier=_build_applier(kind, needs, expectations, states, report),
        silences=_listen(view, states, needs),
        options=needs.current_options,
        clock=needs.clock,
        rng=needs.rng,
    )
    controller = Controller(
        kind.controller,
        reconciler,
        workers=needs.workers,
        clock=needs.clock,
        rng=needs.rng,
        metrics=needs.metrics,
        group=kind.resource.group,
        kind=kind.resource.kind,
        recovery=needs.client.recovery,
        due=reconciler.seconds_to_due,
    )
    controller.watch(
        view.jobs, EnqueueObject(), Concerned(kind.concerns), NotOwnStatus(writes), NotProgress(), pace=JobPace()
    )
    _watch_children(controller, view, needs, ObserveDeleted(expectations, owner_check))
    return controller


class HearReports:
    """The handler that hears reports which the cache shows."""

    def __init__(self, silences: Silences) -> None:
        self._silences = silences

    def add(self, job: Unstructured, initial: bool) -> None:
        """Nothing to do: a first report of an old job tells nothing about when it was sent."""

    def update(self, old: Unstructured, new: Unstructured) -> None:
        before, after = ((job.raw.get("status") or {}).get(TRAINER_STATUS) for job in (old, new))
        if before != after:
            self._silences.hear(new)

    def delete(self, job: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        """Nothing to do: the state of the job is forgotten with it."""


def _listen(view: View, states: JobStates, needs: ControllerDependencies) -> Silences:
    """Hears reports, before a reconcile that they trigger."""
    silences = Silences(states, needs.clock, lambda: needs.reports.delay)
    needs.reports.listen(silences.hear, lambda: len(view.jobs.store.by_index(TRAINER_STATUS, TRAINER_STATUS)))
    view.jobs.add_handler(HearReports(silences))
    return silences


def _show_jobs(view: View, metrics: JobMetrics) -> None:
    """Exports the numbers of jobs that wait or have stalled, makes the counters of those that exist, and exports the
    launchers' Jobs, if the kind has launchers."""
    _show_waiting(view, metrics)
    view.jobs.add_handler(ExpectCounts(metrics, view.kind))
    if (name_of := view.kind.launcher) is not None:
        metrics.show_launchers(
            lambda: [(job.metadata.namespace, name) for job in view.jobs.store.list() if (name := name_of(job))]
        )


def _build_applier(
    kind: Kind, needs: ControllerDependencies, expectations: Expectations, states: JobStates, report: Reporter
) -> Applier:
    after = Consequences(kind, states, report, clock=needs.clock, rng=needs.rng)
    children = ChildWriter(kind, needs.client, expectations, report, after, bodies=needs.bodies)
    return Applier(kind, needs.client, children, Refusals(states, needs.clock, needs.rng), report)


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


def _show_waiting(view: View, metrics: JobMetrics) -> None:
    kind, store = view.kind, view.jobs.store

    def waiting() -> Iterator[tuple[str, str, str]]:
        for reason in REASONS:
            for job in store.by_index(WAITING, reason):
                if kind.concerns(job):
                    yield job.metadata.namespace, kind.name, reason

    def stalled() -> Iterator[tuple[str, str]]:
        jobs = store.by_index(STALLED, STALLED)
        return ((job.metadata.namespace, kind.name) for job in jobs if kind.concerns(job))

    metrics.show_waiting(waiting)
    metrics.show_stalled(stalled)


class ExpectCounts:
    """The handler that makes the counters of the jobs that exist, also on a standby."""

    def __init__(self, metrics: JobMetrics, kind: Kind) -> None:
        self._metrics = metrics
        self._kind = kind

    def add(self, job: Unstructured, initial: bool) -> None:
        if self._kind.concerns(job):
            self._metrics.expect(job.metadata.namespace, self._kind.name, self._kind.resource.kind)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        """Nothing to do."""

    def delete(self, job: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        """Nothing to do: the counters stay, as what they have counted does."""


def _watch_children(
    controller: Controller, view: View, needs: ControllerDependencies, observer: ObserveDeleted
) -> None:
    kind = view.kind
    owner = EnqueueJob(kind, EnqueueOwner(kind.resource))

    def watch(children: Informer[T], pace: Pace | None = None, *predicates: Predicate) -> None:
        of_kind = needs.dispatchers.children_of(kind, children)
        of_kind.add_handler(observer)  # first, so that the reconcile which the event triggers is aware of it
        controller.watch(of_kind, owner, *predicates, pace=pace)

    watch(view.pods, ChildPace())
    watch(view.services, ChildPace())
    for companions in view.companions.values():
        watch(companions)
    for each in view.needed:
        each.on_recovery(lambda: _enqueue_all(controller, view))
    if view.gang is not None:
        watch(view.gang.groups, ChildPace(), GROUP_CHANGES)
        controller.watch(view.gang.classes, NoKeys())
        view.gang.groups.on_recovery(lambda: _enqueue_waiting(controller, view))


def _enqueue_all(controller: Controller, view: View) -> None:
    """Enqueues all jobs when their children can be listed again: no event comes for those that have none."""
    for job in view.jobs.store.list():
        controller.queue.add(job.metadata.key)


def _enqueue_waiting(controller: Controller, view: View) -> None:
    """Enqueues the jobs that wait until PodGroups can be read; there is no event of a PodGroup for them."""
    for job in view.jobs.store.list():
        if waits_for_groups(job):
            controller.queue.add(job.metadata.key)
