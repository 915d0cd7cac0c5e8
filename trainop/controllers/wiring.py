"""Builds the controller of one kind: its informers, event handlers and work queue, and the reconciler behind them.

Events of jobs and children become keys of jobs in the queue. Deletions of children reach the expectations first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from trainop.controllers.apply import Applier, RightOfWay
from trainop.controllers.children import ChildWriter
from trainop.controllers.consequences import Consequences
from trainop.controllers.counters import JobMetrics
from trainop.controllers.evictions import EvictionCache
from trainop.controllers.gang import GROUP_CHANGES, NoKeys, open_gang_caches, waits_for_groups
from trainop.controllers.job_state import JobStates
from trainop.controllers.live_job import NotOwnStatus, NotProgress, OwnerCheck, OwnWrites
from trainop.controllers.observe import JOB_INDICES, Observer, View, child_indices
from trainop.controllers.outcome import Passes, Refusals
from trainop.controllers.progress.feed import ReportFeed
from trainop.controllers.queue import WORKLOAD_CHANGES, open_queue_caches, waits_in_queue
from trainop.controllers.reconciler import JobReconciler
from trainop.controllers.report import EventRecorder, Reporter
from trainop.controllers.routing import (
    ChildDispatchers,
    ChildPace,
    Concerned,
    EnqueueJob,
    JobPace,
    hear_reports,
)
from trainop.controllers.silence import Silences
from trainop.controllers.statuses import FirstStatuses, StatusWriter
from trainop.engine.children import ChildSelection
from trainop.engine.framework import CompanionKind
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.kind import Kind, every_job
from trainop.engine.kube_gang import WORKLOADS
from trainop.engine.progress import TRAINER_STATUS, ProgressEndpoint
from trainop.engine.seen import Options
from trainop.engine.status import STALLED, WAITING
from trainop.engine.waiting import REASONS
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
    Predicate,
    Unstructured,
    decode_unstructured,
)
from trainop.runtime.lowlevel import BodyBudget, HandlerFunctions, Pace

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
    right_of_way: RightOfWay = field(default_factory=RightOfWay)
    evictions: EvictionCache = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "evictions", EvictionCache(self.cache, self.clock))


def open_view(kind: Kind, cache: Cache, gang: GangScheduler | None = None) -> View:
    """Opens the informers of one kind; those of pods and services are shared with all kinds of the same selection. The
    job informer is optional: until its CRD is installed, only the controller of this kind waits."""
    children, indices = kind.children, child_indices(kind.children)
    companion_kinds = (*kind.companion_kinds, *((WORKLOADS,) if gang and gang.in_tree else ()))
    return View(
        kind,
        jobs=cache.informer(kind.source, kind.decode, indices=JOB_INDICES, optional=True),
        pods=cache.informer(PODS, children.decode_pod, label_selector=children.watch, indices=indices),
        services=cache.informer(SERVICES, children.decode_service, label_selector=children.watch, indices=indices),
        companions={each.resource: _open_companions(each, children, cache) for each in companion_kinds},
        gang=open_gang_caches(gang, cache) if gang else None,
        queue=open_queue_caches(cache) if kind.queued is not None else None,
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
    states = JobStates(Expectations(needs.clock, needs.metrics.controller(kind.controller).expectations_expired))
    writes = OwnWrites(needs.client, kind.source, states, needs.clock)
    owner_check = OwnerCheck(needs.client, kind.source, states)
    reconciler = _build_reconciler(view, needs, recorder, states=states, writes=writes, owner_check=owner_check)
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
    _watch_children(controller, view, needs, owner_check)
    return controller


def _build_reconciler(
    view: View,
    needs: ControllerDependencies,
    recorder: EventRecorder,
    *,
    states: JobStates,
    writes: OwnWrites,
    owner_check: OwnerCheck,
) -> JobReconciler:
    kind, client, clock, rng = view.kind, needs.client, needs.clock, needs.rng
    report = Reporter(kind, recorder, needs.metrics, states, pod_events=needs.pod_events)
    refusals, passes = Refusals(states, clock, rng), Passes(states, rng, shows_taken=kind.shows_taken)
    observer = Observer(
        view,
        client,
        states,
        clock,
        needs.options,
        endpoint=needs.endpoint,
        refusals=refusals,
        passes=passes,
        silences=_listen(view, states, needs),
        evictions=needs.evictions,
    )
    after = Consequences(kind, states, report, clock=clock, rng=rng)
    children = ChildWriter(kind, client, states.expectations, report, after, bodies=needs.bodies)
    return JobReconciler(
        observer=observer,
        states=states,
        writes=writes,
        first_statuses=FirstStatuses(states, clock, client.write_seconds),
        statuses=StatusWriter(writes, report, states, clock, rng),
        applier=Applier(kind, children, refusals, owner_check, report, right_of_way=needs.right_of_way),
        passes=passes,
        report=report,
    )


def _listen(view: View, states: JobStates, needs: ControllerDependencies) -> Silences:
    """Hears reports, before a reconcile that they trigger."""
    silences = Silences(states, needs.clock, lambda: needs.reports.delay)
    needs.reports.listen(silences.hear, lambda: len(view.jobs.store.by_index(TRAINER_STATUS, TRAINER_STATUS)))
    view.jobs.add_handler(hear_reports(silences))
    return silences


def _show_jobs(view: View, metrics: JobMetrics) -> None:
    """Exports the numbers of jobs that wait or have stalled, makes the counters of those that exist, and exports the
    launchers' Jobs, if the kind has launchers."""
    _show_waiting(view, metrics)
    kind = view.kind

    def expect_counts(job: Unstructured) -> None:
        if kind.concerns(job):
            metrics.expect(job.metadata.namespace, kind.name, kind.resource.kind)

    view.jobs.add_handler(HandlerFunctions(on_add=expect_counts))  # also on a standby
    if (name_of := kind.launcher) is not None:
        metrics.show_launchers(
            lambda: [(job.metadata.namespace, name) for job in view.jobs.store.list() if (name := name_of(job))]
        )


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


def _watch_children(controller: Controller, view: View, needs: ControllerDependencies, owner_check: OwnerCheck) -> None:
    kind = view.kind
    owner = EnqueueJob(kind, EnqueueOwner(kind.resource))

    def watch(children: Informer[T], pace: Pace | None = None, *predicates: Predicate) -> None:
        of_kind = needs.dispatchers.children_of(kind, children)
        # first, so that the reconcile which the event triggers is aware of it
        of_kind.add_handler(HandlerFunctions(on_delete=owner_check.observe_deleted))
        controller.watch(of_kind, owner, *predicates, pace=pace)

    watch(view.pods, ChildPace())
    watch(view.services, ChildPace())
    needs.evictions.listen(view.pods.store, owner.keys, controller.queue.add)
    for companions in view.companions.values():
        watch(companions)
    for each in view.needed:
        each.on_recovery(lambda: _enqueue_all(controller, view))
    if view.queue is not None:
        watch(view.queue.workloads, ChildPace(), WORKLOAD_CHANGES)
        controller.watch(view.queue.flavors, NoKeys())
        controller.watch(view.queue.classes, NoKeys())
        controller.watch(view.queue.priorities, NoKeys())
        view.queue.workloads.on_recovery(lambda: _enqueue_all(controller, view, waits_in_queue))
    if view.gang is not None:
        watch(view.gang.groups, ChildPace(), GROUP_CHANGES)
        controller.watch(view.gang.classes, NoKeys())
        view.gang.groups.on_recovery(lambda: _enqueue_all(controller, view, waits_for_groups))


def _enqueue_all(controller: Controller, view: View, concerns: Callable[[Unstructured], bool] = every_job) -> None:
    """Enqueues all jobs, or those that it concerns, when their children can be listed again: no event comes for those
    that have none."""
    for job in view.jobs.store.list():
        if concerns(job):
            controller.queue.add(job.metadata.key)
