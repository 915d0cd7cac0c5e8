"""The scale subresource: `autoscaling/v1` Scale, converted from and to the object by the paths of its kind."""

from __future__ import annotations

from typing import Any

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.scale_paths import read_path, write_path
from trainop.local.api.request import bodies
from trainop.local.api.request.bodies import WriteOptions
from trainop.local.api.request.patching import apply_patch
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.request.writes import Writer, WriteResult
from trainop.runtime import Json
from trainop.runtime.lowlevel import Request


class ScaleSubresource:
    """Reads and writes the replica count of any kind with a scale subresource."""

    def __init__(self, backend: Backend, writer: Writer) -> None:
        self._backend = backend
        self._writer = writer

    def answer(self, info: RequestInfo, request: Request) -> WriteResult:
        """The Scale after a GET, PUT or PATCH of `.../scale`."""
        kind = info.kind
        stored = self._backend.store.get(kind.table, info.key)
        if stored is None:
            raise info.not_found()
        paths = kind.scale or {}
        value = kind.read(stored)
        match request.method:
            case "GET":
                return WriteResult(scale_of(value, paths))
            case "PUT":
                options = WriteOptions.parse(request, "UpdateOptions")
                scale = bodies.decode(request, "Scale")
            case "PATCH":
                options = WriteOptions.parse(request, "PatchOptions")
                media = request.content_type.partition(";")[0].strip()
                scale = apply_patch(kind, scale_of(value, paths), media, request.body)
            case _:
                raise status_errors.method_not_allowed()
        fresh: Json = msgspec.json.decode(msgspec.json.encode(value), type=dict)
        fresh["metadata"]["resourceVersion"] = (scale.get("metadata") or {}).get("resourceVersion", "")
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        write_path(fresh, paths.get("specReplicasPath", ".spec.replicas"), replicas)
        written = self._writer.update(info, stored, fresh, options)
        return WriteResult(scale_of(written.value, paths))


def scale_of(value: Json, paths: Any) -> Json:
    """The Scale of an object; `paths` is `Kind.scale`."""
    metadata = value["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Json = {"replicas": read_path(value, paths.get("statusReplicasPath", ".status.replicas")) or 0}
    if selector := read_path(value, paths.get("labelSelectorPath") or ".status.selector"):
        status["selector"] = selector
    replicas = read_path(value, paths.get("specReplicasPath", ".spec.replicas"))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": replicas} if replicas is not None else {},
        "status": status,
    }
