"""The kinds that are served, and where a URL finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from trainop.local.api.printing.table import Columns, columns_of_kind
from trainop.local.api.registry.core_types import definition_of
from trainop.local.api.registry.names import dns_subdomain
from trainop.local.api.schema.crd_schema import Schema
from trainop.local.api.schema.field_errors import FieldError
from trainop.local.api.schema.shapes import Shape, shape_of_kind
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Strategy:
    """What is special about writing a kind; the methods that change an object get a fresh one that they own.

    Named as in the API server (`registry/core/<kind>/strategy.go`). The base is a kind about which nothing is special.
    """

    generation = False
    """Whether `metadata.generation` counts changes outside of metadata and status."""
    status = False
    """Whether `status` belongs to its subresource: other writes leave it alone."""
    graceful = False
    """Whether deletion may wait for a grace period."""
    create_on_update = False
    """Whether PUT of an absent object creates it."""
    finalizer = ""
    """What the server adds to the finalizers when a deletion begins."""
    returns_deleted = False
    """Whether DELETE answers with the object instead of a Status."""

    def check_name(self, name: str) -> list[str]:
        """What is wrong with the name."""
        return dns_subdomain(name)

    def held(self, value: Json) -> bool:
        """Whether something besides `metadata.finalizers` keeps an object that is being deleted."""
        return False

    def grace(self, value: Json, wanted: int | None) -> int:
        """Seconds that a deletion waits, if it is `graceful`; `wanted` is what the client asked for."""
        return 0

    def default(self, value: Json) -> None:
        """Fill in what the client left out."""

    def prepare_create(self, value: Json) -> None:
        """Set what only the server sets; raise a StatusError where admission would."""

    def prepare_update(self, value: Json, old: Json) -> None:
        """Carry over what clients cannot change."""

    def validate(self, value: Json) -> list[FieldError]:
        """What is wrong with the object in itself."""
        return []

    def validate_update(self, value: Json, old: Json) -> list[FieldError]:
        """What is wrong with the change."""
        return []

    def warnings(self, value: Json) -> list[str]:
        """What the client should know about an object that is accepted."""
        return []


@dataclass(frozen=True)
class Kind:
    """One resource in one version, with everything that the generic code needs to know of it."""

    resource: Resource
    singular: str
    table: str
    """Where its objects are stored; the versions of a resource share it."""
    strategy: Strategy = field(default_factory=Strategy)
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[str, ...] = ()
    scale: Mapping[str, str] | None = None
    """JSON paths of the scale subresource, as in a CRD."""
    schema: Schema | None = None
    document: Json = field(default_factory=dict)
    """The OpenAPI schema as written, of a custom kind."""
    definition: str = ""
    """The name of the type of a built-in kind in `core_types`."""
    shape: Shape = field(default_factory=Shape)
    columns: Columns = ()
    strategic: bool = False
    """Whether strategic merge patches are understood: built-in kinds only."""
    custom: bool = False
    closing: bool = False
    """Whether its definition is being deleted: nothing new is taken in."""
    convert: Callable[[Json], Json] | None = None
    """From the stored form to this version's; None if they are one. Must not change its argument."""
    store_form: Callable[[Json], Json] | None = None
    """The way back."""

    @property
    def list_kind(self) -> str:
        return f"{self.resource.kind}List"

    def read(self, stored: Stored) -> Json:
        """The object in this version; not to be changed."""
        return stored.value if self.convert is None else msgspec.json.decode(self.encode(stored), type=dict)

    def encode(self, stored: Stored) -> bytes:
        """The object's JSON in this version; made once for each stored version."""
        if self.convert is None:
            return stored.body
        version = self.resource.api_version
        if version not in stored.views:
            stored.views[version] = msgspec.json.encode(self.convert(stored.value))
        return stored.views[version]


class Registry:
    """All kinds by group, version and plural, in the order in which they were added."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self._versions: dict[str, list[str]] = {}
        self.revision = 0
        """Counts changes, so that discovery documents can be kept."""

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._kinds.values()))

    def add(self, kind: Kind) -> None:
        resource = kind.resource
        self._kinds[resource.group, resource.version, resource.plural] = kind
        self._versions.clear()
        self.revision += 1

    def remove_table(self, table: str) -> None:
        """Stop serving the kinds whose objects are in that table."""
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind.table != table}
        self._versions.clear()
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._kinds.get((group, version, plural))

    def of_table(self, table: str) -> Kind | None:
        """The kind in the form in which its objects are stored, else in any."""
        found = [kind for kind in self._kinds.values() if kind.table == table]
        return next((kind for kind in found if kind.convert is None), found[0] if found else None)

    def versions(self, group: str) -> list[str]:
        if group not in self._versions:
            of_group = (kind.resource.version for kind in self if kind.resource.group == group)
            self._versions[group] = list(dict.fromkeys(of_group))
        return self._versions[group]

    def groups(self) -> list[str]:
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
    """A kind that the API server knows by itself."""
    return Kind(
        resource=resource,
        singular=singular or resource.kind.lower(),
        table=str(resource),
        strategy=strategy or Strategy(),
        short_names=short,
        categories=categories,
        verbs=verbs,
        subresources=subresources,
        definition=definition_of(resource.group, resource.version, resource.kind),
        shape=shape_of_kind(resource.group, resource.kind),
        columns=columns_of_kind(resource.group, resource.kind),
        strategic=True,
    )
