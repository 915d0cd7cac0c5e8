"""Asks a cluster whether it has what the jobs of `trainop check --context` need, with the user's own rights.

At most `MAX_REQUESTS` requests are sent for all jobs, besides further pages of nodes. What the user may not read is
named and left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from trainop.commands.connection import Connection
from trainop.commands.plan import PlannedJob, is_owned, shared_labels
from trainop.engine.kueue import OLDER
from trainop.engine.pod_resources import Resources, add_multiple
from trainop.engine.status import Status
from trainop.explain.rehearsal import Made
from trainop.explain.requirements import (
    ClusterFacts,
    Reference,
    describe_lacks,
    find_references,
    group_pods,
)
from trainop.explain.room import Load, counted_objects, demand_of, describe_quotas
from trainop.run.documents import Document
from trainop.run.readable import describe_refusal
from trainop.runtime import NODES, AlreadyExistsError, ApiError, ForbiddenError, Json, Key, NotFoundError, Resource
from trainop.runtime.lowlevel import METADATA_OBJECT, Request

MAX_REQUESTS = 100
"""Requests for all jobs of a call. Each object, quota and list is asked for once, whatever number of jobs names it."""

RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")

NO_LABELS: Mapping[str, str] = MappingProxyType({})

_NO_SUCH_OBJECT = '" not found'
"""The end of the message about an object that does not exist. That about a resource that is not served is another,
which depends on whether the cluster serves others of its group."""
_NOT_AUTHORIZED = "cannot "


class Found(NamedTuple):
    """A line about a job."""

    document: Document
    text: str
    severity: str = "error"
    """`error`; `warning` for jobs that cannot all run at the same time; `note` for what could not be checked."""


class ClusterCheck:
    """Checks jobs, one after another. Raises `ConnectionError` or `TimeoutError` if the API server does not answer."""

    def __init__(self, connection: Connection, documents: Iterable[Document], namespace: str | None) -> None:
        """`documents` are all objects of the files: what they define need not exist yet."""
        self._client = connection.client
        self._namespace = namespace or connection.namespace
        self._given = {(each.kind, self._key(each)) for each in documents}
        self._left = MAX_REQUESTS
        self._existing: dict[tuple[Reference, str], str | None] = {}
        self._listed: dict[tuple[Resource, str, str], Sequence[Json] | None] = {}
        self._unread: dict[str, None] = {}
        self._promised: dict[str, Resources] = {}
        """Namespace -> what the jobs so far add to the use of its quotas."""
        self._load: Load | None = None
        """That of the jobs so far."""

    def _key(self, document: Document) -> Key:
        metadata = document.raw["metadata"]
        return Key(metadata.get("namespace") or self._namespace, metadata["name"])

    async def check(self, job: PlannedJob) -> AsyncIterator[Found]:
        """What the cluster lacks for the job, and what was not checked for it."""
        document, namespace = job.document, self._key(job.document).namespace
        self._unread = {}
        for line in await self._admission(job, namespace):
            yield Found(document, line)
        groups = group_pods(document.raw, job.found)
        references = find_references(document.raw, groups, job.found)
        missing = {each: why async for each, why in self._missing(references, namespace)}
        nodes = await self._list(NODES, None)
        facts = ClusterFacts(missing, nodes, limits=await self._list(LIMIT_RANGES, namespace))
        for line in dict.fromkeys(describe_lacks(references, groups, facts)):
            yield Found(document, line)
        async for found in self._room(job, namespace, nodes or ()):
            yield found
        for text in self._unread:
            yield Found(document, f"not checked: {text}", "note")

    async def _admission(self, job: PlannedJob, namespace: str) -> Sequence[str]:
        """What the API server and its webhooks say of the job, which is sent as a dry run."""
        resource = job.resource
        if not self._may_ask(f"whether the cluster admits the {resource.kind}"):
            return ()
        raw = job.document.raw
        body = msgspec.json.encode({**raw, "metadata": {**raw["metadata"], "namespace": namespace}})
        query = {"dryRun": "All", "fieldValidation": "Ignore"}
        try:
            await self._client.request(Request("POST", resource.path(namespace), query, body))
        except AlreadyExistsError:
            self._unread[f"admission, as a {resource.kind} of this name exists in namespace {namespace}"] = None
        except NotFoundError as error:
            if _NO_SUCH_OBJECT not in str(error):
                return [f"kind: the cluster has no CRD for {resource.kind} in {resource.api_version}; install it"]
            return [f"metadata.namespace: namespace {namespace} does not exist; create it"]
        except ForbiddenError as error:
            if f"{_NOT_AUTHORIZED}create resource" not in str(error):
                return [f"metadata: {error}"]
            self._unread[f"admission: you may not create {resource.plural} in namespace {namespace}"] = None
        except ApiError as error:
            return [*describe_refusal(error)]
        return ()

    async def _room(self, job: PlannedJob, namespace: str, nodes: Sequence[Json]) -> AsyncIterator[Found]:
        """What quotas and nodes have too little of for the job, alone and together with the jobs before it."""
        document = job.document
        quotas = await self._list(RESOURCE_QUOTAS, namespace) or ()
        demand = demand_of(document.raw, job.found, await self._existing_objects(job, namespace, quotas))
        promised = self._promised.setdefault(namespace, {})
        for line in describe_quotas(quotas, demand, promised):
            yield Found(document, line)
        load = Load(nodes, demand.groups)
        alone = load.excess()
        for text in alone:
            yield Found(document, f"spec: the pods of the job {text}")
        if demand.waits:
            return
        add_multiple(promised, demand.counted, 1)
        before = self._load = self._load or Load(nodes)
        had_room = not before.excess()
        before.add(load)
        for text in before.excess() if had_room and not alone else ():
            yield Found(document, f"spec: the pods of this job and of those before it {text}", "warning")

    async def _existing_objects(self, job: PlannedJob, namespace: str, quotas: Sequence[Json]) -> frozenset[Reference]:
        """The objects of the job that exist already and that a quota counts. All of them if the job has ended."""
        counted = counted_objects(quotas, job.found)
        live = await self._read(job.resource, job.document.key.name, namespace) if counted else None
        if live is None:
            return frozenset()
        if Status(live.get("status"), datetime.now(UTC)).finished:
            return frozenset(Reference(each.resource, each.name) for each in job.found.made)
        found: set[Reference] = set()
        uid = live["metadata"]["uid"]
        for resource, objects in groupby(sorted(counted, key=_resource_name), key=attrgetter("resource")):
            found |= await self._owned(resource, list(objects), uid, namespace, job)
        return frozenset(found)

    async def _owned(
        self, resource: Resource, objects: Sequence[Made], uid: str, namespace: str, job: PlannedJob
    ) -> set[Reference]:
        """Those of the objects that exist and belong to the job: read one by one, or listed if they are many."""
        items: list[Json] = []
        if len(objects) > 3:
            labels = dict(each for kind in job.kinds for each in shared_labels(kind, job.document.key.name))
            items = list(await self._list(resource, namespace, labels) or ())
        else:
            items = [
                each
                for made in objects
                if (each := await self._read(resource, made.name, namespace, metadata_only=True))
            ]
        names = {item["metadata"]["name"] for item in items if is_owned(item, uid)}
        return {Reference(resource, made.name) for made in objects if made.name in names}

    async def _read(self, resource: Resource, name: str, namespace: str, *, metadata_only: bool = False) -> Json | None:
        """The object; None if it does not exist, or may not be read."""
        if not self._may_ask(f"{resource.kind} {name}"):
            return None
        try:
            if not metadata_only:
                return await self._client.get(resource, name, namespace)
            request = Request("GET", resource.path(namespace, name), accept=METADATA_OBJECT)
            answer = await self._client.request(request)
        except NotFoundError:
            return None
        except ApiError as error:
            why = f"you may not get {resource.plural}" if isinstance(error, ForbiddenError) else str(error)
            self._unread[f"what {resource.kind} {name} uses of quotas already: {why}"] = None
            return None
        found: Json = msgspec.json.decode(answer.body)
        return found

    async def _missing(self, references: Iterable[Reference], namespace: str) -> AsyncIterator[tuple[Reference, str]]:
        for each in references:
            place = namespace if each.resource.namespaced else ""
            if (each.resource.kind, Key(namespace, each.name)) in self._given:
                continue
            if (each, place) not in self._existing:
                self._existing[each, place] = await self._ask(each, place)
            why = self._existing[each, place]
            if why is not None:
                yield each, why

    async def _ask(self, reference: Reference, namespace: str) -> str | None:
        """Why the object does not exist, maybe empty; None if it does, or is not known."""
        resource, name = reference
        what = f"{resource.kind} {name}"
        if not self._may_ask(what):
            return None
        try:
            await self._client.request(Request("GET", resource.path(namespace or None, name), accept=METADATA_OBJECT))
        except NotFoundError as error:
            is_served = _NO_SUCH_OBJECT in str(error)
            if not is_served and resource in OLDER:
                return await self._ask(Reference(OLDER[resource], name), namespace)
            return "" if is_served else f"cannot exist: the cluster does not serve {resource}"
        except ForbiddenError:
            self._unread[f"{what}: you may not get {resource.plural}"] = None
        except ApiError as error:
            self._unread[f"{what}: {error}"] = None
        return None

    async def _list(
        self, resource: Resource, namespace: str | None, labels: Mapping[str, str] = NO_LABELS
    ) -> Sequence[Json] | None:
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        key = resource, namespace or "", selector
        if key not in self._listed and self._may_ask(resource.plural):
            try:
                self._listed[key] = (await self._client.list(resource, namespace, label_selector=selector)).items
            except NotFoundError:  # the cluster does not serve them, and so has none
                self._listed[key] = ()
            except ApiError as error:
                self._listed[key] = None
                self._unread[self._why_unread(resource, error)] = None
        return self._listed.get(key)

    @staticmethod
    def _why_unread(resource: Resource, error: ApiError) -> str:
        if isinstance(error, ForbiddenError):
            return f"you may not list {resource.plural}"
        return f"{resource.plural}: {error}"

    def _may_ask(self, what: str) -> bool:
        if not self._left:
            self._unread[f"{what}, as {MAX_REQUESTS} requests were sent"] = None
            return False
        self._left -= 1
        return True


def _resource_name(made: Made) -> str:
    return str(made.resource)


async def check_cluster(
    connection: Connection, jobs: Sequence[PlannedJob], documents: Sequence[Document], namespace: str | None
) -> list[Found]:
    """The lines about all jobs, in their order."""
    check = ClusterCheck(connection, documents, namespace)
    return [each for job in jobs async for each in check.check(job)]
