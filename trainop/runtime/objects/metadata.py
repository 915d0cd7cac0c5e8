"""Objects as the cache holds them: typed metadata, and either the few fields that are read or the raw JSON value.

Children (pods, services) are decoded straight into `msgspec.Struct`s that name only what is read; objects whose every
field matters (the jobs) stay raw JSON in `Unstructured`, so that no unknown field is ever lost. Nobody mutates either.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from trainop.runtime.objects.nesting import check_parts

if TYPE_CHECKING:
    from trainop.runtime.errors import DecodeError

Json: TypeAlias = dict[str, Any]
"""A JSON object as the API server speaks it."""


class Key(NamedTuple):
    """Names one object of a kind; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """`metadata.ownerReferences[]`; field names on the wire are camelCase."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@lru_cache(maxsize=4096)
def _shared(owners: tuple[OwnerReference, ...]) -> tuple[OwnerReference, ...]:
    """Equal owners of several objects, which mostly come one after another, as one value."""
    return owners


class Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The part of `metadata` that controllers read; timestamps stay RFC 3339 text. What many objects have in common is
    held once: the namespace, labels and owners of thousands of pods are mostly the same."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "namespace", intern(self.namespace))
        if self.labels:
            set_field(self, "labels", self._kept_labels())
        if self.owner_references:
            set_field(self, "owner_references", _shared(self.owner_references))

    def _kept_labels(self) -> dict[str, str]:
        return {intern(label): intern(value) for label, value in self.labels.items()}

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The one owner reference with `controller: true`."""
        for owner in self.owner_references:  # asked of every child in every pass: no generator
            if owner.controller:
                return owner
        return None

    @property
    def terminating(self) -> bool:
        return self.deletion_timestamp is not None


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an event is about; `namespace` is empty for cluster-scoped kinds."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    field_path: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """The same for all versions of the object."""
        return (self.api_version, self.kind, self.namespace, self.name, self.uid)


class HasMetadata(Protocol):
    """What every cached object offers."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasMetadata)
T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)


class Decoder(Protocol[T_co]):
    """Turns the JSON bytes of one object into what the cache holds. Whatever it raises becomes a `DecodeError`."""

    def __call__(self, raw: bytes, /) -> T_co: ...


class PartialObject(msgspec.Struct, frozen=True, gc=False):
    """An object of which only the metadata matters."""

    metadata: Metadata = Metadata()


class Unstructured:
    """An object with all its fields: `raw` is the JSON value as received, to be read and never mutated. `fault` is set
    on what remains of an object that cannot be read whole."""

    __slots__ = ("fault", "metadata", "raw")

    def __init__(self, raw: Json, metadata: Metadata | None = None, fault: DecodeError | None = None) -> None:
        self.raw = raw
        self.fault = fault
        self.metadata = metadata or msgspec.convert(raw.get("metadata") or {}, Metadata)

    def __repr__(self) -> str:
        return f"<{self.raw.get('kind', 'object')} {self.metadata.key}>"


_decode_json = msgspec.json.Decoder(Json).decode

LARGE = 100_000
"""Bytes of an object that may have more lists and dictionaries than the collector of cycles looks at in one go."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def decode_complete(raw: bytes) -> Unstructured:
    """The decoder for kinds whose every field is kept; raises `CrowdedError` beside what msgspec raises."""
    check_parts(raw)
    return Unstructured(_decode_json(raw))


def decode_unstructured(raw: bytes) -> Unstructured:
    """The same without what doubles an object's size and only API servers and kubectl read: `managedFields` and the
    configuration that was last applied. So patch what you read here, and never replace it. Raises the same."""
    check_parts(raw)
    value = _decode_json(raw) if len(raw) < LARGE else _decode_large(raw)
    strip(value)
    return Unstructured(value)


def _decode_large(raw: bytes) -> Json:
    """Without the collector of cycles, which JSON has not: it would look at hundreds of thousands of new lists again
    and again, for three times as long as they take to decode."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return _decode_json(raw)
    finally:
        if collects:
            gc.enable()


def strip(value: Json) -> None:
    """Takes out what `decode_unstructured` does not keep."""
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
        annotations = metadata.get("annotations")
        if isinstance(annotations, dict):
            annotations.pop(LAST_APPLIED, None)


Change: TypeAlias = Callable[[Json], Json | None]
"""Changes an object: in place, or by returning another one. It is given a copy of its own."""


def changed(obj: Json, change: Change) -> Json:
    """A copy of `obj` after `change`: what that returned or, if it returned None, what it made of its argument."""
    own = copy.deepcopy(obj)
    result: object = change(own)
    if result is None:
        return own
    if not isinstance(result, dict):
        raise TypeError(f"a change returns an object, or None after a change in place, not {type(result).__name__}")
    return result


def owner_reference(api_version: str, kind: str, name: str, uid: str) -> Json:
    """The reference that a controller puts on its children: `controller` and `blockOwnerDeletion` are true."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
