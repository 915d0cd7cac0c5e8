"""Writes the PodGroup of a job.

A refusal by the API server (an admission webhook, quota, RBAC) never fails the job: it is reported once, shown in a
condition by the next plan, and retried with back-off. A PodGroup that the job does not control is never changed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from http import HTTPStatus

from trainop.controllers.api_errors import CreateFailure, classify
from trainop.controllers.job_state import GroupWrite, JobStates, RefusedGroup
from trainop.controllers.outcome import Outcome
from trainop.controllers.refused_children import FIRST_RETRY, MAX_RETRY, edition_of
from trainop.controllers.report import Reporter
from trainop.engine.actions import CreateGroup, DeleteGroup, Event, GroupAction, Notice, UpdateGroup
from trainop.engine.seen import SeenGang
from trainop.runtime.client.client import Client
from trainop.runtime.client.decoding import read_object
from trainop.runtime.clock import Clock
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.controller.ratelimit import exponential_delay
from trainop.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
)
from trainop.runtime.objects.metadata import Key, Unstructured

RETRY = 1.0
"""Seconds until the next attempt if the PodGroup has changed; its event usually triggers an earlier pass."""
RETRY_WITHOUT_EVENT = 10.0
"""Seconds until the next attempt if the name is taken, or PodGroups are not served any more."""

MAX_REPEAT = 300.0
"""Limit of the seconds between two writes of a PodGroup whose job has not changed: each of them has been undone by
another client, such as a second operator or a user's script."""
CALM = 900.0
"""Seconds without such a write after which the back-off starts again."""
DISPUTED = 3
"""Repeated writes from which there is a Warning."""

_API_FAILURES = (ApiError, ConnectionError, TimeoutError)


class GroupWriter:
    """One per controller. Refusals are kept in `JobState.refused_group`."""

    def __init__(
        self,
        client: Client,
        expectations: Expectations,
        states: JobStates,
        report: Reporter,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._expectations = expectations
        self._states = states
        self._report = report
        self._clock = clock
        self._rng = rng

    def with_refusal(self, job: Unstructured, seen: SeenGang) -> SeenGang:
        """Adds the last refusal. A change of the job's spec or annotations ends the back-off."""
        state = self._states.find(job.metadata.uid)
        held = state.refused_group if state else None
        if held is None:
            return seen
        changed = held.edition != edition_of(job.metadata)
        retry_in = 0.0 if changed else max(0.0, held.until - self._clock.monotonic())
        return replace(seen, refused=held.message, retry_in=retry_in)

    async def carry_out(self, job: Unstructured, action: GroupAction, outcome: Outcome) -> None:
        """Carries out one action. API and connection errors are part of the outcome and not raised."""
        match action:
            case CreateGroup():
                outcome.pods_wait = self._is_held(job, outcome) or not await self._create(job, action, outcome)
            case UpdateGroup() if not self._is_held(job, outcome):
                await self._update(job, action, outcome)
            case DeleteGroup():
                await self._delete(job, action, outcome)

    def _is_held(self, job: Unstructured, outcome: Outcome) -> bool:
        """Whether the PodGroup has to wait, because another client has just undone the last write for this spec."""
        last = self._states.ensure(job.metadata.uid).group_write
        wait = last.until - self._clock.monotonic() if last else 0.0
        if last is None or wait <= 0 or last.edition != edition_of(job.metadata):
            return False
        outcome.wait(wait)
        return True

    def _record_write(self, job: Unstructured, action: CreateGroup | UpdateGroup) -> None:
        """Ends the back-off after refusals, and counts writes that repeat an earlier one for the same spec."""
        state, now, edition = self._states.ensure(job.metadata.uid), self._clock.monotonic(), edition_of(job.metadata)
        state.refused_group = None
        last = state.group_write
        repeated = last is not None and last.edition == edition and now - last.until < CALM
        repeats = last.repeats + 1 if last is not None and repeated else 0
        wait = exponential_delay(self._rng, repeats, base=RETRY, cap=MAX_REPEAT)
        state.group_write = GroupWrite(edition, now + wait, repeats)
        if repeats >= DISPUTED:
            verb = "Create" if isinstance(action, CreateGroup) else "Update"
            text = "another client keeps undoing this, so it is repeated less often, in the end every five minutes"
            event = Event("Warning", f"Failed{verb}{action.resource.kind}", f"Error writing {action.name}: {text}")
            self._report.notices(job, [Notice("disputed group", event)])

    async def _create(self, job: Unstructured, action: CreateGroup, outcome: Outcome) -> bool:
        """Returns whether the PodGroup exists now."""
        owner, key = job.metadata.uid, Key(job.metadata.namespace, action.name)
        self._expectations.expect_create(owner, action.resource, key)
        uid = None
        try:
            answer = await self._client.create(
                action.resource, action.manifest, namespace=key.namespace, metadata_only=True
            )
            uid = str(answer["metadata"]["uid"])
            self._record_write(job, action)
            self._report.metrics.pod_groups_created.inc()
        except AlreadyExistsError:
            uid = await self._uid_if_ours(job, action, outcome)
        except NotFoundError:  # the kind is not served any more, as the cache will show
            outcome.wait(RETRY_WITHOUT_EVENT)
        except _API_FAILURES as error:
            self._record_failure(job, action, error, outcome)
        finally:
            if uid is None:
                self._expectations.create_failed(owner, action.resource, key)
            else:
                self._expectations.created(owner, action.resource, key, uid)
        return uid is not None

    async def _uid_if_ours(self, job: Unstructured, action: CreateGroup, outcome: Outcome) -> str | None:
        """The UID of the existing PodGroup, if the job controls it. Another one is shown by the cache."""
        try:
            found = await self._client.get(action.resource, action.name, job.metadata.namespace)
            metadata = read_object(action.resource, found).metadata
        except NotFoundError:  # deleted in between
            outcome.wait(RETRY)
            return None
        except _API_FAILURES as error:
            outcome.errors.append(error)
            return None
        if metadata.controller and metadata.controller.uid == job.metadata.uid and not metadata.terminating:
            return metadata.uid
        outcome.wait(RETRY_WITHOUT_EVENT)
        return None

    async def _update(self, job: Unstructured, action: UpdateGroup, outcome: Outcome) -> None:
        body = {"metadata": {"resourceVersion": action.version}, "spec": action.changes}
        try:
            await self._client.patch(action.resource, action.name, job.metadata.namespace, body, metadata_only=True)
            self._record_write(job, action)
        except (ConflictError, NotFoundError):  # the observed PodGroup was changed, replaced or deleted
            outcome.wait(RETRY)
        except _API_FAILURES as error:
            self._record_failure(job, action, error, outcome)

    def _record_failure(
        self, job: Unstructured, action: CreateGroup | UpdateGroup, error: Exception, outcome: Outcome
    ) -> None:
        """A refusal is remembered, so that the next plan shows it; any other failure is retried with back-off."""
        verb, word = ("Create", "creating") if isinstance(action, CreateGroup) else ("Update", "updating")
        if isinstance(error, ApiError) and error.namespace_terminating:
            outcome.wait(RETRY_WITHOUT_EVENT)  # the job is about to be deleted too
            return
        if isinstance(error, ApiError) and not isinstance(error, TooManyRequestsError | UnauthorizedError):
            # Also a failure that may pass at once: an admission webhook that does not answer may be down for long.
            event = Event("Warning", f"Failed{verb}{action.resource.kind}", f"Error {word}: {error}")
            self._report.notices(job, [Notice(f"{verb} group", event)])
        if not _is_refused(error):
            outcome.errors.append(error)
            return
        state = self._states.ensure(job.metadata.uid)
        failures = state.refused_group.failures if state.refused_group else 0
        wait = exponential_delay(self._rng, failures, base=FIRST_RETRY, cap=MAX_RETRY)
        until = self._clock.monotonic() + wait
        state.refused_group = RefusedGroup(edition_of(job.metadata), str(error), until, failures + 1)
        outcome.wait(0.0)

    async def _delete(self, job: Unstructured, action: DeleteGroup, outcome: Outcome) -> None:
        """Deletes the PodGroup, with upstream's events only if one was deleted."""
        owner, key = job.metadata.uid, Key(job.metadata.namespace, action.name)
        self._expectations.expect_delete(owner, action.resource, key, action.uid)
        sent = False
        try:
            await self._client.delete(action.resource, key.name, key.namespace, uid=action.uid)
            sent = True
            self._states.ensure(owner).refused_group = None
            self._report.metrics.pod_groups_deleted.inc()
            self._report.event(job, Event("Normal", "JobTerminated", "Job has been terminated. Deleting PodGroup"))
            self._report.event(job, Event("Normal", "SuccessfulDeletePodGroup", f"Deleted PodGroup: {key.name}"))
        except (NotFoundError, ConflictError):  # already deleted or replaced, as the cache will show
            sent = True
        except _API_FAILURES as error:
            event = Event("Warning", "FailedDeletePodGroup", f"Error deleting: {error}")
            self._report.notices(job, [Notice("Delete group", event)])
            outcome.errors.append(error)
        finally:
            if not sent:
                self._expectations.delete_failed(owner, action.resource, key, action.uid)


def _is_refused(error: Exception) -> bool:
    """Whether the API server would refuse the same write again: also for lack of quota or permission, both of which an
    administrator has to grant."""
    if classify(error) in (CreateFailure.REFUSED, CreateFailure.QUOTA):
        return True
    return isinstance(error, ApiError) and error.code == HTTPStatus.FORBIDDEN
