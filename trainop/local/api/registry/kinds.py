"""Kinds (a resource in one version), their strategies, and the registry that maps group, version and plural to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from trainop.local.api.printing.table import Columns, columns_of_kind
from trainop.local.api.registry.core_types import definition_of
from trainop.local.api.registry.names import dns_subdomain
from trainop.local.api.schema.crd_schema import Schema
from trainop.local.api.schema.shapes import Shape, shape_of_kind
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime import Json, Resource
from trainop.runtime.lowlevel import FieldError

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Strategy:
    """The hooks of writes to a kind, named as in kube-apiserver (`pkg/registry/core/<kind>/strategy.go`).

    Methods without result mutate an object that they own. The base class is a kind without special behaviour.
    """

    has_generation = False
    """Whether `metadata.generation` counts changes outside of metadata and status."""
    has_status = False
    """Whether `status` is a subresource, so that other writes keep the old status."""
    graceful = False
    """Whether deletion has a grace period (`rest.RESTGracefulDeleteStrategy`)."""
    create_on_update = False
    """Whether PUT of an absent object creates it (`AllowCreateOnUpdate`)."""
    finalizer = ""
    """A finalizer that the server adds at the start of a deletion."""
    returns_deleted = False
    """Whether DELETE returns the deleted object instead of a Status (`ReturnDeletedObject`)."""

    def check_name(self, name: str) -> list[str]:
        """Problems of the name, in the messages of kube-apiserver; empty if it is valid."""
        return dns_subdomain(name)

    def blocks_removal(self, value: Json) -> bool:
        """Whether something other than `metadata.finalizers` blocks the removal, such as `spec.finalizers`."""
        return False

    def grace_period(self, value: Json, wanted: int | None) -> int:
        """The grace period in seconds of a `graceful` deletion; `wanted` is that of the DeleteOptions."""
        return 0

    def default(self, value: Json) -> None:
        """Set defaults."""

    def prepare_create(self, value: Json) -> None:
        """Set fields that only the server sets (`PrepareForCreate`); may raise `StatusError` in place of admission."""

    def prepare_update(self, value: Json, old: Json) -> None:
        """Restore fields that clients cannot change (`PrepareForUpdate`)."""

    def validate(self, value: Json) -> list[FieldError]:
        """Field errors of the object."""
        return []

    def validate_update(self, value: Json, old: Json) -> list[FieldError]:
        """Field errors of the change."""
        return []

    def warnings(self, value: Json) -> list[str]:
        """Texts for `Warning` headers of an accepted write."""
        return []


@dataclass(frozen=True)
class Kind:
    """A served resource in one version, with all data that the generic code for requests needs."""

    resource: Resource
    singular: str
    table: str
    """The name of the store's table; all versions of a resource share it."""
    strategy: Strategy = field(default_factory=Strategy)
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[str, ...] = ()
    scale: Mapping[str, str] | None = None
    """The paths of the scale subresource, as in `spec.versions[].subresources.scale` of a CRD."""
    schema: Schema | None = None
    openapi_schema: Json = field(default_factory=dict)
    """Custom kinds: the `openAPIV3Schema` of the CRD, for the OpenAPI document."""
    type_name: str = ""
    """Built-in kinds: the name of the definition in `core_types`."""
    shape: Shape = field(default_factory=Shape)
    columns: Columns = ()
    strategic_merge: bool = False
    """Whether strategic merge patches are supported: built-in kinds only."""
    custom: bool = False
    terminating: bool = False
    """Whether the CRD is being deleted, so that creations are rejected."""
    from_storage: Callable[[Json], Json] | None = None
    """Conversion from the stored form to this version; None if they are equal. Must not mutate its argument."""
    to_storage: Callable[[Json], Json] | None = None
    """Conversion from this version to the stored form; None if they are equal."""

    @property
    def list_kind(self) -> str:
        """The kind of a list of these objects."""
        return f"{self.resource.kind}List"

    def read(self, stored: Stored) -> Json:
        """The object in this version; must not be mutated."""
        return stored.value if self.from_storage is None else msgspec.json.decode(self.encode(stored), type=dict)

    def encode(self, stored: Stored) -> bytes:
        """The JSON of the object in this version; computed once per stored revision."""
        if self.from_storage is None:
            return stored.body
        version = self.resource.api_version
        if version not in stored.views:
            stored.views[version] = msgspec.json.encode(self.from_storage(stored.value))
        return stored.views[version]


class Registry:
    """All kinds by group, version and plural, in the order of registration."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self._versions: dict[str, list[str]] = {}
        self.revision = 0
        """Counts changes of the registry; cached OpenAPI documents depend on it."""

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._kinds.values()))

    def add(self, kind: Kind) -> None:
        """Register a kind, or replace the one with the same group, version and plural."""
        resource = kind.resource
        self._kinds[resource.group, resource.version, resource.plural] = kind
        self._versions.clear()
        self.revision += 1

    def remove_table(self, table: str) -> None:
        """Unregister all kinds of a table."""
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind.table != table}
        self._versions.clear()
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind of a resource in one version; None if it is not served."""
        return self._kinds.get((group, version, plural))

    def of_table(self, table: str) -> Kind | None:
        """The kind of a table, in the storage version if that is served; None if no version is."""
        found = [kind for kind in self._kinds.values() if kind.table == table]
        return next((kind for kind in found if kind.from_storage is None), found[0] if found else None)

    def versions(self, group: str) -> list[str]:
        """The served versions of a group, in the order of registration; must not be mutated."""
        if group not in self._versions:
            of_group = (kind.resource.version for kind in self if kind.resource.group == group)
            self._versions[group] = list(dict.fromkeys(of_group))
        return self._versions[group]

    def groups(self) -> list[str]:
        """All served groups, in the order of registration; the core group is the empty string."""
        return list(dict.fromkeys(kind.resource.group for kind in self))


def builtin(
    resource: Resource,
    singular: str = "",
    *,
    strategy: Strategy | None = None,
    short: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    verbs: tuple[str, ...] = ALL_VERBS,
    subresources: tuple[str, ...] = (),
) -> Kind:
    """A built-in kind, with the merge shape, columns and type of its group, version and kind."""
    return Kind(
        resource=resource,
        singular=singular or resource.kind.lower(),
        table=str(resource),
        strategy=strategy or Strategy(),
        short_names=short,
        categories=categories,
        verbs=verbs,
        subresources=subresources,
        type_name=definition_of(resource.group, resource.version, resource.kind),
        shape=shape_of_kind(resource.group, resource.kind),
        columns=columns_of_kind(resource.group, resource.kind),
        strategic_merge=True,
    )
