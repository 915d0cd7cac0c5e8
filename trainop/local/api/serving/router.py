"""Routing of requests by path and method to discovery, health, OpenAPI and the verbs; errors become a Status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import msgspec

from trainop.local import KUBERNETES
from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import limits
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.request.lists import ListOptions, list_page, parse_version, select
from trainop.local.api.request.patching import Patcher
from trainop.local.api.request.pod_streams import SESSIONS, Arguments, PodPorts, PodStreams, Session
from trainop.local.api.request.pod_subresources import PodSubresources
from trainop.local.api.request.render import Form, Renderer, Representation, content_type, encode, negotiate
from trainop.local.api.request.request_info import NoSuchPathError, RequestInfo, parse_path
from trainop.local.api.request.resource_metrics import GROUP as METRICS
from trainop.local.api.request.resource_metrics import ResourceMetrics
from trainop.local.api.request.reviews import review
from trainop.local.api.request.scale_subresource import ScaleSubresource
from trainop.local.api.request.tokens import issue_token
from trainop.local.api.request.watches import Watch
from trainop.local.api.request.writes import Writer, WriteResult
from trainop.local.api.serving import discovery
from trainop.local.api.serving.openapi import SWAGGER, OpenApiDocuments
from trainop.local.api.status_errors import StatusError
from trainop.runtime import Json
from trainop.runtime.lowlevel import Request, Response, Stream

_JSON = {"content-type": "application/json", "cache-control": "no-cache, private"}
_TEXT = {"content-type": "text/plain; charset=utf-8"}
_HEALTH = {"/healthz", "/livez", "/readyz"}


@dataclass(slots=True)
class BufferedStream:
    """A complete response as a `Stream`."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body

    async def close(self) -> None:
        """Nothing to release."""


class Router:
    """Handles requests of authenticated clients; also tracks the open watches."""

    def __init__(self, backend: Backend, pods: PodSubresources, streams: PodStreams) -> None:
        self._backend = backend
        self._writer = Writer(backend)
        self._patcher = Patcher(backend, self._writer)
        self._scaler = ScaleSubresource(backend, self._writer)
        self._deleter = Deleter(backend)
        self._pods = pods
        self._streams = streams
        self.metrics: ResourceMetrics | None = None
        """Serves metrics.k8s.io, if there is a source."""
        self._documents = OpenApiDocuments(backend.registry)
        self._watches: dict[Watch, None] = {}

    async def answer(self, request: Request) -> Response | Stream:
        """A `Response`, or a `Stream` for watches and logs. Never raises for an invalid request."""
        try:
            limits.check_body(request.body)
            return await self._answer(request)
        except RecursionError:
            return error_response(limits.nested_too_deeply())
        except UnicodeError as error:
            return error_response(status_errors.bad_request(f"text that is not valid in UTF-8: {error}"))
        except StatusError as error:
            return error_response(error)
        except NoSuchPathError:
            return Response(404, _TEXT, b"404 page not found\n")

    def connect(self, request: Request, arguments: Arguments) -> Session | PodPorts | Response | None:
        """What a request asks to be connected to, else the error; None for a path without sessions."""
        try:
            info = parse_path(self._backend.registry, request.path)
            return self._streams.connect(info, request.method, arguments) if info.subresource in SESSIONS else None
        except StatusError as error:
            return error_response(error)
        except NoSuchPathError:
            return None

    def end_watches(self) -> None:
        """End all watches, at shutdown."""
        for watch in tuple(self._watches):
            watch.end()

    def _remove_watch(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    async def _answer(self, request: Request) -> Response | Stream:
        path = request.path.rstrip("/") or "/"
        if path.startswith(("/api/", "/apis/")) and path.count("/") > 2 + path.startswith("/apis"):
            if answered := review(self._backend, request):
                return _json_response(answered, 201)
            return await self._serve_resource(parse_path(self._backend.registry, path), request)
        return self._serve_non_resource(path, request)

    def _serve_non_resource(self, path: str, request: Request) -> Response:
        registry = self._backend.registry
        if path in _HEALTH or path.startswith(tuple(f"{root}/" for root in _HEALTH)):
            return Response(200, _TEXT, b"ok")
        if path == "/version":
            return _json_response(discovery.version_info(KUBERNETES))
        if path.startswith("/openapi"):
            return self._openapi(path)
        if path in {"/api", "/apis"} and "as=APIGroupDiscoveryList" in request.accept and "v=v2" in request.accept:
            body = msgspec.json.encode(discovery.aggregated(registry, core=path == "/api"))
            return Response(200, {**_JSON, "content-type": discovery.AGGREGATED}, body)
        document = discovery.document(registry, path, request.headers.get("host", ""))
        if document is None:
            raise NoSuchPathError
        return _json_response(document)

    def _openapi(self, path: str) -> Response:
        if path == "/openapi/v2":
            return Response(200, {"content-type": SWAGGER}, b"")
        if path == "/openapi/v3":
            return _json_response(self._documents.index())
        body = self._documents.document(path.removeprefix("/openapi/v3/"))
        if body is None:
            raise NoSuchPathError
        return Response(200, _JSON, body)

    async def _serve_resource(self, info: RequestInfo, request: Request) -> Response | Stream:
        if self.metrics is not None and info.kind.resource.group == METRICS:
            return _json_response(await self.metrics.answer(info, request))
        if info.subresource and info.subresource not in {"status", "finalize"}:
            if info.subresource == "scale":
                return self._write_response(info, request, self._scaler.answer(info, request))
            if info.subresource == "token":
                return _json_response(issue_token(self._backend, info, request), 201)
            if info.subresource in SESSIONS:
                self._streams.connect(info, request.method, tuple(request.query.items()))
                raise status_errors.bad_request("Upgrade request required")
            return await self._pods.answer(info, request)
        return self._serve_object(info, request) if info.name else self._serve_collection(info, request)

    def _serve_object(self, info: RequestInfo, request: Request) -> Response | Stream:
        match request.method:
            case "GET":
                return self._get(info, request)
            case "PUT":
                return self._write_response(info, request, self._writer.replace(info, request))
            case "PATCH":
                return self._write_response(info, request, self._patcher.patch(info, request))
            case "DELETE" if not info.subresource:
                return _json_response(self._deleter.delete(info, request))
        raise status_errors.method_not_allowed()

    def _serve_collection(self, info: RequestInfo, request: Request) -> Response | Stream:
        match request.method:
            case "GET":
                return self._list_or_watch(info, request)
            case "POST" if info.covers_one_namespace:
                return self._write_response(info, request, self._writer.create(info, request))
            case "DELETE" if "deletecollection" in info.kind.verbs and info.covers_one_namespace:
                return _json_response(self._deleter.delete_collection(info, request))
        raise status_errors.method_not_allowed()

    def _get(self, info: RequestInfo, request: Request) -> Response | Stream:
        if ListOptions.parse(request.query).watch:
            return self._list_or_watch(info, request)
        store = self._backend.store
        wanted_version = parse_version(request.query.get("resourceVersion", ""))
        if wanted_version > store.version:
            raise status_errors.too_large(wanted_version, store.version)
        representation = negotiate(request.accept)
        stored = store.get(info.kind.table, info.key)
        if stored is None:
            raise info.not_found()
        return _bytes_response(self._renderer(info, request, representation).one(stored), 200, representation)

    def _list_or_watch(self, info: RequestInfo, request: Request) -> Response | Stream:
        options = ListOptions.parse(request.query)
        representation = negotiate(request.accept)
        kind, store = info.kind, self._backend.store
        selected = select(kind, info.namespace, info.name or None, options)
        renderer = self._renderer(info, request, representation)
        if not options.watch:
            page = list_page(store, kind, info.namespace, options, selected)
            return _bytes_response(renderer.many(page.items, page.metadata), 200, representation)
        watch = Watch(
            store,
            store.table(kind.table),
            options,
            selected=selected,
            renderer=renderer,
            clock=self._backend.clock,
            rng=self._backend.rng,
            on_end=self._remove_watch,
        )
        self._watches[watch] = None
        return watch

    def _write_response(self, info: RequestInfo, request: Request, result: WriteResult) -> Response:
        representation = negotiate(request.accept)
        headers = dict(_warning_headers(result.warnings))
        if representation == Representation() and result.stored is not None:
            body = info.kind.encode(result.stored)
        elif representation.form is Form.OBJECT:
            body = encode(result.value, representation)
        else:
            body = self._renderer(info, request, representation).value(result.value)
        return Response(result.code, {**_JSON, **headers, "content-type": content_type(representation)}, body)

    def _renderer(self, info: RequestInfo, request: Request, representation: Representation) -> Renderer:
        return Renderer(info.kind, representation, self._backend.clock.now(), request.query)


def error_response(error: StatusError) -> Response:
    """The response with the Status of an error."""
    return Response(error.code, {**_JSON, **error.headers}, msgspec.json.encode(error.status))


def _warning_headers(warnings: list[str]) -> Mapping[str, str]:
    if not warnings:
        return {}
    return {"warning": ", ".join(f"299 - {msgspec.json.encode(text).decode()}" for text in warnings)}


def _json_response(value: Json, code: int = 200) -> Response:
    return Response(code, _JSON, msgspec.json.encode(value))


def _bytes_response(body: bytes, code: int, representation: Representation) -> Response:
    return Response(code, {**_JSON, "content-type": content_type(representation)}, body)
