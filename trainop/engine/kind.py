"""`Kind`: the interface between the controllers and a kind of job.

The controllers (`trainop.controllers`) watch, reconcile and write for any `Kind`. `kind_of` builds the Kind of a
`Framework`, that is of jobs with a map of replica types. Other kinds define their own `plan` and `reject`, made from
the same parts: `claim`, `cleanup`, `status`, `companions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from trainop.engine import bad_nodes, checkpoint, interventions, stalls, startup
from trainop.engine import plan as engine
from trainop.engine.actions import Event, Notice, Patch, Plan
from trainop.engine.admission import Judgement, judge
from trainop.engine.checkpoint import doubt_checkpoint, end_together
from trainop.engine.children import TRAINING_CHILDREN, ChildEvents, ChildSelection
from trainop.engine.evictions import announce, respond
from trainop.engine.extensions import (
    AVOID_BAD_NODES,
    BAD_NODE_AFTER,
    BAD_NODE_FOR,
    BAD_NODES,
    CHECKPOINT_GRACE,
    ON_DISRUPTION,
    RESTART_MODE,
)
from trainop.engine.failures import seconds_to_due
from trainop.engine.fields import conditions_of
from trainop.engine.framework import CompanionKind, Framework, Words
from trainop.engine.in_place import DoubtInPlace, describe_doubt, doubt_in_place, never_in_place, report_doubt
from trainop.engine.phases import add_account
from trainop.engine.progress import ANY_ENDPOINT, PROGRESS, find_doubt
from trainop.engine.root_cause import Failure
from trainop.engine.seen import Options, Snapshot
from trainop.engine.stalls import ON_STALL, STALLED_AFTER, Restart, watch_for_stalls
from trainop.engine.startup import ON_STARTUP_DEADLINE, STARTUP_DEADLINE, GiveUp, seconds_to_startup, watch_startup
from trainop.engine.status import STALLED, STARTED
from trainop.engine.template_condition import report_dropped_fields
from trainop.engine.unknown_fields import describe_unknown_fields
from trainop.engine.waiting import say_waiting
from trainop.runtime import Change, Decoder, Resource, Unstructured, decode_unstructured
from trainop.runtime.lowlevel import read_time


def admit_all(_new: Unstructured, _old: Unstructured | None) -> Judgement:
    """Accepts every job: the kind has no validation beyond its schema."""
    return Judgement()


def warn(new: Unstructured, _old: Unstructured | None = None) -> Judgement:
    """Accepts every object, with a warning for each field of its pod templates that Kubernetes does not know."""
    return Judgement(warnings=tuple(describe_unknown_fields(new.raw)))


def every_job(_job: Unstructured) -> bool:
    """The kind has its resource for itself."""
    return True


def no_lookups(_job: Unstructured) -> Sequence[tuple[Resource, str]]:
    """The caches hold all companions."""
    return ()


def nothing_to_release(_child: Unstructured) -> Patch | None:
    """The children have no finalizers of the operator."""
    return None


def never_due(_job: Unstructured, _now: datetime) -> float | None:
    """The kind has no deadlines."""
    return None


def keep_going(_seen: Snapshot, _cause: Failure) -> Plan:
    """No deadline ends jobs of the kind."""
    return Plan()


def is_watched(job: Unstructured) -> bool:
    """Whether a job asks for anything if it stalls or does not start, or once did."""
    if not job.metadata.annotations.keys().isdisjoint(_WATCHING):
        return True
    return any(each.get("type") in (STALLED, STARTED) for each in conditions_of(job))


_SAVING = frozenset({CHECKPOINT_GRACE, ON_DISRUPTION})
_WATCHING = frozenset({STALLED_AFTER, ON_STALL, STARTUP_DEADLINE, ON_STARTUP_DEADLINE})

_ABOUT_NODES = frozenset({AVOID_BAD_NODES, BAD_NODE_AFTER, BAD_NODE_FOR, BAD_NODES})


def doubt_progress(seen: Snapshot, plan: Plan) -> Plan:
    """The plan, with one Warning if the job cannot report progress although it asks for it."""
    doubt = find_doubt(seen.job.metadata.annotations, seen.options.progress)
    if not doubt or plan.waits is None:
        return plan
    return replace(plan, notices=(*plan.notices, Notice("progress", Event("Warning", "ProgressNotReported", doubt))))


def keep_account(seen: Snapshot, plan: Plan) -> Plan:
    """The plan, whose status has the account of the job's time. That alone is never a reason for a write."""
    if plan.status is None:
        return plan
    created = read_time(seen.job.metadata.creation_timestamp)
    return replace(plan, status=add_account(seen.job.raw.get("status"), plan.status, created))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Words):
    """What the controllers need of a kind. All functions are pure and never raise, whatever a job contains."""

    name: str
    """The metric label `framework`, such as `pytorch`."""
    children: ChildSelection = TRAINING_CHILDREN
    """The labels and decoders of pods and services."""
    child_events: ChildEvents = ChildEvents()  # noqa: RUF009  # immutable
    """The events about pods and services."""
    companion_kinds: tuple[CompanionKind, ...] = ()
    """Kinds of owned objects that are watched in addition to pods and services."""
    rights_component: str = ""
    """The component of the installation that grants the rights for `component_resources`; empty: the base grants all
    rights."""
    component_resources: frozenset[Resource] = frozenset()
    """Resources of children for which the base grants no rights."""
    plan: Callable[[Snapshot], Plan]
    """Snapshot -> the actions, status and events of one reconcile."""
    reject: Callable[[Snapshot, str], Plan]
    """Snapshot and the API server's message -> the plan for a job that needs an object which the API server refused."""
    restart: Restart | None = None
    """Snapshot and a cause -> the plan for the restart of a whole job that goes on. None: the operator does not restart
    jobs of the kind."""
    doubt_in_place: DoubtInPlace = never_in_place
    give_up: GiveUp = keep_going
    """Snapshot and a cause -> the plan for the failure of a job that goes on."""
    suspends: bool = True
    """Jobs of the kind have `spec.runPolicy.suspend`."""
    judge: Callable[[Unstructured, Unstructured | None], Judgement] = admit_all
    """(new, old) -> validation of a created job, for which `old` is None, or of an updated one. Served as a validating
    webhook, but for `admit_all`."""
    template_resources: tuple[Resource, ...] = ()
    """Other resources, without a controller, with templates of pods of the jobs. A webhook warns about misspelt
    fields."""
    default: Change | None = None
    """Sets the defaults that a mutating webhook stores in a created or updated job; None: there is no such webhook."""
    due: Callable[[Unstructured, datetime], float | None] = never_due
    """Seconds until the next deadline or the time to live of a job; None without one."""
    deleted_as: str = "Job"
    """Suffix of the event reason for a job deleted after its time to live: SuccessfulDelete`Job`."""
    component: str = ""
    """The source of the events; empty: `controller`."""
    watched: Resource | None = None
    """The version of the resource that is watched and written, if it is not that of `resource`, which owner references
    and events name. Two kinds may share one resource."""
    decode: Decoder[Unstructured] = decode_unstructured
    """Decodes the watched jobs."""
    concerns: Callable[[Unstructured], bool] = every_job
    """Whether a job may be of this kind. Events of other jobs are dropped."""
    lookups: Callable[[Unstructured], Sequence[tuple[Resource, str]]] = no_lookups
    """Companions, by resource and name, that are read from the API server for the snapshot, because the caches may lack
    them: those that a former operator created without the labels of the caches."""

    release: Callable[[Unstructured], Patch | None] = nothing_to_release
    """A companion of a job that no longer exists -> the removal of the operator's finalizer, which would keep it from
    being deleted, or of the rights that it grants."""
    queued: Callable[[Snapshot, Callable[[Snapshot], Plan]], Plan] | None = None
    """Plans a job whose snapshot has a queue, given the function that plans one without; None: the operator does not
    queue jobs of the kind itself."""
    shows_taken: bool = False
    """The status shows which names objects of others have (`Snapshot.taken`)."""
    launcher: Callable[[Unstructured], str] | None = None
    """The name of the launcher's batch Job; empty for a job without one. The kind then has the metric
    `mpi_operator_job_info`."""

    def admit(self, new: Unstructured, old: Unstructured | None) -> Judgement:
        """`judge`, with a warning for each annotation that asks for what it cannot have, and for each field of the pod
        templates that Kubernetes does not know."""
        found = self.judge(new, old)
        return found._replace(warnings=(*self._find_doubts(new), *warn(new).warnings, *found.warnings))

    def _find_doubts(self, job: Unstructured) -> Iterator[str]:
        """Of each annotation of docs/survive.md that is malformed, or contradicts another or the kind. What the
        operator offers is not judged: a webhook may be served by an installation with other flags."""
        annotations, restarts = job.metadata.annotations, self.restart is not None
        if doubt := find_doubt(annotations, ANY_ENDPOINT):
            yield doubt
        yield from checkpoint.find_doubts(annotations, restarts=restarts)
        yield from stalls.find_doubts(annotations, ANY_ENDPOINT, restarts=restarts)
        yield from startup.find_doubts(annotations, suspends=self.suspends)
        yield from bad_nodes.find_doubts(annotations, restarts=restarts)
        if doubt := describe_doubt(job, self.doubt_in_place):
            yield doubt

    def decide(self, seen: Snapshot) -> Plan:
        """The plan of one reconcile, with what the job waits for, what its pods lack, and what it asks for if it is
        interrupted, stalls or does not start."""
        return self._decide(seen) if self.queued is None else self.queued(seen, self._decide)

    def _decide(self, seen: Snapshot) -> Plan:
        seen = announce(seen) if seen.evictions is not None else seen
        plan, asked = self.plan(seen), seen.job.metadata.annotations.keys()
        if PROGRESS in asked:
            plan = doubt_progress(seen, plan)
        if is_watched(seen.job):
            plan = watch_for_stalls(seen, plan, self.restart)
            plan = watch_startup(seen, plan, self.give_up, suspends=self.suspends)
        if RESTART_MODE in asked:
            plan = report_doubt(seen, plan, self.doubt_in_place)
        if not asked.isdisjoint(_ABOUT_NODES):
            counts = self.launcher is None
            plan = bad_nodes.avoid_bad_nodes(seen, plan, restarts=self.restart is not None, counts=counts)
        if not asked.isdisjoint(_SAVING):
            plan = doubt_checkpoint(seen, end_together(seen, plan), restarts=self.restart is not None)
        plan = respond(seen, plan, self.resource.kind) if seen.evictions is not None else plan
        plan = say_waiting(seen, plan)
        return keep_account(seen, report_dropped_fields(seen, plan) if seen.dropped_fields else plan)

    def refuse(self, seen: Snapshot, message: str) -> Plan:
        """`reject`, with the account of the job."""
        return keep_account(seen, self.reject(seen, message))

    def seconds_to_due(self, job: Unstructured, now: datetime) -> float | None:
        """Seconds until the next deadline of any sort, the time to live included; None without one."""
        due = self.due(job, now)
        startup = seconds_to_startup(job, now) if STARTUP_DEADLINE in job.metadata.annotations else None
        return startup if due is None else min(due, due if startup is None else startup)

    @property
    def source(self) -> Resource:
        """The resource of the job in requests to the API server."""
        return self.watched or self.resource


def kind_of(framework: Framework, options: Options | None = None) -> Kind:
    """The Kind of a Framework; `options` are the settings that validation depends on."""
    return Kind(
        resource=framework.resource,
        name=framework.name,
        controller=framework.controller,
        companion_kinds=framework.companion_kinds,
        plan=partial(engine.plan, framework),
        reject=partial(engine.reject, framework),
        restart=partial(interventions.restart_all, framework),
        doubt_in_place=partial(doubt_in_place, framework),
        give_up=partial(interventions.give_up, framework),
        judge=partial(judge, framework, options=options or Options()),
        due=seconds_to_due,
        deleted_as=framework.deleted_as,
        name_taken=framework.name_taken,
    )
