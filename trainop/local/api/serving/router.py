"""From a request to its answer: which code answers which path and method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import limits
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.request.lists import ListOptions, list_page, parse_version, select
from trainop.local.api.request.patching import Patcher
from trainop.local.api.request.pod_subresources import PodSubresources
from trainop.local.api.request.render import Form, Renderer, Representation, content_type, encode, negotiate
from trainop.local.api.request.request_info import NoSuchPathError, RequestInfo, parse_path
from trainop.local.api.request.reviews import review
from trainop.local.api.request.scale_subresource import ScaleSubresource
from trainop.local.api.request.tokens import issue_token
from trainop.local.api.request.watches import Watch
from trainop.local.api.request.writes import Writer, WriteResult
from trainop.local.api.serving import discovery
from trainop.local.api.serving.openapi import SWAGGER, Documents
from trainop.local.api.status_errors import StatusError
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.objects.metadata import Json

KUBERNETES = "v1.34.4"
"""The version whose behaviour is imitated."""

_JSON = {"content-type": "application/json", "cache-control": "no-cache, private"}
_TEXT = {"content-type": "text/plain; charset=utf-8"}
_HEALTH = {"/healthz", "/livez", "/readyz"}


@dataclass(slots=True)
class BufferedStream:
    """A response that is there at once, read as a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body

    async def close(self) -> None:
        """Nothing is held."""


class Router:
    """Answers requests; what cannot be answered is a Status."""

    def __init__(self, backend: Backend, pods: PodSubresources) -> None:
        self._backend = backend
        self._writer = Writer(backend)
        self._patcher = Patcher(backend, self._writer)
        self._scaler = ScaleSubresource(backend, self._writer)
        self._deleter = Deleter(backend)
        self._pods = pods
        self._documents = Documents(backend.registry)
        self._watches: dict[Watch, None] = {}

    async def answer(self, request: Request) -> Response | Stream:
        """A Response, or for watches and logs a Stream."""
        try:
            limits.check_body(request.body)
            return await self._answer(request)
        except RecursionError:
            return respond(limits.nested_too_deeply())
        except UnicodeError as error:
            return respond(status_errors.bad_request(f"text that is not valid in UTF-8: {error}"))
        except StatusError as error:
            return respond(error)
        except NoSuchPathError:
            return Response(404, _TEXT, b"404 page not found\n")

    def end_watches(self) -> None:
        """All of them, as a server that shuts down does."""
        for watch in tuple(self._watches):
            watch.end()

    def _remove_watch(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    async def _answer(self, request: Request) -> Response | Stream:
        path = request.path.rstrip("/") or "/"
        if path.startswith(("/api/", "/apis/")) and path.count("/") > 2 + path.startswith("/apis"):
            if answered := review(self._backend, request):
                return _json(answered, 201)
            return await self._on_resource(parse_path(self._backend.registry, path), request)
        return self._on_document(path, request)

    def _on_document(self, path: str, request: Request) -> Response:
        registry = self._backend.registry
        if path in _HEALTH or path.startswith(tuple(f"{root}/" for root in _HEALTH)):
            return Response(200, _TEXT, b"ok")
        if path == "/version":
            return _json(discovery.version_info(KUBERNETES))
        if path.startswith("/openapi"):
            return self._openapi(path)
        if path in {"/api", "/apis"} and "as=APIGroupDiscoveryList" in request.accept and "v=v2" in request.accept:
            body = msgspec.json.encode(discovery.aggregated(registry, core=path == "/api"))
            return Response(200, {**_JSON, "content-type": discovery.AGGREGATED}, body)
        document = discovery.document(registry, path, request.headers.get("host", ""))
        if document is None:
            raise NoSuchPathError
        return _json(document)

    def _openapi(self, path: str) -> Response:
        if path == "/openapi/v2":
            return Response(200, {"content-type": SWAGGER}, b"")
        if path == "/openapi/v3":
            return _json(self._documents.index())
        body = self._documents.document(path.removeprefix("/openapi/v3/"))
        if body is None:
            raise NoSuchPathError
        return Response(200, _JSON, body)

    async def _on_resource(self, info: RequestInfo, request: Request) -> Response | Stream:
        if info.subresource and info.subresource not in {"status", "finalize"}:
            if info.subresource == "scale":
                return self._written(info, request, self._scaler.answer(info, request))
            if info.subresource == "token":
                return _json(issue_token(self._backend, info, request), 201)
            return await self._pods.answer(info, request)
        return self._on_object(info, request) if info.name else self._on_collection(info, request)

    def _on_object(self, info: RequestInfo, request: Request) -> Response | Stream:
        match request.method:
            case "GET":
                return self._get(info, request)
            case "PUT":
                return self._written(info, request, self._writer.replace(info, request))
            case "PATCH":
                return self._written(info, request, self._patcher.patch(info, request))
            case "DELETE" if not info.subresource:
                return _json(self._deleter.delete(info, request))
        raise status_errors.method_not_allowed()

    def _on_collection(self, info: RequestInfo, request: Request) -> Response | Stream:
        match request.method:
            case "GET":
                return self._list_or_watch(info, request)
            case "POST" if info.covers_one_namespace:
                return self._written(info, request, self._writer.create(info, request))
            case "DELETE" if "deletecollection" in info.kind.verbs and info.covers_one_namespace:
                return _json(self._deleter.delete_collection(info, request))
        raise status_errors.method_not_allowed()

    def _get(self, info: RequestInfo, request: Request) -> Response | Stream:
        if ListOptions.parse(request.query).watch:
            return self._list_or_watch(info, request)
        store = self._backend.store
        wanted_version = parse_version(request.query.get("resourceVersion", ""))
        if wanted_version > store.version:
            raise status_errors.too_large(wanted_version, store.version)
        wanted = negotiate(request.accept)
        stored = store.get(info.kind.table, info.key)
        if stored is None:
            raise info.not_found()
        return _bytes(self._renderer(info, request, wanted).one(stored), 200, wanted)

    def _list_or_watch(self, info: RequestInfo, request: Request) -> Response | Stream:
        options = ListOptions.parse(request.query)
        wanted = negotiate(request.accept)
        kind, store = info.kind, self._backend.store
        selected = select(kind, info.namespace, info.name or None, options)
        renderer = self._renderer(info, request, wanted)
        if not options.watch:
            page = list_page(store, kind, info.namespace, options, selected)
            return _bytes(renderer.many(page.items, page.metadata), 200, wanted)
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

    def _written(self, info: RequestInfo, request: Request, written: WriteResult) -> Response:
        wanted = negotiate(request.accept)
        headers = dict(_warning_headers(written.warnings))
        if wanted == Representation() and written.stored is not None:
            body = info.kind.encode(written.stored)
        elif wanted.form is Form.OBJECT:
            body = encode(written.value, wanted)
        else:
            body = self._renderer(info, request, wanted).value(written.value)
        return Response(written.code, {**_JSON, **headers, "content-type": content_type(wanted)}, body)

    def _renderer(self, info: RequestInfo, request: Request, wanted: Representation) -> Renderer:
        return Renderer(info.kind, wanted, self._backend.clock.now(), request.query)


def respond(error: StatusError) -> Response:
    """The answer that says why there is no other."""
    return Response(error.code, {**_JSON, **error.headers}, msgspec.json.encode(error.status))


def _warning_headers(warnings: list[str]) -> Mapping[str, str]:
    if not warnings:
        return {}
    return {"warning": ", ".join(f"299 - {msgspec.json.encode(text).decode()}" for text in warnings)}


def _json(value: Json, code: int = 200) -> Response:
    return Response(code, _JSON, msgspec.json.encode(value))


def _bytes(body: bytes, code: int, wanted: Representation) -> Response:
    return Response(code, {**_JSON, "content-type": content_type(wanted)}, body)
