"""Writes the companions of a job: its children other than pods and services, such as PodGroups and ConfigMaps.

They are written by server-side apply. An object of the same name that the job does not control is never changed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from trainop.controllers.api_errors import CreateFailure, classify, lacks_rights
from trainop.controllers.report import Reporter
from trainop.engine.actions import Apply, CompanionAction, CreateOnce, Event, Notice, Patch
from trainop.engine.kind import Kind
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.decoding import read_object
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, ReconcileError
from trainop.runtime.objects.metadata import Json, Key, Unstructured
from trainop.runtime.objects.resource import SERVICES

NAME_TAKEN_RETRY = 30.0
REFUSED_RETRY = 300.0
"""Seconds until the next attempt if the name is taken, or the object refused: no event announces the end of either."""


NOTHING = Unstructured({})
"""Has the UID "", with which an apply creates the object."""


class ForeignObjectError(ReconcileError):
    """The name of a companion is taken by an object that the job does not control."""


class ContentInUseError(ReconcileError):
    """An object is missing or unusable, and its content must not be made anew now."""


class CompanionResult(NamedTuple):
    """The result of one write; all fields are None on success."""

    requeue_after: float | None = None
    """Seconds until the next attempt."""
    refused: str | None = None
    """The API server's message, if the job cannot run without the refused companion."""
    error: Exception | None = None
    """Retried with back-off."""
    taken: bool = False
    """An object of another owner has the name, or the observed object was replaced."""


class CompanionWriter:
    """One per kind of job."""

    def __init__(self, kind: Kind, client: Client, expectations: Expectations, report: Reporter) -> None:
        self._kind = kind
        self._client = client
        self._expectations = expectations
        self._report = report

    async def write(self, job: Unstructured, action: CompanionAction) -> CompanionResult:
        """Writes one companion. API and connection errors are part of the result and not raised."""
        if isinstance(action, Patch):
            return await self._patch(job, action)
        key = Key(job.metadata.namespace, action.manifest["metadata"]["name"])
        try:
            if isinstance(action, Apply):
                await self._create_or_apply(job, action, key)
            else:
                await self._create_once(job, action, key)
        except ForeignObjectError:
            self._report_taken(job, action, key)
            return CompanionResult(requeue_after=NAME_TAKEN_RETRY, taken=True)
        except ContentInUseError as error:
            event = Event("Warning", f"{action.resource.kind}Unusable", str(error))
            self._report.notices(job, [Notice(f"in use/{key.name}", event)])
            return CompanionResult(requeue_after=NAME_TAKEN_RETRY, taken=True)
        except ConflictError:  # the observed object was replaced
            return CompanionResult(requeue_after=1.0)
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._report_failure(job, action, key, error)
            return self._classify(action, error)
        return CompanionResult()

    async def _patch(self, job: Unstructured, action: Patch) -> CompanionResult:
        body = {**action.body, "metadata": {**action.body.get("metadata", {}), "uid": action.uid}}
        namespace = job.metadata.namespace
        try:
            await self._client.patch(
                action.resource, action.name, namespace, body, subresource=action.subresource, metadata_only=True
            )
        except (NotFoundError, ConflictError):  # deleted or replaced, as the caches will show
            return CompanionResult(requeue_after=1.0, taken=True)
        except (ApiError, ConnectionError, TimeoutError) as error:
            return CompanionResult(error=error)
        if "labels" in body["metadata"]:  # by which the caches will hold an object of a former operator
            self._expect(job, action, Key(namespace, action.name), action.uid)
        return CompanionResult()

    async def _find(self, job: Unstructured, action: Apply | CreateOnce, key: Key) -> Unstructured | None:
        """Returns the object of that name, or None if there is none. Asks the API server, because the cache holds only
        objects with the labels of a job. Raises `ForeignObjectError` if the job does not control it."""
        try:
            found = await self._client.get(action.resource, key.name, key.namespace)
        except NotFoundError:
            return None
        read = read_object(action.resource, found)
        owner = read.metadata.controller
        if owner is None or owner.uid != job.metadata.uid:
            raise ForeignObjectError(f"{action.resource.kind} {key.name} is not controlled by the job")
        return read

    async def _create_once(self, job: Unstructured, action: CreateOnce, key: Key) -> None:
        """Creates the object, or completes the one of a former operator or an interrupted pass."""
        if action.posted and not action.in_use:
            with suppress(AlreadyExistsError):
                await self._post(job, action, key, await _filled(action))
                return
        found = await self._find(job, action, key)
        usable = found is not None and await _is_usable(action, found)
        if action.in_use and not usable:
            state = "does not exist" if found is None else "is not usable"
            raise ContentInUseError(f"{action.resource.kind} {key.name} {state}, but {action.in_use}")
        if found is None:
            await self._post(job, action, key, await _filled(action))
            return
        labels = action.manifest["metadata"]["labels"]
        body: Json = {}
        if not usable:
            body = await asyncio.to_thread(action.fill) if action.fill else {}
        if body or not labels.items() <= found.metadata.labels.items():
            body |= {"metadata": {"labels": labels, "uid": found.metadata.uid}}
            await self._client.patch(action.resource, key.name, key.namespace, body, metadata_only=True)
            self._expect(job, action, key, found.metadata.uid)

    async def _post(self, job: Unstructured, action: Apply | CreateOnce, key: Key, manifest: Json) -> None:
        own = isinstance(action, Apply)  # what is created once may have a user's template, as a batch Job
        answer = await self._client.create(action.resource, manifest, namespace=key.namespace, own_fields=own)
        self._expect(job, action, key, read_object(action.resource, answer).metadata.uid)

    def _expect(self, job: Unstructured, action: CompanionAction, key: Key, uid: str) -> None:
        """Registers an object that the caches do not hold yet, if the kind watches the resource."""
        if action.resource == SERVICES or any(each.resource == action.resource for each in self._kind.companion_kinds):
            self._expectations.expect_create(job.metadata.uid, action.resource, key)
            self._expectations.created(job.metadata.uid, action.resource, key, uid)

    async def _create_or_apply(self, job: Unstructured, action: Apply, key: Key) -> None:
        """Creates an object that is not in the snapshot, unless the API server has one of that name."""
        if not action.uid and action.posted:
            with suppress(AlreadyExistsError):
                await self._post(job, action, key, action.manifest)
                return
        uid = action.uid or (await self._find(job, action, key) or NOTHING).metadata.uid
        await self._apply(job, action, key, uid)

    async def _apply(self, job: Unstructured, action: Apply, key: Key, uid: str) -> None:
        """With a UID only that object is written. Without one the apply is not forced: a field that another
        manager owns is a conflict."""
        manifest = action.manifest
        if uid:
            manifest = manifest | {"metadata": manifest["metadata"] | {"uid": uid}}
        answer = await self._client.patch(
            action.resource, key.name, key.namespace, manifest, kind=PatchKind.APPLY, force=bool(uid)
        )
        if not action.uid:
            self._expect(job, action, key, read_object(action.resource, answer).metadata.uid)

    def _classify(self, action: Apply | CreateOnce, error: Exception) -> CompanionResult:
        """A refused companion fails the job if the pods need it; otherwise it is retried later."""
        refused = classify(error) is CreateFailure.REFUSED
        if refused and action.essential:
            return CompanionResult(refused=str(error))
        if refused or isinstance(error, NotFoundError):
            return CompanionResult(requeue_after=REFUSED_RETRY)
        return CompanionResult(error=error)

    def _report_taken(self, job: Unstructured, action: Apply | CreateOnce, key: Key) -> None:
        taken, kind = self._kind.name_taken, action.resource.kind
        owner = f"{self._kind.resource.kind} {job.metadata.name}"
        text = taken.message.format(kind=kind, name=key.name, job=owner)
        event = Event("Warning", taken.reason.format(kind=kind), text)
        self._report.notices(job, [Notice(f"create {kind} {key.name}", event)])

    def _report_failure(self, job: Unstructured, action: Apply | CreateOnce, key: Key, error: Exception) -> None:
        """One event per message, however often the write is retried."""
        kind = action.resource.kind
        event = Event("Warning", f"FailedCreate{kind}", self._explain(action, key, error))
        self._report.notices(job, [Notice(f"create {kind} {key.name}", event)])

    def _explain(self, action: Apply | CreateOnce, key: Key, error: Exception) -> str:
        """Names the component of the installation that is missing, or repeats the API server's message."""
        kind = self._kind
        if action.resource in kind.component_resources and lacks_rights(error):
            what = f"{action.resource.kind} {key.name}"
            return f"The operator lacks the rights for {what}, which its component {kind.rights_component} grants"
        return f"Error creating: {error}"


async def _is_usable(action: CreateOnce, found: Unstructured) -> bool:
    return action.is_valid is None or await asyncio.to_thread(action.is_valid, found.raw)


async def _filled(action: CreateOnce) -> Json:
    """The complete manifest."""
    return action.manifest if action.fill is None else action.manifest | await asyncio.to_thread(action.fill)
