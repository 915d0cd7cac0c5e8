"""What a controller of an `Operator` watches, and what its functions work with."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from trainop.runtime.cache.cache import Cache, CacheError
from trainop.runtime.cache.informer import Informer
from trainop.runtime.cache.scope import Namespaces
from trainop.runtime.cache.store import Index, Store
from trainop.runtime.client.client import Client
from trainop.runtime.client.permissions import MissingPermissions
from trainop.runtime.clock import Clock
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.manager.manager import Manager
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import (
    Decoder,
    HasMetadata,
    ObjectReference,
    Resource,
    Unstructured,
    decode_unstructured,
)

T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorParts:
    """What `Operator.build` has wired."""

    manager: Manager
    client: Client
    """Of all controllers; refuses writes while another replica may lead."""
    unfenced: Client
    """For what every replica may write, such as the certificates of its webhooks."""
    urgent: Client
    """The same with connections of its own and no limiter: for leases and health."""
    cache: Cache
    metrics: Metrics
    clock: Clock
    rng: random.Random
    permissions: MissingPermissions
    """Reports what the API server denies to any of these clients; `announce` may be set."""

    def recorder(self, source: str, *, standby: bool = False) -> Recorder:
        """A recorder of events from `source`. With `standby` it records also while another replica leads."""
        client = self.unfenced if standby else self.client
        recorder = Recorder(client, source, self.clock, rng=self.rng, metrics=self.metrics)
        self.manager.add_recorder(recorder)
        return recorder


@dataclass(frozen=True, slots=True, eq=False)
class Watch(Generic[T]):
    """The objects of one kind that a controller watches, and how they are decoded; the arguments are those of
    `Cache.informer`. A plain `Resource` stands for all objects of the kind, decoded by `decode_unstructured`."""

    resource: Resource
    decode: Decoder[T]
    label_selector: str = ""
    field_selector: str = ""
    indices: Mapping[str, Index[T]] = field(default_factory=dict)
    namespaces: Namespaces | None = None
    optional: bool = False
    metadata_only: bool = False

    def informer(self, cache: Cache) -> Informer[T]:
        """The informer of the cache for these objects."""
        return cache.informer(
            self.resource,
            self.decode,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            indices=self.indices,
            namespaces=self.namespaces,
            optional=self.optional,
            metadata_only=self.metadata_only,
        )


class Context:
    """What the functions of one controller work with."""

    def __init__(self, resource: Resource, parts: OperatorParts, recorder: Recorder) -> None:
        self.resource = resource
        """The kind that the controller reconciles."""
        self.client = parts.client
        """Refuses writes (`NotLeaderError`) while another replica may lead."""
        self.cache = parts.cache
        self.recorder = recorder
        self.clock = parts.clock
        self.metrics = parts.metrics
        self._informers: dict[Resource | Watch[Any], Informer[Any]] = {}

    @overload
    def store(self, watched: Resource) -> Store[Unstructured]: ...
    @overload
    def store(self, watched: Watch[T]) -> Store[T]: ...
    def store(self, watched: Resource | Watch[Any]) -> Store[Any]:
        """The cached objects: pass the same `Resource` or `Watch` as to `for_`, `owns`, `watches` or `reads`. Raises
        `CacheError` for any other. Cached objects are shared and must not be mutated."""
        informer = self._informers.get(watched)
        if informer is None:
            resource = watched.resource if isinstance(watched, Watch) else watched
            raise CacheError(
                f"unable to read {resource}: the controller does not declare it with owns, watches or reads"
            )
        return informer.store

    def event(self, obj: HasMetadata, type_: str, reason: str, message: str) -> None:
        """Records an Event (`Normal` or `Warning`) about an object of the kind that the controller reconciles."""
        known = obj.metadata
        about = ObjectReference(
            self.resource.api_version,
            self.resource.kind,
            known.namespace,
            known.name,
            known.uid,
            known.resource_version,
        )
        self.recorder.event(about, type_, reason, message)

    def informer(self, watched: Resource | Watch[Any]) -> Informer[Any]:
        """Opens the informer, which makes the objects available in `store`; only before the controller runs."""
        watch = watched if isinstance(watched, Watch) else Watch(watched, decode_unstructured)
        return self._informers.setdefault(watched, watch.informer(self.cache))
