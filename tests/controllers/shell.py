"""Test doubles for the controllers: a client that answers from a dictionary, and caches that the test updates."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tests.runtime.virtual_time import VirtualClock
from trainop.controllers.counters import JobMetrics
from trainop.controllers.gang import PRIORITY_CLASSES, decode_pod_group, decode_priority_class
from trainop.controllers.queue import QueueCaches, decode_class, decode_flavor, decode_workload
from trainop.controllers.wiring import ControllerDependencies, build_controller, open_view
from trainop.engine.children import decode_pod, decode_service
from trainop.engine.kind import kind_of
from trainop.engine.kueue import FLAVORS, WORKLOAD_CLASSES, WORKLOADS
from trainop.engine.seen import Options
from trainop.kinds.pytorch import PYTORCH
from trainop.programs.queues import with_queue
from trainop.runtime.cache.cache import Cache
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client, Listing, PatchKind
from trainop.runtime.client.sender import Recovery
from trainop.runtime.controller.reconcile import Result
from trainop.runtime.errors import ApiError, error_of_status
from trainop.runtime.objects.metadata import PODS, SERVICES, Json, Key, ObjectReference, Resource, decode_unstructured

JOBS = PYTORCH.resource
KEY = Key("ns", "j")


def api_error(code: int, reason: str, message: str = "", causes: Sequence[Json] = ()) -> ApiError:
    details = {"causes": list(causes)}
    return error_of_status({"code": code, "reason": reason, "message": message or reason, "details": details})


class Call(NamedTuple):
    verb: str
    resource: Resource
    name: str
    body: Any = None


class DictClient(Client):
    """An in-memory client that stores objects with the API server's semantics as far as the controllers need them. A
    function in `faults` may raise an error first."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, Key], Json] = {}
        self.calls: list[Call] = []
        self.faults: list[Callable[[Call], Exception | None]] = []
        self.version = 100
        self.recovery_ = Recovery()
        self.slow = 0.0

    @property
    def recovery(self) -> Recovery:
        return self.recovery_

    def write_seconds(self) -> float:
        return self.slow

    def fail(self, verb: str, resource: Resource, error: Exception, *, name: str = "", times: int = 1) -> None:
        """Answer the next `times` such requests with `error`."""
        left = [times]

        def fault(call: Call) -> Exception | None:
            if call[:2] != (verb, resource) or name not in ("", call.name) or not left[0]:
                return None
            left[0] -= 1
            return error

        self.faults.append(fault)

    def names(self, verb: str, resource: Resource) -> list[str]:
        return [call.name for call in self.calls if call[:2] == (verb, resource)]

    def put(self, resource: Resource, obj: Json) -> Json:
        """Write the object as another client."""
        self.version += 1
        metadata = obj["metadata"] | {"resourceVersion": str(self.version)}
        metadata.setdefault("uid", f"uid-{self.version}")
        stored = copy.deepcopy(obj | {"metadata": metadata})
        self.objects[resource, Key(metadata["namespace"], metadata["name"])] = stored
        return stored

    def mark_deleted(self, resource: Resource, name: str, namespace: str = "ns") -> None:
        found = self.objects[resource, Key(namespace, name)]
        self.put(resource, found | {"metadata": found["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}})

    async def _begin(self, call: Call) -> None:
        self.calls.append(call)
        await asyncio.sleep(0)
        for fault in self.faults:
            if error := fault(call):
                raise error

    def _find(self, resource: Resource, name: str, namespace: str | None) -> Json:
        try:
            return self.objects[resource, Key(namespace or "", name)]
        except KeyError:
            raise api_error(404, "NotFound", f'{resource} "{name}" not found') from None

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        await self._begin(Call("get", resource, name))
        return copy.deepcopy(self._find(resource, name, namespace))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 250,
    ) -> Listing:
        await self._begin(Call("list", resource, label_selector))
        wanted = dict(part.split("=") for part in label_selector.split(","))
        items = [obj for (kind, _), obj in self.objects.items() if kind == resource]
        found = [obj for obj in items if wanted.items() <= obj["metadata"].get("labels", {}).items()]
        return Listing(copy.deepcopy(found), str(self.version))

    async def create(
        self,
        resource: Resource,
        body: Json | msgspec.Raw,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
        own_fields: bool = False,
        warned: Callable[[str], None] | None = None,
    ) -> Json:
        assert own_fields <= (resource != PODS), "users misspell fields of pods"
        body = json.loads(bytes(body)) if isinstance(body, msgspec.Raw) else body
        await self._begin(Call("create", resource, body["metadata"]["name"], body))
        metadata = body["metadata"] | {"namespace": namespace}
        if (resource, Key(namespace or "", metadata["name"])) in self.objects:
            raise api_error(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        return self.put(resource, body | {"metadata": metadata})

    async def replace(
        self,
        resource: Resource,
        body: Json,
        *,
        subresource: str | None = None,
        metadata_only: bool = False,
        own_fields: bool = False,
    ) -> Json:
        assert subresource == "status"
        metadata = body["metadata"]
        await self._begin(Call("put status", resource, metadata["name"], body))
        found = self._find(resource, metadata["name"], metadata["namespace"])
        sent = (metadata["uid"], metadata["resourceVersion"])
        if sent != (found["metadata"]["uid"], found["metadata"]["resourceVersion"]):
            raise api_error(409, "Conflict", "Precondition failed: UID, or the object has been modified")
        return self.put(resource, found | {"status": body["status"]})

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Json | Sequence[Json],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str | None = None,
        force: bool = False,
        field_manager: str = "",
        metadata_only: bool = False,
    ) -> Json:
        await self._begin(Call(f"patch {subresource or kind.name.lower()}", resource, name, patch))
        assert isinstance(patch, dict)
        if kind is PatchKind.APPLY and (resource, Key(namespace or "", name)) not in self.objects:
            if "uid" in patch["metadata"]:
                raise api_error(409, "Conflict", "uid mismatch: no existing object was found")
            return self.put(resource, patch)
        found = self._find(resource, name, namespace)
        metadata = patch.get("metadata", {})
        if (
            metadata.get("resourceVersion", found["metadata"]["resourceVersion"])
            != found["metadata"]["resourceVersion"]
        ):
            raise api_error(409, "Conflict", "the object has been modified")
        if metadata.get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
            raise api_error(409, "Conflict", "Precondition failed: UID")
        return self.put(resource, merge(found, patch))

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        await self._begin(Call("delete", resource, name, {"uid": uid, "grace": grace_seconds}))
        if self._find(resource, name, namespace)["metadata"]["uid"] != uid:
            raise api_error(409, "Conflict", "Precondition failed: UID")
        del self.objects[resource, Key(namespace or "", name)]


def merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


class Events(list[tuple[str, str, str]]):
    """An event recorder that keeps (type, reason, message) in order."""

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None:
        assert (about.kind, about.api_version) == ("PyTorchJob", "kubeflow.org/v1")
        self.append((type_, reason, message))

    def of(self, reason: str) -> list[str]:
        return [message for _, word, message in self if word == reason]


class Shell:
    """The PyTorchJob controller without workers: the test runs its passes and decides when the caches are updated. The
    first status is written by the first pass, unless it may wait for `first_status` seconds."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        pod_events: bool = False,
        most: int = 500,
        first_status: float = 0.0,
        queued: bool = False,
    ) -> None:
        """`queued`: the operator queues the jobs itself."""
        kind = with_queue(kind_of(PYTORCH)) if queued else kind_of(PYTORCH)
        self.client = DictClient()
        self.clock = VirtualClock()
        self.metrics = JobMetrics()
        self.events = Events()
        cache = Cache(self.client, clock=self.clock, rng=random.Random(1))
        needs = ControllerDependencies(
            client=self.client,
            cache=cache,
            clock=self.clock,
            rng=random.Random(1),
            metrics=self.metrics,
            options=options or Options(waiting_after=0),
            pod_events=pod_events,
        )
        self.controller = build_controller(kind, needs, self.events)
        self.view = open_view(kind, cache, needs.options.gang)
        reconciler: Any = self.controller._reconciler
        reconciler._applier._max_writes = most
        reconciler._first_statuses._max_wait = first_status
        self.reconciler = reconciler

    def show(self, *resources: Resource) -> None:
        """Update the caches to the stored state."""
        gang = (self.view.gang.groups.resource, PRIORITY_CLASSES) if self.view.gang else ()
        queue = (WORKLOADS, FLAVORS, WORKLOAD_CLASSES, PRIORITY_CLASSES) if self.view.queue else ()
        for resource in resources or (JOBS, PODS, SERVICES, *self.view.companions, *gang, *queue):
            informer, decode = self._cache_of(resource)
            there = {key: obj for (kind, key), obj in self.client.objects.items() if kind == resource}
            for known in list(informer.store.list()):
                if known.metadata.key not in there:
                    informer.remove(known)
            for obj in there.values():
                informer.put(decode(msgspec.json.encode(obj)), listing=False, initial=False)

    def _cache_of(self, resource: Resource) -> tuple[Informer[Any], Callable[[bytes], Any]]:
        view = self.view
        known: dict[Resource, tuple[Informer[Any], Callable[[bytes], Any]]] = {
            JOBS: (view.jobs, decode_unstructured),
            PODS: (view.pods, decode_pod),
            SERVICES: (view.services, decode_service),
            **(_queue_caches(view.queue) if view.queue is not None else {}),
        }
        if resource in known:
            return known[resource]
        if resource in self.view.companions:
            return self.view.companions[resource], decode_unstructured
        assert self.view.gang is not None
        if resource == PRIORITY_CLASSES:
            return self.view.gang.classes, decode_priority_class
        return self.view.gang.groups, decode_pod_group

    async def look(self) -> Result:
        """Run one reconcile."""
        result: Result = await self.reconciler.reconcile(KEY)
        return result

    async def settle(self) -> Result:
        """Run reconciles with current caches until one writes nothing."""
        while True:
            self.show()
            before = self.client.version
            result = await self.look()
            if self.client.version == before:
                return result

    async def woken(self) -> bool:
        """Whether an event has added the job's key since the last call."""
        if not len(self.controller.queue):
            return False
        assert await self.controller.queue.get() == KEY
        self.controller.queue.done(KEY)
        return True

    def job(self) -> Json:
        return self.client.objects[JOBS, KEY]

    def conditions(self) -> list[tuple[str, str]]:
        return [(each["type"], each["status"]) for each in self.job().get("status", {}).get("conditions", [])]

    def pods(self) -> list[str]:
        return sorted(key.name for resource, key in self.client.objects if resource == PODS)

    def services(self) -> list[str]:
        return sorted(key.name for resource, key in self.client.objects if resource == SERVICES)

    def set_phase(self, name: str, phase: str) -> None:
        pod = self.client.objects[PODS, Key("ns", name)]
        self.client.put(PODS, pod | {"status": {"phase": phase}})

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def _queue_caches(queue: QueueCaches) -> dict[Resource, tuple[Informer[Any], Callable[[bytes], Any]]]:
    return {
        WORKLOADS: (queue.workloads, decode_workload),
        FLAVORS: (queue.flavors, decode_flavor),
        WORKLOAD_CLASSES: (queue.classes, decode_class),
        PRIORITY_CLASSES: (queue.priorities, decode_priority_class),
    }


def pytorch_job(masters: int = 1, workers: int = 2, *, uid: str = "job-uid", **spec: Any) -> Json:
    def replicas(count: int) -> Json:
        container = {"name": "pytorch", "image": "img"}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}

    specs = {"Master": replicas(masters)} if masters else {}
    if workers:
        specs["Worker"] = replicas(workers)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j", "namespace": "ns", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"pytorchReplicaSpecs": specs} | spec,
    }
