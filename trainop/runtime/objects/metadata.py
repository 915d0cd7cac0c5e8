"""API resources, the metadata of objects, and the two representations of objects in the cache.

A kind of which only a few fields are read (pods, services) is decoded into a `msgspec.Struct` with just these fields. A
kind of which every field matters (jobs) stays raw JSON in an `Unstructured`, so that unknown fields survive. Cached
objects are shared by all controllers and must never be mutated.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from trainop.runtime.objects.nesting import check_value_counts

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object with the field names of the API (camelCase)."""


class Key(NamedTuple):
    """Namespace and name of an object, unique within its kind; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Resource:
    """One served resource, such as `kubeflow.org/v1` `pytorchjobs`; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    list_kind: str = ""
    """The kind of a list of these objects, if it is not `kind` + `List` (`spec.names.listKind` of a CRD)."""

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this resource, such as `v1` or `kubeflow.org/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection or, with `name`, of one object. Without `namespace`, the collection spans all
        namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
HORIZONTAL_POD_AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One entry of `metadata.ownerReferences`."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@lru_cache(maxsize=4096)
def _intern_owners(owners: tuple[OwnerReference, ...]) -> tuple[OwnerReference, ...]:
    """Returns one shared tuple for equal owner references: objects of one owner are mostly decoded in a row."""
    return owners


class Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The fields of `metadata` that controllers read; timestamps stay RFC 3339 text.

    To save memory, equal namespaces, label names, label values and owner references are interned: thousands of pods
    share them.
    """

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
            set_field(self, "owner_references", _intern_owners(self.owner_references))

    def _kept_labels(self) -> dict[str, str]:
        """The labels to keep in memory, interned; subclasses may keep fewer."""
        return {intern(label): intern(value) for label, value in self.labels.items()}

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference with `controller: true`, if any (apimachinery `metav1.GetControllerOf`)."""
        for owner in self.owner_references:  # no generator: this runs for every child in every reconcile
            if owner.controller:
                return owner
        return None

    def controlled_by(self, uid: str) -> bool:
        """Whether the object with this UID is the controller."""
        owner = self.controller
        return owner is not None and owner.uid == uid

    @property
    def terminating(self) -> bool:
        return self.deletion_timestamp is not None


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """Reference to the object that an event regards (`corev1.ObjectReference`); `namespace` is empty for cluster-scoped
    kinds."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    field_path: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """Identifies the object across its resource versions."""
        return (self.api_version, self.kind, self.namespace, self.name, self.uid)


class HasMetadata(Protocol):
    """The interface of every cached object."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasMetadata)
T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)


class Decoder(Protocol[T_co]):
    """Decodes the JSON bytes of one object into its cached representation. Any exception becomes a `DecodeError` of
    that object alone."""

    def __call__(self, raw: bytes, /) -> T_co: ...


class PartialObject(msgspec.Struct, frozen=True, gc=False):
    """An object reduced to its metadata."""

    metadata: Metadata = Metadata()


class Unstructured:
    """An object with all its fields. `raw` is the decoded JSON and must not be mutated.

    `fault` is set if the object could only be decoded in part: the path and the detail of the `DecodeError`. `raw` then
    holds the readable part. `reduced`: `raw` lacks the last-applied annotation, which the stored object has.
    """

    __slots__ = ("fault", "metadata", "raw", "reduced")

    def __init__(
        self,
        raw: Json,
        metadata: Metadata | None = None,
        fault: tuple[str, str] | None = None,
        *,
        reduced: bool = False,
    ) -> None:
        self.raw = raw
        self.fault = fault
        self.reduced = reduced
        self.metadata = metadata or msgspec.convert(raw.get("metadata") or {}, Metadata)

    def __repr__(self) -> str:
        return f"<{self.raw.get('kind', 'object')} {self.metadata.key}>"


_decode_json = msgspec.json.Decoder(Json).decode

LARGE = 100_000
"""Bytes from which an object is decoded with the garbage collector paused: it may hold enough containers to trigger
collections during the decoding."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def decode_complete(raw: bytes) -> Unstructured:
    """Decodes an object with every field. Raises `TooManyValuesError`, and what msgspec raises."""
    check_value_counts(raw)
    return Unstructured(_decode_json(raw))


def decode_unstructured(raw: bytes) -> Unstructured:
    """Decodes an object without `managedFields` and the last-applied annotation, which can double its size and matter
    only to API servers and kubectl. Write such an object back by patch: a replace would drop the annotation. Raises
    `TooManyValuesError`, and what msgspec raises."""
    check_value_counts(raw)
    value = _decode_json(raw) if len(raw) < LARGE else _decode_large(raw)
    return Unstructured(value, reduced=drop_bookkeeping(value))


def _decode_large(raw: bytes) -> Json:
    """Decodes with Python's cyclic garbage collector paused. JSON has no cycles, and repeated scans of hundreds of
    thousands of new lists would take three times as long as the decoding itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _decode_json(raw)
    finally:
        if was_enabled:
            gc.enable()


def drop_bookkeeping(value: Json) -> bool:
    """Removes `managedFields` and the last-applied annotation, in place. Returns whether there was such an
    annotation."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        return False
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations")
    return isinstance(annotations, dict) and annotations.pop(LAST_APPLIED, None) is not None


Change: TypeAlias = Callable[[Json], Json | None]
"""A mutation of an object: it edits its argument in place and returns None, or returns the new object."""


def apply_change(obj: Json, change: Change) -> Json:
    """The result of `change` on a deep copy of `obj`; `obj` itself is not mutated. Raises `TypeError` if `change`
    returns anything but an object or None."""
    mutable = copy.deepcopy(obj)
    result: object = change(mutable)
    if result is None:
        return mutable
    if not isinstance(result, dict):
        raise TypeError(f"a change returns an object, or None after a change in place, not {type(result).__name__}")
    return result


def owner_reference(api_version: str, kind: str, name: str, uid: str) -> Json:
    """The owner reference that a controller puts on its children, with `controller` and `blockOwnerDeletion` true
    (apimachinery `metav1.NewControllerRef`)."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
