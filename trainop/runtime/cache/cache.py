"""Shares informers between controllers, so that each collection of objects is watched and stored only once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, overload

from trainop.runtime.cache.informer import Informer, InformerMetrics
from trainop.runtime.cache.scope import Namespaces, scopes_of
from trainop.runtime.cache.store import Index
from trainop.runtime.client.client import Client
from trainop.runtime.client.discovery import Discovery
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.objects.metadata import Decoder, HasMetadata, Key, Resource
from trainop.runtime.objects.models import M, to_model

T = TypeVar("T", bound=HasMetadata)


class CacheError(LookupError):
    """The cache cannot answer a read: no synced informer, or more than one, covers it."""


class Cache:
    """The shared informers of a process (controller-runtime `cache.Cache`). Informers may be added before `run` and
    while it runs."""

    def __init__(
        self,
        client: Client,
        *,
        namespaces: Namespaces = (),
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: InformerMetrics | None = None,
        guarded: bool = False,
        streamed: bool = True,
    ) -> None:
        """`namespaces` limits all namespaced kinds, optionally with selectors per namespace; empty means all. `guarded`
        detects mutations of cached objects, which then end the process; for tests. `streamed` as in `Informer`."""
        self._client = client
        self._namespaces = namespaces
        clock = clock or SystemClock()
        rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._common: dict[str, Any] = {"clock": clock, "rng": rng, "discovery": Discovery(client, clock)}
        self._common |= {"metrics": metrics, "guarded": guarded, "streamed": streamed}
        self._informers: dict[tuple[Any, ...], Informer[Any]] = {}
        self._group: asyncio.TaskGroup | None = None

    def informer(
        self,
        resource: Resource,
        decode: Decoder[T],
        *,
        label_selector: str = "",
        field_selector: str = "",
        indices: Mapping[str, Index[T]] | None = None,
        namespaces: Namespaces | None = None,
        optional: bool = False,
        permission_optional: bool = False,
        metadata_only: bool = False,
    ) -> Informer[T]:
        """Returns the informer for these objects; parameters as in `Informer`, and `namespaces` overrides the cache's.
        Equal calls share one informer. It has the indices of all of them, and is optional only if all agree."""
        namespaces = self._namespaces if namespaces is None else namespaces
        scopes = tuple(scopes_of(resource, namespaces, label_selector, field_selector))
        identity = (resource, decode, scopes, metadata_only)
        if known := self._informers.get(identity):
            return _share(cast("Informer[T]", known), indices or {}, optional=optional)
        self._informers[identity] = informer = Informer(
            self._client,
            resource,
            decode,
            namespaces=namespaces,
            label_selector=label_selector,
            field_selector=field_selector,
            indices=indices,
            optional=optional,
            permission_optional=permission_optional,
            metadata_only=metadata_only,
            **self._common,
        )
        if self._group is not None:
            self._group.create_task(informer.run(), name=f"informer {resource}")
        return informer

    @overload
    def get(self, resource: Resource, key: Key) -> Any: ...
    @overload
    def get(self, resource: Resource, key: Key, *, as_: type[M]) -> M | None: ...
    def get(self, resource: Resource, key: Key, *, as_: type[M] | None = None) -> Any:
        """The cached object, None if it does not exist; with `as_`, such as `V1Secret`, a new model of it as by
        `to_model`. Like `list` and `by_index`, raises `CacheError` unless exactly one informer has the kind and is
        synced. `informer(...).store` gives typed access without this lookup."""
        found = self._only(resource, key.namespace).store.get(key)
        return found if as_ is None or found is None else to_model(as_, found)

    @overload
    def list(self, resource: Resource, namespace: str | None = None) -> Sequence[Any]: ...
    @overload
    def list(self, resource: Resource, namespace: str | None = None, *, as_: type[M]) -> Sequence[M]: ...
    def list(self, resource: Resource, namespace: str | None = None, *, as_: type[M] | None = None) -> Sequence[Any]:
        """All cached objects, or those of one namespace."""
        return _as(as_, self._only(resource, namespace).store.list(namespace))

    @overload
    def by_index(self, resource: Resource, index: str, value: str) -> Sequence[Any]: ...
    @overload
    def by_index(self, resource: Resource, index: str, value: str, *, as_: type[M]) -> Sequence[M]: ...
    def by_index(self, resource: Resource, index: str, value: str, *, as_: type[M] | None = None) -> Sequence[Any]:
        """The objects for which `index` yields `value`. Raises `KeyError` if there is no such index."""
        return _as(as_, self._only(resource, None).store.by_index(index, value))

    def _only(self, resource: Resource, namespace: str | None) -> Informer[Any]:
        found = [informer for informer in self._informers.values() if informer.resource == resource]
        if len(found) != 1:
            raise CacheError(f"unable to read {resource}: {len(found)} informers have it, not one")
        if not found[0].synced:
            raise CacheError(f"unable to read {resource}: the cache is not synced yet")
        if namespace is not None and not found[0].covers(namespace):
            raise CacheError(f"unable to read {resource} in {namespace}: because of unknown namespace for the cache")
        return found[0]

    @property
    def synced(self) -> bool:
        """Whether all informers are synced."""
        return all(informer.synced for informer in self._informers.values())

    async def wait_synced(self) -> None:
        """Waits until every informer is synced."""
        for informer in tuple(self._informers.values()):
            await informer.wait_synced()

    async def run(self) -> None:
        """Runs all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for informer in self._informers.values():
                    group.create_task(informer.run(), name=f"informer {informer.resource}")
                await asyncio.Event().wait()
            finally:
                self._group = None


def _as(model: type[Any] | None, objects: Sequence[Any]) -> Sequence[Any]:
    return objects if model is None else [to_model(model, each) for each in objects]


def _share(informer: Informer[T], indices: Mapping[str, Index[T]], *, optional: bool) -> Informer[T]:
    """Adds another caller's indices and its `optional` to an existing informer."""
    informer.optional = informer.optional and optional
    for name, index in indices.items():
        informer.store.add_index(name, index)
    return informer
