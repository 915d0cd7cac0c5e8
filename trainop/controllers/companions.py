"""Writes what a job has beside its pods and services: by server-side apply, and never over what is somebody else's."""

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

TAKEN_AGAIN_AFTER = 30.0
REFUSED_AGAIN_AFTER = 300.0
"""Seconds until the next try: nothing tells when a name is free, or when what is wrong with an object is mended."""


class ForeignObjectError(ReconcileError):
    """The name of a companion is taken by an object of somebody else."""


class CompanionResult(NamedTuple):
    """What has become of one write."""

    requeue_after: float | None = None
    refused: str | None = None
    """Why the job cannot run."""
    error: Exception | None = None
    """To be retried with back-off."""


class CompanionWriter:
    """Of one kind."""

    def __init__(self, kind: Kind, client: Client, expectations: Expectations, report: Reporter) -> None:
        self._kind = kind
        self._client = client
        self._expectations = expectations
        self._report = report

    async def apply(self, job: Unstructured, action: Apply) -> CompanionResult:
        key = Key(job.metadata.namespace, action.manifest["metadata"]["name"])
        try:
            uid = action.uid or await self._find(job, action, key)
            await self._write(job, action, key, uid)
        except ForeignObjectError as error:
            self._tell(job, action, key, error)
            return CompanionResult(requeue_after=TAKEN_AGAIN_AFTER)
        except ConflictError:  # it is not the object that was seen any more
            return CompanionResult(requeue_after=1.0)
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._tell(job, action, key, error)
            return self._judge(action, error)
        return CompanionResult()

    async def _find(self, job: Unstructured, action: Apply, key: Key) -> str:
        """The UID of the object of that name, which the cache need not show; empty if there is none. Raises
        `ForeignObjectError` if it is not the job's."""
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
        """With a UID nothing but that object is written; without one nothing that others have written is changed."""
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

    def _judge(self, action: Apply, error: Exception) -> CompanionResult:
        """What pods can do without is tried again later; what they need fails the job."""
        refused = classify(error) is CreateFailure.REFUSED
        if refused and action.essential:
            return CompanionResult(refused=str(error))
        if refused or isinstance(error, NotFoundError):
            return CompanionResult(requeue_after=REFUSED_AGAIN_AFTER)
        return CompanionResult(error=error)

    def _tell(self, job: Unstructured, action: Apply, key: Key, error: Exception) -> None:
        """Once, however often it is tried."""
        kind = action.resource.kind
        event = Event("Warning", f"FailedCreate{kind}", f"Error creating: {error}")
        self._report.notices(job, [Notice(f"create {kind} {key.name}", event)])
