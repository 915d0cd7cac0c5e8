"""Writes the companions of a job: its children other than pods and services, such as PodGroups and ConfigMaps.

They are written by server-side apply. An object of the same name that the job does not control is never changed.
"""

from __future__ import annotations

from typing import NamedTuple

from trainop.controllers.api_errors import CreateFailure, classify
from trainop.controllers.report import Reporter
from trainop.engine.actions import Apply, Event, Notice
from trainop.engine.kind import Kind
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.decoding import read_object
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.errors import ApiError, ConflictError, NotFoundError, ReconcileError
from trainop.runtime.objects.metadata import Key, Unstructured

NAME_TAKEN_RETRY = 30.0
REFUSED_RETRY = 300.0
"""Seconds until the next attempt if the name is taken, or the object refused: no event announces the end of either."""


class ForeignObjectError(ReconcileError):
    """The name of a companion is taken by an object that the job does not control."""


class CompanionResult(NamedTuple):
    """The result of one write; all fields are None on success."""

    requeue_after: float | None = None
    """Seconds until the next attempt."""
    refused: str | None = None
    """The API server's message, if the job cannot run without the refused companion."""
    error: Exception | None = None
    """Retried with back-off."""


class CompanionWriter:
    """One per kind of job."""

    def __init__(self, kind: Kind, client: Client, expectations: Expectations, report: Reporter) -> None:
        self._kind = kind
        self._client = client
        self._expectations = expectations
        self._report = report

    async def apply(self, job: Unstructured, action: Apply) -> CompanionResult:
        """Writes one companion. API and connection errors are part of the result and not raised."""
        key = Key(job.metadata.namespace, action.manifest["metadata"]["name"])
        try:
            uid = action.uid or await self._find(job, action, key)
            await self._write(job, action, key, uid)
        except ForeignObjectError as error:
            self._report_failure(job, action, key, error)
            return CompanionResult(requeue_after=NAME_TAKEN_RETRY)
        except ConflictError:  # the observed object was replaced
            return CompanionResult(requeue_after=1.0)
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._report_failure(job, action, key, error)
            return self._classify(action, error)
        return CompanionResult()

    async def _find(self, job: Unstructured, action: Apply, key: Key) -> str:
        """Returns the UID of the object of that name, or "" if there is none. Asks the API server, because the cache
        holds only objects with the labels of a job. Raises `ForeignObjectError` if the job does not control it."""
        try:
            found = await self._client.get(action.resource, key.name, key.namespace)
        except NotFoundError:
            return ""
        metadata = read_object(action.resource, found).metadata
        if metadata.controller is None or metadata.controller.uid != job.metadata.uid:
            owner = f"{self._kind.resource.kind} {job.metadata.name}"
            raise ForeignObjectError(f"{action.resource.kind} {key.name} already exists and does not belong to {owner}")
        return metadata.uid

    async def _write(self, job: Unstructured, action: Apply, key: Key, uid: str) -> None:
        """With a UID only that object is written. Without one the apply is not forced: a field that another
        manager owns is a conflict."""
        manifest = action.manifest
        if uid:
            manifest = manifest | {"metadata": manifest["metadata"] | {"uid": uid}}
        answer = await self._client.patch(
            action.resource, key.name, key.namespace, manifest, kind=PatchKind.APPLY, force=bool(uid)
        )
        if not action.uid:
            uid_now = read_object(action.resource, answer).metadata.uid
            self._expectations.expect_create(job.metadata.uid, action.resource, key)
            self._expectations.created(job.metadata.uid, action.resource, key, uid_now)

    def _classify(self, action: Apply, error: Exception) -> CompanionResult:
        """A refused companion fails the job if the pods need it; otherwise it is retried later."""
        refused = classify(error) is CreateFailure.REFUSED
        if refused and action.essential:
            return CompanionResult(refused=str(error))
        if refused or isinstance(error, NotFoundError):
            return CompanionResult(requeue_after=REFUSED_RETRY)
        return CompanionResult(error=error)

    def _report_failure(self, job: Unstructured, action: Apply, key: Key, error: Exception) -> None:
        """One event per message, however often the write is retried."""
        kind = action.resource.kind
        event = Event("Warning", f"FailedCreate{kind}", f"Error creating: {error}")
        self._report.notices(job, [Notice(f"create {kind} {key.name}", event)])
