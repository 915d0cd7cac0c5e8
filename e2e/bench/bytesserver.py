"""An API server that looks at no more of a pod or service than its name, so that 500 of 1.3 MiB are no matter.

python -m e2e.bench.bytesserver PORT

A creation adds UID, version and time to the bytes that came, and for a pod that it runs; so it goes to the watches.
Jobs are JSON: they are patched. There is no TLS, no validation, and of all kinds only those in `KINDS`.
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


class Kept(NamedTuple):
    packed: bytes
    version: int

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed)


class Table:
    def __init__(self, kind: str) -> None:
        self.api_version, _, self.kind = kind.rpartition("/")
        self.kept: dict[str, Kept] = {}
        self.watches: set[asyncio.Queue[bytes]] = set()

    def put(self, name: str, body: bytes, version: int) -> None:
        verb = b"MODIFIED" if name in self.kept else b"ADDED"
        self.kept[name] = Kept(zlib.compress(body, 1), version)
        self.tell(verb, body)

    def tell(self, verb: bytes, body: bytes) -> None:
        for watch in self.watches:
            watch.put_nowait(b'{"type":"%s","object":%s}\n' % (verb, body))


class BytesServer:
    def __init__(self) -> None:
        self._tables = {plural: Table(kind) for plural, kind in KINDS.items()}
        self._versions = itertools.count(1000)
        self._last = 1000

    async def answer(self, request: web.Request) -> web.StreamResponse:
        found = PATH.fullmatch(request.path)
        if found is None or found[2] not in self._tables:
            return self._otherwise(request)
        table, name = self._tables[found[2]], found[3]
        match request.method:
            case "POST":
                return self._create(table, found[1], await request.read())
            case "GET" if name is None:
                return await self._watch(table, request) if "watch" in request.query else self._list(table, request)
        return await self._answer_about(table, name, request)

    async def _answer_about(self, table: Table, name: str, request: web.Request) -> web.Response:
        """A request for one object."""
        if name not in table.kept:
            return web.json_response(NOT_FOUND, status=404)
        match request.method:
            case "PATCH":
                return self._patch(table, name, await request.read())
            case "DELETE":
                table.tell(b"DELETED", table.kept.pop(name).body)
                return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        return web.Response(body=table.kept[name].body, content_type="application/json")

    def _otherwise(self, request: web.Request) -> web.Response:
        if request.path == "/apis/kubeflow.org/v1":
            return web.json_response({"kind": "APIResourceList", "resources": [{"name": "pytorchjobs"}]})
        if request.method == "POST" and request.path.endswith("/events"):
            return web.json_response({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "e"}}, status=201)
        return web.json_response(NOT_FOUND, status=404)

    def _next(self) -> int:
        self._last = next(self._versions)
        return self._last

    def _create(self, table: Table, namespace: str, body: bytes) -> web.Response:
        if table.kind == "PyTorchJob":  # its fields come in any order
            value = msgspec.json.decode(body)
            metadata = {"name": value["metadata"].pop("name"), "namespace": namespace, **value["metadata"]}
            body = msgspec.json.encode({**value, "metadata": metadata})
        found = NAME.search(body)
        assert found, body[:200]
        name, version = found[1].decode(), self._next()
        if name in table.kept:
            exists = {**NOT_FOUND, "reason": "AlreadyExists", "code": 409, "message": "already exists"}
            return web.json_response(exists, status=409)
        about = {"uid": f"uid-{version}", "resourceVersion": str(version), "creationTimestamp": "2026-01-01T00:00:00Z"}
        added = msgspec.json.encode(about)[1:-1] + b","
        body = body.replace(b'"metadata":{', b'"metadata":{' + added, 1)
        if table.kind == "Pod":
            body = body[:-1] + b',"status":{"phase":"Running"}}'
        table.put(name, body, version)
        return _partial({"name": name, "namespace": namespace, **about}, 201)

    def _patch(self, table: Table, name: str, patch: bytes) -> web.Response:
        value: Json = msgspec.json.decode(table.kept[name].body)
        wanted: Json = msgspec.json.decode(patch)
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
        names = list(table.kept)[first : first + limit]
        following = str(first + limit) if first + limit < len(table.kept) else ""
        metadata = msgspec.json.encode({"resourceVersion": str(self._last), "continue": following})
        head = f'{{"kind":"{table.kind}List","apiVersion":"{table.api_version}","metadata":'.encode()
        items = b",".join(table.kept[name].body for name in names)
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
    """Those of the list that was asked for, or of what has changed since; then those to come."""
    since = int(request.query.get("resourceVersion") or 0)
    for kept in list(table.kept.values()):
        if since < kept.version <= last:
            yield b'{"type":"ADDED","object":%s}\n' % kept.body
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
