"""What follows from the API server's answers to the writes of owned objects: for the job, for its next pass, and in
events and counters."""

from __future__ import annotations

import random
from http import HTTPStatus

import structlog

from trainop.controllers.api_errors import CreateFailure, classify, lacks_rights
from trainop.controllers.job_state import JobStates
from trainop.controllers.outcome import Disputes, Outcome, Refused
from trainop.controllers.report import Reporter
from trainop.engine.actions import LOOK_AGAIN, Ensure, Event, How, Need, Notice, Patch, Remove
from trainop.engine.children import ChildEvents
from trainop.engine.framework import NameTaken
from trainop.engine.in_place import keeps_rules, refuses_rules
from trainop.engine.kind import Kind
from trainop.engine.kueue import WORKLOADS
from trainop.runtime import (
    PODS,
    SERVICES,
    ApiError,
    Clock,
    InvalidError,
    Json,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    Unstructured,
)

NOT_UPDATED = ("FailedUpdate{kind}", "Error updating: {error}")
"""Reason and message of the event about a patch that failed (`ChildEvents`)."""

REPLICAS = (PODS, SERVICES)

log = structlog.get_logger(__name__)


class Consequences:
    """One per kind."""

    def __init__(self, kind: Kind, states: JobStates, report: Reporter, *, clock: Clock, rng: random.Random) -> None:
        self._kind = kind
        self._states = states
        self._report = report
        self._disputes = Disputes(states, clock, rng)

    def is_disputed(self, job: Unstructured, outcome: Outcome) -> bool:
        """Whether the PodGroup has to wait, because another client has just undone the last write for this spec."""
        wait = self._disputes.seconds_to_write(job.metadata)
        if wait > 0:
            outcome.wait(wait)
        return wait > 0

    def written_gate(self, job: Unstructured, action: Ensure | Patch) -> None:
        if self._disputes.record(job.metadata):
            verb = "Create" if isinstance(action, Ensure) else "Update"
            text = "another client keeps undoing this, so it is repeated less often, in the end every five minutes"
            event = Event("Warning", f"Failed{verb}{action.resource.kind}", f"Error writing {action.name}: {text}")
            self._report.notices(job, [Notice("disputed group", event)])

    def filled(self, job: Unstructured, uid: str) -> None:
        """Remembers an object whose content was made here."""
        state = self._states.ensure(job.metadata.uid)
        state.filled |= {uid}

    def has_filled(self, job: Unstructured, uid: str) -> bool:
        """Whether the content of the object was made by this process. The caches may not show yet what it led to: the
        answer to a create may be lost, although the object exists."""
        return uid in self._states.ensure(job.metadata.uid).filled

    def created(self, job: Unstructured, action: Ensure, answer: Json) -> None:
        """`answer`: the object, of which only a pod with rules is complete."""
        if action.has_rules:
            self._states.ensure(job.metadata.uid).serves_rules = keeps_rules(answer)
        self._report.count_child(action.resource, "created")
        log.debug("child created", resource=str(action.resource), child=action.name)
        if action.resource in REPLICAS:
            self._report.child_event(job, self._kind.child_events.created, action.resource.kind, action.name)
        if action.need is Need.PODS:
            self.written_gate(job, action)

    def removed(self, job: Unstructured, action: Remove) -> None:
        self._report.count_child(action.resource, "deleted")
        log.debug("child deleted", resource=str(action.resource), child=action.name)
        for event in action.then:
            self._report.event(job, event)
        if not action.then:
            self._report.child_event(job, self._kind.child_events.deleted, action.resource.kind, action.name)

    def name_taken(self, job: Unstructured, action: Ensure, error: Exception, outcome: Outcome) -> None:
        """One event per message, however often the write is retried, in the words of the kind if it has its own."""
        kind, name, taken = action.resource.kind, action.name, self._kind.name_taken
        if action.resource == WORKLOADS:  # the condition Admitted says it, from the next plan on
            outcome.refuse(Refused(kind, name, str(error).replace(name, "*"), ChildEvents().not_created))
            outcome.wait(0.0)
            return
        if action.how is How.POST and taken == NameTaken():
            event = self._kind.child_events.event(self._kind.child_events.not_created, kind, name, error)
        else:
            event = taken.event(kind, name, f"{self._kind.resource.kind} {job.metadata.name}")
        self._report.notices(job, [Notice(f"create {kind} {name}", event)])
        outcome.hinder(kind, name, error)
        outcome.taken.add((kind, name))
        if action.how is not How.POST:
            outcome.halt(action.need)
        outcome.wait(LOOK_AGAIN)

    def failed(self, job: Unstructured, action: Ensure | Patch, error: Exception, outcome: Outcome) -> None:
        """Adds the consequence of a failed write to the outcome, and reports it."""
        if _is_about_rules(action, error):
            self._states.ensure(job.metadata.uid).serves_rules = False
            outcome.halt(action.need)
            outcome.wait(0.0)  # the next plan makes pods without them
            return
        kind, name, failure, gates = action.resource.kind, action.name, classify(error), action.need is Need.PODS
        if not gates:
            outcome.hinder(kind, name, error, "created" if action.resource in REPLICAS else "written")
        if failure is CreateFailure.NAMESPACE_TERMINATING or (gates and isinstance(error, NotFoundError)):
            outcome.wait(LOOK_AGAIN)  # the job is about to be deleted, too; or the caches will show what is missing
            return
        self._report.count_child(action.resource, "failed")
        texts = NOT_UPDATED
        if isinstance(action, Ensure):  # a kind has words of its own for pods and services only
            is_replica = action.resource in REPLICAS and action.how is How.POST
            texts = (self._kind.child_events if is_replica else ChildEvents()).not_created
        if _goes_on(action, error, outcome.begun):
            outcome.refuse(Refused(kind, name, str(error).replace(name, "*"), texts))
            if gates:
                outcome.wait(0.0)  # the next plan shows it
            return
        self._report_failure(job, action, error, texts)
        if failure is CreateFailure.REFUSED and isinstance(action, Ensure):
            outcome.refused = outcome.refused or str(error)
        elif failure in (CreateFailure.QUOTA, CreateFailure.NOT_PERMITTED) and action.resource in REPLICAS:
            outcome.blocked = True
        else:
            outcome.errors.append(error)
            if action.resource not in REPLICAS:
                outcome.halt(action.need)

    def _report_failure(
        self, job: Unstructured, action: Ensure | Patch, error: Exception, texts: tuple[str, str]
    ) -> None:
        """An event about a pod or service for each attempt, as upstream; about other objects one per message."""
        kind, component = action.resource.kind, self._kind.rights_component
        event = self._kind.child_events.event(texts, kind, action.name, error)
        if action.resource in REPLICAS:
            self._report.event(job, event)
            return
        if isinstance(error, TooManyRequestsError | UnauthorizedError):
            return  # nothing that concerns the object
        if component and action.resource in self._kind.component_resources and lacks_rights(error):
            what = f"{kind} {action.name}"
            text = f"The operator lacks the rights for {what}, which its component {component} grants"
            event = Event("Warning", event.reason, text)
        self._report.notices(job, [Notice(f"{type(action).__name__} {kind} {action.name}", event)])


def _is_about_rules(action: Ensure | Patch, error: Exception) -> bool:
    """Whether the API server refuses a pod for its rules for restarts in place."""
    has_rules = isinstance(action, Ensure) and action.has_rules
    return has_rules and isinstance(error, InvalidError) and refuses_rules(str(error))


def _goes_on(action: Ensure | Patch, error: Exception, begun: bool) -> bool:
    """Whether the job goes on without an object that the API server would refuse again. Of a PodGroup also for lack of
    quota or permission, both of which an administrator has to grant."""
    if isinstance(action, Patch) and action.need is not Need.PODS:
        return False
    if action.need is Need.PODS and isinstance(error, ApiError) and error.code == HTTPStatus.FORBIDDEN:
        return True
    refused = classify(error) is CreateFailure.REFUSED
    missing = isinstance(error, NotFoundError) and action.resource not in REPLICAS
    return missing or (refused and (begun or action.need is not Need.JOB))
