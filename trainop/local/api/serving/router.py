"""From a request to its answer: which code answers which path and method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import bounds
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.request.lists import ListOptions, list_page, parse_version, select
from trainop.local.api.request.patching import Patcher
from trainop.local.api.request.pod_subresources import PodParts
from trainop.local.api.request.render import Form, Renderer, Wanted, content_type, encode, negotiate
from trainop.local.api.request.reviews import review
from trainop.local.api.request.route import NoSuchPathError, Route, find
from trainop.local.api.request.scale import Scaler
from trainop.local.api.request.tokens import issue_token
from trainop.local.api.request.watches import Watch
from trainop.local.api.request.writes import Writer, Written
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
class Whole:
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

    def __init__(self, backend: Backend, pods: PodParts) -> None:
        self._backend = backend
        self._writer = Writer(backend)
        self._patcher = Patcher(backend, self._writer)
        self._scaler = Scaler(backend, self._writer)
        self._deleter = Deleter(backend)
        self._pods = pods
        self._documents = Documents(backend.registry)
        self._watches: dict[Watch, None] = {}

    async def answer(self, request: Request) -> Response | Stream:
        """A Response, or for watches and logs a Stream."""
        try:
            bounds.check_body(request.body)
            return await self._answer(request)
        except RecursionError:
            return respond(bounds.too_deep())
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

    def _forget(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    async def _answer(self, request: Request) -> Response | Stream:
        path = request.path.rstrip("/") or "/"
        if path.startswith(("/api/", "/apis/")) and path.count("/") > 2 + path.startswith("/apis"):
            if answered := review(self._backend, request):
                return _json(answered, 201)
            return await self._on_resource(find(self._backend.registry, path), request)
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

    async def _on_resource(self, route: Route, request: Request) -> Response | Stream:
        if route.subresource and route.subresource not in {"status", "finalize"}:
            if route.subresource == "scale":
                return self._written(route, request, self._scaler.answer(route, request))
            if route.subresource == "token":
                return _json(issue_token(self._backend, route, request), 201)
            return await self._pods.answer(route, request)
        return self._on_object(route, request) if route.name else self._on_collection(route, request)

    def _on_object(self, route: Route, request: Request) -> Response | Stream:
        match request.method:
            case "GET":
                return self._get(route, request)
            case "PUT":
                return self._written(route, request, self._writer.replace(route, request))
            case "PATCH":
                return self._written(route, request, self._patcher.patch(route, request))
            case "DELETE" if not route.subresource:
                return _json(self._deleter.delete(route, request))
        raise status_errors.method_not_allowed()

    def _on_collection(self, route: Route, request: Request) -> Response | Stream:
        match request.method:
            case "GET":
                return self._list_or_watch(route, request)
            case "POST" if route.covers_one_namespace:
                return self._written(route, request, self._writer.create(route, request))
            case "DELETE" if "deletecollection" in route.kind.verbs and route.covers_one_namespace:
                return _json(self._deleter.delete_collection(route, request))
        raise status_errors.method_not_allowed()

    def _get(self, route: Route, request: Request) -> Response | Stream:
        if ListOptions.parse(request.query).watch:
            return self._list_or_watch(route, request)
        store = self._backend.store
        wanted_version = parse_version(request.query.get("resourceVersion", ""))
        if wanted_version > store.version:
            raise status_errors.too_large(wanted_version, store.version)
        wanted = negotiate(request.accept)
        stored = store.get(route.kind.table, route.key)
        if stored is None:
            raise route.not_found()
        return _bytes(self._renderer(route, request, wanted).one(stored), 200, wanted)

    def _list_or_watch(self, route: Route, request: Request) -> Response | Stream:
        options = ListOptions.parse(request.query)
        wanted = negotiate(request.accept)
        kind, store = route.kind, self._backend.store
        selected = select(kind, route.namespace, route.name or None, options)
        renderer = self._renderer(route, request, wanted)
        if not options.watch:
            page = list_page(store, kind, route.namespace, options, selected)
            return _bytes(renderer.many(page.items, page.metadata), 200, wanted)
        watch = Watch(
            store,
            store.table(kind.table),
            options,
            selected=selected,
            renderer=renderer,
            clock=self._backend.clock,
            rng=self._backend.rng,
            forget=self._forget,
        )
        self._watches[watch] = None
        return watch

    def _written(self, route: Route, request: Request, written: Written) -> Response:
        wanted = negotiate(request.accept)
        headers = dict(_warning_headers(written.warnings))
        if wanted == Wanted() and written.stored is not None:
            body = route.kind.encode(written.stored)
        elif wanted.form is Form.WHOLE:
            body = encode(written.value, wanted)
        else:
            body = self._renderer(route, request, wanted).value(written.value)
        return Response(written.code, {**_JSON, **headers, "content-type": content_type(wanted)}, body)

    def _renderer(self, route: Route, request: Request, wanted: Wanted) -> Renderer:
        return Renderer(route.kind, wanted, self._backend.clock.now(), request.query)


def respond(error: StatusError) -> Response:
    """The answer that says why there is no other."""
    return Response(error.code, {**_JSON, **error.headers}, msgspec.json.encode(error.status))


def _warning_headers(warnings: list[str]) -> Mapping[str, str]:
    if not warnings:
        return {}
    return {"warning": ", ".join(f"299 - {msgspec.json.encode(text).decode()}" for text in warnings)}


def _json(value: Json, code: int = 200) -> Response:
    return Response(code, _JSON, msgspec.json.encode(value))


def _bytes(body: bytes, code: int, wanted: Wanted) -> Response:
    return Response(code, {**_JSON, "content-type": content_type(wanted)}, body)
