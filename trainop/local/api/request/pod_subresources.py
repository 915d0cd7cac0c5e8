"""The pod subresources log, binding and eviction, which are not fields of the object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import bodies
from trainop.local.api.request.bodies import WriteOptions
from trainop.local.api.request.deletes import DeleteOptions, Deleter
from trainop.local.api.request.lists import parse_bool, parse_int
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.request.writes import Writer
from trainop.local.api.schema.field_errors import invalid
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime import ApiError, Json, Resource
from trainop.runtime.lowlevel import Request, Response, Stream, parse_timestamp

_BINDING = Resource("", "v1", "pods/binding", "Binding")
_TEXT = {"content-type": "text/plain"}
_NO_EPHEMERAL_CONTAINERS = (
    "this cluster adds no containers to a running pod, because its containers are processes of this machine and images "
    'are not used: "kubectl exec -it {0} -- sh" has the programs, files, environment and network of the container, and '
    '"kubectl debug {0} --copy-to=NAME" makes a copy of the pod with another container'
)


class LogSource(Protocol):
    """The source of `pods/log`, which is the node that runs the pods; a call may raise `ApiError`."""

    def __call__(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
        since: datetime | None = None,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]: ...


class LogStream:
    """The response stream of a log, truncated after `limit` bytes."""

    status = 200
    headers: Mapping[str, str] = _TEXT

    def __init__(self, source: AsyncIterator[bytes], limit: int | None) -> None:
        self._source = source
        self._limit = limit

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of the log."""
        left = self._limit
        async with aclosing(self._source) as source:  # type: ignore[type-var]  # log sources are generators
            async for chunk in source:
                if left is None:
                    yield chunk
                    continue
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    return

    async def close(self) -> None:
        """Close the source of the log."""
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


class PodSubresources:
    """Serves log, binding and eviction. `log_source` may be set later, because the node needs the server first."""

    def __init__(self, backend: Backend, log_source: LogSource | None = None) -> None:
        self._backend = backend
        self._writer = Writer(backend)
        self._deleter = Deleter(backend)
        self.log_source = log_source

    async def answer(self, info: RequestInfo, request: Request) -> Response | Stream:
        """The response to a request for one of these subresources."""
        stored = self._backend.store.get(info.kind.table, info.key)
        if stored is None:
            raise info.not_found()
        match info.subresource, request.method:
            case "log", "GET":
                return self._log(info, stored, request)
            case "binding", "POST":
                return self._bind(info, stored, request)
            case "eviction", "POST":
                return self._evict(info, stored, request)
            case "ephemeralcontainers", "PATCH" | "PUT":
                raise bad_request(_NO_EPHEMERAL_CONTAINERS.format(info.name))
        raise status_errors.method_not_allowed()

    def _log(self, info: RequestInfo, stored: Stored, request: Request) -> Stream | Response:
        query = request.query
        pod = stored.value
        _validate_log_options(query, info.name)
        container = select_container(pod, query.get("container", ""), info.name)
        if not pod["spec"].get("nodeName"):
            return Response(204, {}, b"")
        if self.log_source is None:
            raise StatusError(
                500, "InternalError", "Internal error occurred: this server has no node to read logs from"
            )
        previous = parse_bool(query.get("previous"))
        _check_started(pod, container, info.name, previous=previous)
        tail = query.get("tailLines")
        limit = query.get("limitBytes")
        try:
            source = self.log_source(
                info.namespace or "",
                info.name,
                container,
                follow=parse_bool(query.get("follow")),
                previous=previous,
                tail_lines=parse_int(tail) if tail else None,
                since=self._since(query),
                timestamps=parse_bool(query.get("timestamps")),
            )
        except ApiError as error:
            raise StatusError(error.code, error.reason, error.message, error.status.get("details")) from error
        return LogStream(source, parse_int(limit) if limit else None)

    def _since(self, query: Mapping[str, str]) -> datetime | None:
        if seconds := query.get("sinceSeconds"):
            return self._backend.clock.now() - timedelta(seconds=parse_int(seconds))
        if at := query.get("sinceTime"):
            try:
                return parse_timestamp(at)
            except ValueError as error:
                raise bad_request(f"sinceTime: {error}") from error
        return None

    def _bind(self, info: RequestInfo, stored: Stored, request: Request) -> Response:
        binding = bodies.decode(request, "Binding")
        target = (binding.get("target") or {}).get("name", "")
        pod: Json = msgspec.json.decode(stored.body, type=dict)
        uid = (binding.get("metadata") or {}).get("uid")
        if uid and uid != stored.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}"
            raise status_errors.conflict(_BINDING, info.name, why)
        if pod["metadata"].get("deletionTimestamp"):
            raise status_errors.conflict(
                _BINDING, info.name, f"pod {info.name} is being deleted, cannot be assigned to a host"
            )
        if held := pod["spec"].get("nodeName"):
            why = f'pod {info.name} is already assigned to node "{held}"'
            raise status_errors.conflict(_BINDING, info.name, why)
        pod["spec"]["nodeName"] = target
        status = pod.setdefault("status", {})
        others = [condition for condition in status.get("conditions") or [] if condition["type"] != "PodScheduled"]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._backend.now(),
        }
        status["conditions"] = [*others, scheduled]
        if not WriteOptions.parse(request, "CreateOptions").dry_run:
            self._backend.store.put(info.kind.table, stored.key, pod)
        return _success_status(201)

    def _evict(self, info: RequestInfo, stored: Stored, request: Request) -> Response:
        """Announce the end and delete the pod (kubernetes `pkg/registry/core/pod/storage/eviction.go`,
        `addConditionAndDeletePod`); PodDisruptionBudgets are not supported."""
        eviction = bodies.decode(request, "Eviction")
        given: dict[str, Any] = eviction.get("deleteOptions") or {}
        options = DeleteOptions(
            dry_run=bool(given.get("dryRun") or request.query.get("dryRun")),
            grace_period=given.get("gracePeriodSeconds"),
            uid=(given.get("preconditions") or {}).get("uid") or "",
        )
        if not options.dry_run and (not options.uid or options.uid == stored.uid):
            stored = self._announce_eviction(info, stored)
        self._deleter.delete_stored(info.kind, stored, options)
        return _success_status(201)

    def _announce_eviction(self, info: RequestInfo, stored: Stored) -> Stored:
        pod: Json = msgspec.json.decode(stored.body, type=dict)
        announced = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._backend.now(),
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        status = pod.setdefault("status", {})
        others = [each for each in status.get("conditions") or [] if each["type"] != announced["type"]]
        status["conditions"] = [*others, announced]
        return self._backend.store.put(info.kind.table, stored.key, pod)


def _success_status(code: int) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
    return Response(code, {"content-type": "application/json"}, msgspec.json.encode(status))


def select_container(pod: Json, wanted: str, name: str) -> str:
    """The name of the requested or only container; raises 400 as kubernetes `pkg/registry/core/pod/strategy.go`."""
    spec = pod["spec"]
    initial = [container["name"] for container in spec.get("initContainers") or []]
    names = [container["name"] for container in spec.get("containers") or []]
    if wanted:
        if wanted not in initial + names:
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(names) == 1:
        return str(names[0])
    choices = " ".join(initial + names)
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{choices}]")


def _validate_log_options(query: Mapping[str, str], name: str) -> None:
    errors = [
        invalid(field, number, f"must be greater than {'' if least else 'or equal to '}0")
        for field, least in (("tailLines", 0), ("sinceSeconds", 1), ("limitBytes", 1))
        if field in query and (number := parse_int(query[field])) < least
    ]
    if errors:
        raise status_errors.invalid("", "PodLogOptions", name, errors)


def _check_started(pod: Json, container: str, name: str, *, previous: bool) -> None:
    """Raise the kubelet's 400 if the container has no log yet."""
    status = pod.get("status") or {}
    reported = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found = next((entry for entry in reported if entry.get("name") == container), None)
    waiting = ((found or {}).get("state") or {}).get("waiting")
    last = ((found or {}).get("lastState") or {}).get("terminated")
    if previous and last is None:
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if not previous and last is None and (found is None or waiting is not None):
        reason = (waiting or {}).get("reason") or "ContainerCreating"
        detail = "is waiting to start"
        raise bad_request(f'container "{container}" in pod "{name}" {detail}: {reason}')
