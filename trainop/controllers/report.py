"""Reports on jobs: events, and counters of job transitions, emitted after the status that they describe was written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

import structlog

from trainop.controllers.counters import JobMetrics
from trainop.controllers.job_state import JobStates
from trainop.engine.actions import Count, Event, Notice
from trainop.engine.kind import Kind
from trainop.engine.phases import ended_phases, read_final_account
from trainop.engine.plan import VALIDATION
from trainop.engine.template_condition import find_dropped_fields, has_template_condition
from trainop.runtime import DecodeError, Json, Key, Metadata, ObjectReference, Resource, Unstructured
from trainop.runtime.lowlevel import read_time

MAX_NOTICES = 512
"""Limit of remembered notice identities per job; beyond it the oldest may be reported again."""

log = structlog.get_logger(__name__)


class EventRecorder(Protocol):
    """The part of `trainop.runtime.events.recorder.Recorder` that is used here. Never blocks."""

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None: ...


class Reporter:
    """One per kind. `pod_events` adds an event for each pod or service created or deleted and for each pod that
    succeeded, as upstream."""

    def __init__(
        self,
        kind: Kind,
        recorder: EventRecorder,
        metrics: JobMetrics,
        states: JobStates,
        *,
        pod_events: bool = False,
    ) -> None:
        self._kind = kind
        self._recorder = recorder
        self._states = states
        self._pod_events = pod_events
        self.metrics = metrics
        self._job_counters = metrics.of_jobs()
        self._own_counters = metrics.by_controller.get(kind.controller, {})

    @property
    def framework(self) -> str:
        return self._kind.name

    def event(self, job: Unstructured, event: Event) -> None:
        """Emits an event about the job."""
        log.info("event", type=event.type, reason=event.reason, message=event.message)
        resource, metadata = self._kind.resource, job.metadata
        about = ObjectReference(
            resource.api_version,
            resource.kind,
            metadata.namespace,
            metadata.name,
            metadata.uid,
            metadata.resource_version,
        )
        self._recorder.event(about, event.type, event.reason, event.message)

    def child_event(self, job: Unstructured, texts: tuple[str, str], kind: str, name: str) -> None:
        """Emits the event of a created or deleted child, if `pod_events` is set."""
        if self._pod_events:
            self.event(job, self._kind.child_events.event(texts, kind, name))

    def count(self, job: Unstructured, count: Count) -> None:
        """Increments a counter. Raises `KeyError` if none has that name."""
        counter = self._job_counters.get(count.counter)
        if counter is not None:
            counter.labels(job.metadata.namespace, self._kind.name).inc(count.by)
            if count.counter in self._own_counters:
                self._own_counters[count.counter].inc(count.by)
        elif count.counter == "failed_pods":
            self.metrics.pods_failed.inc(count.by)
        else:
            raise KeyError(f"no counter is called {count.counter!r}")

    def count_child(self, resource: Resource, what: str) -> None:
        """Counts an object that was `created`, `deleted` or `failed`, if there is a counter for its kind."""
        counter = self.metrics.of_children.get((resource.kind, what))
        if counter is not None:
            counter.inc()

    def phases(self, job: Unstructured, status: Json) -> None:
        """Counts the phases that ended with a status that was written over that of `job`, and the account
        of a job that has ended with it."""
        before, kind = job.raw.get("status"), self._kind.resource.kind
        for phase, seconds in ended_phases(before, status, read_time(job.metadata.creation_timestamp)):
            self.metrics.job_phases.labels(phase.value, kind).observe(seconds)
        account = read_final_account(before, status, job.metadata.annotations)
        if account is not None:
            self.metrics.account(kind, account)

    def transitions(self, job: Unstructured, transitions: Iterable[Event | Count]) -> None:
        """Emits events and counts of transitions. Call after the status that contains them was written."""
        for transition in transitions:
            if isinstance(transition, Event):
                self.event(job, transition)
            else:
                self.count(job, transition)

    def notices(self, job: Unstructured, notices: Iterable[Notice]) -> None:
        """Emits those whose message is new for their identity."""
        for notice in notices:
            if notice.routine and not self._pod_events:
                continue
            state = self._states.ensure(job.metadata.uid)
            reported = state.notices = OrderedDict() if state.notices is None else state.notices
            if reported.get(notice.identity) == notice.event.message:
                reported.move_to_end(notice.identity)
                continue
            reported[notice.identity] = notice.event.message
            reported.move_to_end(notice.identity)
            if len(reported) > MAX_NOTICES:
                reported.popitem(last=False)
            self.event(job, notice.event)

    def dropped_fields(self, job: Unstructured, template: str, warnings: Iterable[str]) -> None:
        """Notes what the API server has said about the fields of a created pod; `template` is the field path of its
        template in the job. The next plan reports it."""
        dropped = find_dropped_fields(warnings)
        if dropped or has_template_condition(job):
            state = self._states.ensure(job.metadata.uid)
            state.dropped_fields = {**(state.dropped_fields or {}), template: dropped}

    def forbidden(self, job: Unstructured, kinds: str) -> None:
        """Emits one event that says which kinds may not be listed in the job's namespace."""
        text = (
            "The operator does nothing for this job, because it has no permission to list and watch "
            f"{kinds} in namespace {job.metadata.namespace}: no Role or RoleBinding there grants it"
        )
        self.notices(job, [Notice("permission", Event("Warning", "NoPermission", text))])

    def unreadable(self, key: Key, error: DecodeError) -> None:
        """Emits one event per fault of a job that cannot be decoded, not even its UID and version."""
        nameless = Unstructured({}, Metadata(name=key.name, namespace=key.namespace))
        text = f"{self._kind.resource.kind} failed validation because {error.fault}"
        self.notices(nameless, [Notice(str(key), Event("Warning", f"{self._kind.resource.kind}{VALIDATION}", text))])
