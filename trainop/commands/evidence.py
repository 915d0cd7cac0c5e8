"""Collects the evidence about a job, with the user's own rights and few requests.

Beyond the pages of pods and events, at most `MAX_REQUESTS` requests are sent: what is asked for depends on what the
pods and the job show. Whatever may not be read, or cannot be, is named in the evidence, and the rest is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from trainop.commands.connection import Connection
from trainop.commands.loglines import blocks_of
from trainop.commands.target import Target
from trainop.engine.fields import as_list, as_object
from trainop.engine.gang_scheduler import COSCHEDULING, KUBE, VOLCANO
from trainop.engine.kueue import LOCAL_QUEUES, OLDER, QUEUE, WORKLOADS
from trainop.explain.why.evidence import (
    Evidence,
    OperatorFacts,
    PodFacts,
    as_number,
    as_text,
    as_texts,
    by,
    read_events,
    read_pod,
)
from trainop.explain.why.operator import UNTOUCHED_AFTER
from trainop.explain.why.pods import STUCK_AFTER
from trainop.programs.schemes import TRAIN_JOBS
from trainop.runtime import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NODES,
    PODS,
    ApiError,
    GoneError,
    Json,
    NotFoundError,
    Resource,
)
from trainop.runtime.lowlevel import Request, read_time

T = TypeVar("T")

MAX_REQUESTS = 5
"""Requests beyond the job itself and the pages of pods and events."""

MAX_EVENTS = 20_000
"""Events of the namespace that are looked at. The evidence says if there are more."""

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")

_OPERATORS = {"MPIJob": ("training-operator", "mpi-operator"), "DIJob": ("training-operator", "di-operator")}
"""Kind -> names of the Deployments that may handle it; else the first."""


class Collector:
    """Collects the evidence about one job."""

    def __init__(self, connection: Connection, target: Target) -> None:
        self._client, self._now = connection.client, connection.now
        self._target = target
        self._unread: list[str] = []
        self._left = MAX_REQUESTS

    async def collect(self) -> Evidence:
        """What can be read. Raises `ConnectionError` or `TimeoutError` if the API server does not answer."""
        now, job, target = self._now or datetime.now(UTC), self._target.raw, self._target
        pods = tuple([read_pod(each) async for each in self._pages(PODS, target.pod_selector)])
        names = [each.name for each in pods]
        events = read_events([each async for each in self._pages(EVENTS, "")], job, names)
        seen = Evidence(kind=target.type.resource.kind, job=job, now=now, pods=pods, events=events)
        return Evidence(
            kind=seen.kind,
            job=job,
            now=now,
            pods=pods,
            events=events,
            nodes=await self._nodes(seen),
            operators=await self._operators(seen),
            workloads=(workloads := await self._workloads(seen)),
            queues=await self._queues(seen) if not workloads else None,
            group=await self._group(seen),
            crd_fields=await self._crd_fields(seen),
            last_output=await self._last_output(seen),
            unread=tuple(self._unread),
        )

    async def _pages(self, resource: Resource, selector: str) -> AsyncIterator[Json]:
        """The objects of the namespace, one page in memory at a time."""
        query, token, count = ({"labelSelector": selector} if selector else {}), "", 0
        try:
            while True:
                page = await self._client.page(resource, self._target.namespace, query, token, retry=True)
                for raw in page.items:
                    yield msgspec.json.decode(raw)
                count += len(page.items)
                token = page.token
                if token and resource == EVENTS and count >= MAX_EVENTS:
                    self._unread.append(f"events beyond the first {count:,} of the namespace")
                    return
                if not token:
                    return
        except GoneError:
            self._unread.append(f"some {resource.plural}: the list changed while it was read")
        except ApiError as error:
            self._unread.append(f"{resource.plural}: {error}")

    async def _ask(self, what: str, request: Coroutine[Any, Any, T]) -> T | None:
        """One of the few further requests; None if it fails, or there were too many."""
        if not self._left:
            request.close()
            return None
        self._left -= 1
        try:
            return await request
        except NotFoundError:
            return None
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._unread.append(f"{what}: {error}")
            return None

    # The story --------------------------------------------------------------------------------------------------------

    async def collect_story(self) -> Evidence:
        """What `trainop describe` tells the story from. If the API server goes away meanwhile, that is named, and what
        was read by then is told."""
        now, job, target = self._now or datetime.now(UTC), self._target.raw, self._target
        pods: list[PodFacts] = []
        items: list[Json] = []
        await self._gather(PODS, target.pod_selector, lambda raw: pods.append(read_pod(raw)))
        await self._gather(EVENTS, "", lambda raw: items.append(raw) if _may_concern(raw, target.name) else None)
        events = read_events(items, job, [each.name for each in pods])
        seen = Evidence(kind=target.type.resource.kind, job=job, now=now, pods=tuple(pods), events=events)
        queued = QUEUE in as_object(seen.metadata.get("labels"))
        return replace(
            seen,
            workloads=await self._read_workloads(seen) if queued else (),
            group=await self._read_group(seen),
            vanished=await self._has_vanished(),
            unread=tuple(self._unread),
        )

    async def _gather(self, resource: Resource, selector: str, take: Callable[[Json], object]) -> None:
        try:
            async for raw in self._pages(resource, selector):
                take(raw)
        except (ConnectionError, TimeoutError) as error:
            self._unread.append(f"all {resource.plural}: {error}")

    async def _has_vanished(self) -> bool:
        """Whether the job was deleted since it was read."""
        unread = len(self._unread)
        found = await self._ask(
            "the job again", self._client.get(self._target.type.resource, self._target.name, self._target.namespace)
        )
        uid = as_object(self._target.raw.get("metadata")).get("uid")
        return len(self._unread) == unread and as_object(as_object(found).get("metadata")).get("uid") != uid

    # What depends on what was seen ------------------------------------------------------------------------------------

    async def _nodes(self, seen: Evidence) -> dict[str, Json]:
        """Those of stuck pods, and of pods that run without being ready."""
        stuck = [each.node for each in seen.pods if each.node and _is_stuck(seen, each)]
        unready = [each.node for each in seen.pods if each.node and each.phase == "Running" and not each.ready]
        found = {}
        for name in list(dict.fromkeys([*stuck, *unready]))[:2]:
            unread = len(self._unread)
            node = await self._ask(f"node {name}", self._client.get(NODES, name))
            if len(self._unread) == unread:
                found[name] = node or {}
        return found

    async def _operators(self, seen: Evidence) -> tuple[OperatorFacts, ...] | None:
        """The Deployments that may be the operator, if nobody has touched the job."""
        if seen.status or seen.age < UNTOUCHED_AFTER:
            return None
        found: list[OperatorFacts] = []
        read = False
        for name in _OPERATORS.get(seen.kind, ("training-operator",)):
            selector = f"metadata.name={name}"
            listing = await self._ask("deployments", self._client.list(DEPLOYMENTS, field_selector=selector))
            if listing is not None:
                read = True
                found += map(read_operator, listing.items)
        return tuple(found) if read else None

    async def _workloads(self, seen: Evidence) -> tuple[Json, ...]:
        """Those of Kueue, if the job waits in a queue."""
        return await self._read_workloads(seen) if _is_queued(seen) else ()

    async def _read_workloads(self, seen: Evidence) -> tuple[Json, ...]:
        selector = f"kueue.x-k8s.io/job-uid={seen.metadata.get('uid')}"
        return tuple(await self._ask("workloads", self._list_of_kueue(WORKLOADS, selector)) or ())

    async def _queues(self, seen: Evidence) -> tuple[str, ...] | None:
        if not _is_queued(seen):
            return None
        found = await self._ask("localqueues", self._list_of_kueue(LOCAL_QUEUES))
        return None if found is None else tuple(each["metadata"]["name"] for each in found)

    async def _list_of_kueue(self, resource: Resource, selector: str = "") -> list[Json]:
        """Objects of Kueue, in the version that the cluster serves. Raises API errors."""
        namespace = self._target.namespace
        try:
            return (await self._client.list(resource, namespace, label_selector=selector)).items
        except NotFoundError:
            if not self._left:
                raise
            self._left -= 1
            return (await self._client.list(OLDER[resource], namespace, label_selector=selector)).items

    async def _group(self, seen: Evidence) -> Json | None:
        """The PodGroup, if the pods wait for a gang scheduler."""
        if seen.finished or any(each.scheduled for each in seen.pods):
            return None
        return await self._read_group(seen)

    async def _read_group(self, seen: Evidence) -> Json | None:
        """The PodGroup, if the job may have one."""
        schedulers = {each.scheduler for each in seen.pods} - {"", "default-scheduler"}
        in_tree = any(each.group for each in seen.pods)
        if not schedulers and not in_tree and "schedulingPolicy" not in seen.policy:
            return None
        resource = (KUBE if in_tree else VOLCANO if VOLCANO.name in schedulers else COSCHEDULING).groups
        return await self._ask("podgroups", self._client.get(resource, self._target.name, self._target.namespace))

    async def _crd_fields(self, seen: Evidence) -> frozenset[str] | None:
        """Fields of the status in the CRD, if the status of a failed job lacks what ours would have."""
        if seen.finished != "Failed" or "lastFailure" in seen.status:
            return None
        crd = await self._ask("the CRD", self._client.get(CUSTOM_RESOURCE_DEFINITIONS, str(self._target.type.resource)))
        return None if crd is None else frozenset(status_fields(crd, self._target.type.resource.version))

    async def _last_output(self, seen: Evidence) -> dict[str, datetime]:
        """When the first two running replicas printed something last."""
        if seen.finished:
            return {}
        running = sorted((each for each in seen.pods if each.phase == "Running"), key=lambda each: each.label)
        found = {}
        for pod in running[:2]:
            at = await self._ask(f"the log of {pod.name}", self._last_line(pod.name))
            if at is not None:
                found[pod.label] = at
        return found

    async def _last_line(self, pod: str) -> datetime | None:
        query = {"tailLines": "1", "timestamps": "true"}
        path = PODS.path(self._target.namespace, pod, "log")
        stream = await self._client.open(Request("GET", path, query))
        try:
            times = [lines[-1].time async for lines in blocks_of(stream.chunks())]
        finally:
            await stream.close()
        return read_time(times[-1]) if times else None


def _may_concern(event: Json, job: str) -> bool:
    """Whether an event may be about the job or one of its objects, so that it is kept."""
    return as_text(as_object(event.get("involvedObject")).get("name")).startswith(job)


def _is_stuck(seen: Evidence, pod: PodFacts) -> bool:
    return pod.deadline is not None and (seen.now - pod.deadline).total_seconds() > STUCK_AFTER


def _is_queued(seen: Evidence) -> bool:
    suspended = seen.policy.get("suspend") is True or seen.spec.get("suspend") is True
    return suspended and QUEUE in as_object(seen.metadata.get("labels"))


def read_operator(deployment: Json) -> OperatorFacts:
    """What a Deployment says about the operator in it."""
    metadata, spec, status = (as_object(deployment.get(name)) for name in ("metadata", "spec", "status"))
    containers = as_list(as_object(as_object(spec.get("template")).get("spec")).get("containers"))
    container = containers[0] if containers else {}
    words = [each for name in ("command", "args") for each in as_texts(container.get(name))]
    variables = by("name", as_list(container.get("env")))
    return OperatorFacts(
        name=as_text(metadata.get("name")),
        namespace=as_text(metadata.get("namespace")),
        image=as_text(container.get("image")),
        ready=as_number(status.get("readyReplicas")),
        wanted=as_number(spec.get("replicas"), 1),
        schemes=tuple(name for each in _values(words, "enable-scheme") if (name := each.lower()) != TRAIN_JOBS.lower()),
        watched=next(iter(_values(words, "namespace")), "")
        or as_text(variables.get("KUBEFLOW_NAMESPACE", {}).get("value")),
    )


def _values(words: Iterable[str], flag: str) -> list[str]:
    """The values of a Go flag in its forms `--flag=value`, `-flag value`."""
    found: list[str] = []
    pending = False
    for word in words:
        name, is_complete, value = word.lstrip("-").partition("=")
        if pending:
            found.append(word)
            pending = False
        elif word.startswith("-") and name == flag:
            pending = not is_complete
            found += [value] if is_complete else []
    return found


def status_fields(crd: Json, version: str) -> Iterable[str]:
    """The names of the fields of the status in a version of a CRD."""
    for each in as_list(as_object(crd.get("spec")).get("versions")):
        if each.get("name") == version:
            schema = as_object(as_object(each.get("schema")).get("openAPIV3Schema"))
            status = as_object(as_object(schema.get("properties")).get("status"))
            yield from as_object(status.get("properties"))
