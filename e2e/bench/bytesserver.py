"""A minimal API server that parses only the name of pods and services, so that 500 pods of 1.3 MiB cost little.

python -m e2e.bench.bytesserver PORT

On creation it inserts UID, version and time into the received bytes, and for pods the phase Running, and sends the
result to watches. Jobs are decoded, because they are patched. There is no TLS and no validation, and only the kinds in
`KINDS` exist.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import zlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
from aiohttp import web

from trainop.local.api.fields.json_patch import merge_patch
from trainop.runtime.objects.metadata import Json

KINDS = {"pods": "v1/Pod", "services": "v1/Service", "pytorchjobs": "kubeflow.org/v1/PyTorchJob"}
NAME = re.compile(rb'"metadata":\{"name":"([^"]+)"')
PATH = re.compile(r"/apis?/(?:[^/]+/)??v\d[^/]*/(?:namespaces/([^/]+)/)?([a-z]+)(?:/([^/]+))?(?:/status)?")
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


class StoredObject(NamedTuple):
    packed: bytes
    version: int

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed)


class Table:
    def __init__(self, kind: str) -> None:
        self.api_version, _, self.kind = kind.rpartition("/")
        self.objects: dict[str, StoredObject] = {}
        self.watches: set[asyncio.Queue[bytes]] = set()

    def put(self, name: str, body: bytes, version: int) -> None:
        verb = b"MODIFIED" if name in self.objects else b"ADDED"
        self.objects[name] = StoredObject(zlib.compress(body, 1), version)
        self.notify(verb, body)

    def notify(self, verb: bytes, body: bytes) -> None:
        for watch in self.watches:
            watch.put_nowait(b'{"type":"%s","object":%s}\n' % (verb, body))


class BytesServer:
    def __init__(self) -> None:
        self._tables = {plural: Table(kind) for plural, kind in KINDS.items()}
        self._versions = itertools.count(1000)
        self._last = 1000

    async def answer(self, request: web.Request) -> web.StreamResponse:
        match_ = PATH.fullmatch(request.path)
        if match_ is None or match_[2] not in self._tables:
            return self._other_path(request)
        table, name = self._tables[match_[2]], match_[3]
        match request.method:
            case "POST":
                return self._create(table, match_[1], await request.read())
            case "GET" if name is None:
                return await self._watch(table, request) if "watch" in request.query else self._list(table, request)
        return await self._serve_object(table, name, request)

    async def _serve_object(self, table: Table, name: str, request: web.Request) -> web.Response:
        """Serves GET, PATCH and DELETE of one object, and PUT of its status."""
        if name not in table.objects:
            return web.json_response(NOT_FOUND, status=404)
        match request.method:
            case "PATCH":
                return self._patch(table, name, await request.read())
            case "PUT":
                return self._patch(table, name, await request.read(), replaced="status")
            case "DELETE":
                table.notify(b"DELETED", table.objects.pop(name).body)
                return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        return web.Response(body=table.objects[name].body, content_type="application/json")

    def _other_path(self, request: web.Request) -> web.Response:
        if request.path == "/apis/kubeflow.org/v1":
            return web.json_response({"kind": "APIResourceList", "resources": [{"name": "pytorchjobs"}]})
        if request.method == "POST" and request.path.endswith("/events"):
            return web.json_response({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "e"}}, status=201)
        return web.json_response(NOT_FOUND, status=404)

    def _next(self) -> int:
        self._last = next(self._versions)
        return self._last

    def _create(self, table: Table, namespace: str, body: bytes) -> web.Response:
        if table.kind == "PyTorchJob":  # `NAME` needs the name to be the first field
            value = msgspec.json.decode(body)
            metadata = {"name": value["metadata"].pop("name"), "namespace": namespace, **value["metadata"]}
            body = msgspec.json.encode({**value, "metadata": metadata})
        match_ = NAME.search(body)
        assert match_, body[:200]
        name, version = match_[1].decode(), self._next()
        if name in table.objects:
            exists = {**NOT_FOUND, "reason": "AlreadyExists", "code": 409, "message": "already exists"}
            return web.json_response(exists, status=409)
        server_fields = {
            "uid": f"uid-{version}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        added = msgspec.json.encode(server_fields)[1:-1] + b","
        body = body.replace(b'"metadata":{', b'"metadata":{' + added, 1)
        if table.kind == "Pod":
            body = body[:-1] + b',"status":{"phase":"Running"}}'
        table.put(name, body, version)
        return _partial({"name": name, "namespace": namespace, **server_fields}, 201)

    def _patch(self, table: Table, name: str, patch: bytes, replaced: str = "") -> web.Response:
        value: Json = msgspec.json.decode(table.objects[name].body)
        value.pop(replaced, None)
        given: Json = msgspec.json.decode(patch)
        wanted = {field: given[field] for field in ("metadata", "status") if field in given}
        old = value["metadata"]["resourceVersion"]
        if (wanted.get("metadata") or {}).get("resourceVersion", old) != old:
            return web.json_response({**NOT_FOUND, "reason": "Conflict", "code": 409}, status=409)
        value = merge_patch(value, wanted)
        version = self._next()
        value["metadata"] = {**value["metadata"], "resourceVersion": str(version)}
        table.put(name, msgspec.json.encode(value), version)
        return _partial(value["metadata"], 200)

    def _list(self, table: Table, request: web.Request) -> web.Response:
        first, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 2**31)
        names = list(table.objects)[first : first + limit]
        following = str(first + limit) if first + limit < len(table.objects) else ""
        metadata = msgspec.json.encode({"resourceVersion": str(self._last), "continue": following})
        head = f'{{"kind":"{table.kind}List","apiVersion":"{table.api_version}","metadata":'.encode()
        items = b",".join(table.objects[name].body for name in names)
        return web.Response(body=head + metadata + b',"items":[' + items + b"]}", content_type="application/json")

    async def _watch(self, table: Table, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query and request.app["pages"]:
            refused = {**NOT_FOUND, "reason": "Invalid", "code": 422, "message": "sendInitialEvents is forbidden"}
            return web.json_response(refused, status=422)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        table.watches.add(queue)
        try:
            async for line in _events(table, queue, request, self._last):
                await response.write(line)
        finally:
            table.watches.discard(queue)
        return response


async def _events(table: Table, queue: asyncio.Queue[bytes], request: web.Request, last: int) -> AsyncIterator[bytes]:
    """The events of a streamed list, or of changes since the requested version; then new events."""
    since = int(request.query.get("resourceVersion") or 0)
    for stored in list(table.objects.values()):
        if since < stored.version <= last:
            yield b'{"type":"ADDED","object":%s}\n' % stored.body
    if "sendInitialEvents" in request.query:
        annotations = {"k8s.io/initial-events-end": "true"}
        mark = {"kind": table.kind, "metadata": {"resourceVersion": str(last), "annotations": annotations}}
        yield msgspec.json.encode({"type": "BOOKMARK", "object": mark}) + b"\n"
    while True:
        yield await queue.get()


def _partial(metadata: Json, status: int) -> web.Response:
    value = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def main() -> None:
    application = web.Application(client_max_size=2**26)
    application["pages"] = sys.argv[2:] == ["--pages"]
    application.router.add_route("*", "/{path:.*}", BytesServer().answer)
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
