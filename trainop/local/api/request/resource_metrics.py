"""The API group metrics.k8s.io, for `kubectl top` (kubernetes-sigs/metrics-server, k8s.io/metrics `v1beta1`).

Its objects are measured when they are asked for, and not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import builtin
from trainop.local.api.request.lists import ListOptions, select
from trainop.local.api.request.request_info import RequestInfo
from trainop.runtime import NODES, PODS, Json, Resource
from trainop.runtime.lowlevel import Request, timestamp

GROUP = "metrics.k8s.io"
_NODE_METRICS = Resource(GROUP, "v1beta1", "nodes", "NodeMetrics", namespaced=False)
_POD_METRICS = Resource(GROUP, "v1beta1", "pods", "PodMetrics")
_WINDOW = "500ms"


class Amounts(NamedTuple):
    """Processors and bytes in use."""

    cores: float
    memory: int


class Measured(NamedTuple):
    """The result of one measurement."""

    node: str
    machine: Amounts
    containers: Mapping[str, Mapping[str, Amounts]]
    """Pod UID -> container -> what it uses. Only running containers."""


class MetricsSource(Protocol):
    """Measures, which is what the node does."""

    async def __call__(self) -> Measured: ...


class ResourceMetrics:
    """Serves NodeMetrics and PodMetrics of one source."""

    def __init__(self, backend: Backend, source: MetricsSource) -> None:
        self._backend = backend
        self._source = source
        for resource in (_NODE_METRICS, _POD_METRICS):
            backend.registry.add(builtin(resource, verbs=("get", "list")))

    async def answer(self, info: RequestInfo, request: Request) -> Json:
        """The object or list. Raises a 404 for what is not measured, such as a pod that does not run."""
        if request.method != "GET" or "watch" in request.query:
            raise status_errors.method_not_allowed()
        measured = await self._source()
        found = self._nodes(measured) if info.kind.resource == _NODE_METRICS else self._pods(measured)
        resource = PODS if info.kind.resource == _POD_METRICS else NODES
        kind = self._backend.registry.of_table(str(resource))
        assert kind is not None  # noqa: S101 - pods and nodes are always served
        matches = select(kind, info.namespace, info.name or None, ListOptions.parse(request.query))
        table = self._backend.store.table(kind.table)
        chosen = [found[stored.uid] for stored in table.objects.values() if stored.uid in found and matches(stored)]
        if not info.name:
            api_version = info.kind.resource.api_version
            return {"kind": info.kind.list_kind, "apiVersion": api_version, "metadata": {}, "items": chosen}
        if not chosen:
            raise info.not_found()
        return chosen[0]

    def _nodes(self, measured: Measured) -> dict[str, Json]:
        stored = self._backend.store.get(NODES.plural, ("", measured.node))
        if stored is None:
            return {}
        return {stored.uid: {**self._head(_NODE_METRICS, stored.value), "usage": _usage(measured.machine)}}

    def _pods(self, measured: Measured) -> dict[str, Json]:
        pods = self._backend.store.table(PODS.plural).objects.values()
        return {
            stored.uid: {
                **self._head(_POD_METRICS, stored.value),
                "containers": _containers(measured.containers[stored.uid].items()),
            }
            for stored in pods
            if measured.containers.get(stored.uid)
        }

    def _head(self, resource: Resource, of: Json) -> Json:
        now = timestamp(self._backend.clock.now())
        kept = {name: of["metadata"][name] for name in ("name", "namespace", "labels") if name in of["metadata"]}
        identity = {"kind": resource.kind, "apiVersion": resource.api_version}
        return {**identity, "metadata": {**kept, "creationTimestamp": now}, "timestamp": now, "window": _WINDOW}


def _containers(found: Iterable[tuple[str, Amounts]]) -> list[Json]:
    return [{"name": name, "usage": _usage(amounts)} for name, amounts in sorted(found)]


def _usage(amounts: Amounts) -> Json:
    return {"cpu": f"{round(amounts.cores * 1e9)}n", "memory": f"{amounts.memory // 1024}Ki"}
