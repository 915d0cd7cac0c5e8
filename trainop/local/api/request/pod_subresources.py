"""The subresources of pods that are not parts of the object: log, binding, eviction."""

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
from trainop.local.api.request.lists import parse_int, truth
from trainop.local.api.request.route import Route
from trainop.local.api.request.writes import Writer
from trainop.local.api.schema.field_errors import invalid
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.clock import parse_timestamp
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource

_BINDING = Resource("", "v1", "pods/binding", "Binding")
_TEXT = {"content-type": "text/plain"}


class LogSource(Protocol):
    """Where `pods/log` reads from: the node that runs the pods; may raise `ApiError` when called."""

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
    """A log as it is written."""

    status = 200
    headers: Mapping[str, str] = _TEXT

    def __init__(self, source: AsyncIterator[bytes], limit: int | None) -> None:
        self._source = source
        self._limit = limit

    async def chunks(self) -> AsyncIterator[bytes]:
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
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


class PodParts:
    """`log_source` may be set later than the server is made: node and server know each other."""

    def __init__(self, backend: Backend, log_source: LogSource | None = None) -> None:
        self._backend = backend
        self._writer = Writer(backend)
        self._deleter = Deleter(backend)
        self.log_source = log_source

    async def answer(self, route: Route, request: Request) -> Response | Stream:
        """What the subresource says."""
        stored = self._backend.store.get(route.kind.table, route.key)
        if stored is None:
            raise route.not_found()
        match route.subresource, request.method:
            case "log", "GET":
                return self._log(route, stored, request)
            case "binding", "POST":
                return self._bind(route, stored, request)
            case "eviction", "POST":
                return self._evict(route, stored, request)
        raise status_errors.method_not_allowed()

    def _log(self, route: Route, stored: Stored, request: Request) -> Stream | Response:
        query = request.query
        pod = stored.value
        _check_options(query, route.name)
        container = _container(pod, query.get("container", ""), route.name)
        if not pod["spec"].get("nodeName"):
            return Response(204, {}, b"")
        if self.log_source is None:
            raise StatusError(500, "InternalError", "Internal error occurred: this server has no node that keeps logs")
        previous = truth(query.get("previous"))
        _check_started(pod, container, route.name, previous=previous)
        tail = query.get("tailLines")
        limit = query.get("limitBytes")
        try:
            source = self.log_source(
                route.namespace or "",
                route.name,
                container,
                follow=truth(query.get("follow")),
                previous=previous,
                tail_lines=parse_int(tail) if tail else None,
                since=self._since(query),
                timestamps=truth(query.get("timestamps")),
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

    def _bind(self, route: Route, stored: Stored, request: Request) -> Response:
        binding = bodies.decode(request, "Binding")
        target = (binding.get("target") or {}).get("name", "")
        pod: Json = msgspec.json.decode(stored.body, type=dict)
        uid = (binding.get("metadata") or {}).get("uid")
        if uid and uid != stored.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}"
            raise status_errors.conflict(_BINDING, route.name, why)
        if pod["metadata"].get("deletionTimestamp"):
            raise status_errors.conflict(
                _BINDING, route.name, f"pod {route.name} is being deleted, cannot be assigned to a host"
            )
        if held := pod["spec"].get("nodeName"):
            why = f'pod {route.name} is already assigned to node "{held}"'
            raise status_errors.conflict(_BINDING, route.name, why)
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
            self._backend.store.put(route.kind.table, stored.key, pod)
        return _success(201)

    def _evict(self, route: Route, stored: Stored, request: Request) -> Response:
        """As a deletion: there are no disruption budgets here."""
        eviction = bodies.decode(request, "Eviction")
        given: dict[str, Any] = eviction.get("deleteOptions") or {}
        options = DeleteOptions(
            dry_run=bool(given.get("dryRun") or request.query.get("dryRun")),
            grace=given.get("gracePeriodSeconds"),
            uid=(given.get("preconditions") or {}).get("uid") or "",
        )
        self._deleter.delete_stored(route.kind, stored, options)
        return _success(201)


def _success(code: int) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
    return Response(code, {"content-type": "application/json"}, msgspec.json.encode(status))


def _container(pod: Json, wanted: str, name: str) -> str:
    """The container whose log is meant; complaints as in kubernetes `pkg/registry/core/pod/strategy.go`."""
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


def _check_options(query: Mapping[str, str], name: str) -> None:
    found = [
        invalid(field, number, f"must be greater than {'' if least else 'or equal to '}0")
        for field, least in (("tailLines", 0), ("sinceSeconds", 1), ("limitBytes", 1))
        if field in query and (number := parse_int(query[field])) < least
    ]
    if found:
        raise status_errors.invalid("", "PodLogOptions", name, found)


def _check_started(pod: Json, container: str, name: str, *, previous: bool) -> None:
    """Complain in the kubelet's words if there is no log yet."""
    status = pod.get("status") or {}
    reported = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found = next((entry for entry in reported if entry.get("name") == container), None)
    waiting = ((found or {}).get("state") or {}).get("waiting")
    last = ((found or {}).get("lastState") or {}).get("terminated")
    if previous and last is None:
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if not previous and last is None and (found is None or waiting is not None):
        reason = (waiting or {}).get("reason") or "ContainerCreating"
        said = "is waiting to start"
        raise bad_request(f'container "{container}" in pod "{name}" {said}: {reason}')
