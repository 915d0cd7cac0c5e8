"""Which resource, object and subresource a URL path names."""

from __future__ import annotations

from dataclasses import dataclass

from trainop.local.api import refusal
from trainop.local.api.kinds import Kind, Registry
from trainop.local.api.refusal import Refusal
from trainop.runtime.resource import NAMESPACES

_NAMESPACE_PARTS = {"status", "finalize"}


class NoSuchPathError(Exception):
    """404 in plain text: the path belongs to no served group and version."""


def _unserved(registry: Registry, group: str, version: str) -> Exception:
    """Groups of custom kinds have no routes of their own, so that nothing answers with a Status there."""
    kinds = (kind for kind in registry if (kind.resource.group, kind.resource.version) == (group, version))
    return NoSuchPathError() if next(kinds).custom else refusal.no_such_path()


@dataclass(frozen=True, slots=True)
class Route:
    """`namespace` is None for cluster-scoped kinds and for all namespaces; `name` is empty for a collection."""

    kind: Kind
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace or "", self.name

    @property
    def covers_one_namespace(self) -> bool:
        """Or the kind has none."""
        return bool(self.namespace) or not self.kind.resource.namespaced

    def not_found(self) -> Refusal:
        return refusal.not_found(self.kind.resource, self.name)


def find(registry: Registry, path: str) -> Route:
    """The route of `/api/...` or `/apis/...`; raises `NoSuchPathError` or the 404 Status."""
    root, *parts = path.strip("/").split("/")
    if root == "api" and len(parts) >= 2:
        group, version, rest = "", parts[0], parts[1:]
    elif root == "apis" and len(parts) >= 3:
        group, version, rest = parts[0], parts[1], parts[2:]
    else:
        raise NoSuchPathError
    if version not in registry.versions(group):
        raise NoSuchPathError
    namespace: str | None = None
    if (
        rest[0] == NAMESPACES.plural
        and len(rest) > 2
        and not (group == "" and len(rest) == 3 and rest[2] in _NAMESPACE_PARTS)
    ):
        namespace, rest = rest[1], rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or "" in rest:
        raise _unserved(registry, group, version)
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if not kind.resource.namespaced and namespace is not None:
        raise refusal.no_such_path()
    if kind.resource.namespaced and name and namespace is None:
        raise refusal.no_such_path()
    if subresource and subresource not in kind.subresources:
        raise refusal.no_such_path()
    return Route(kind, namespace, name, subresource)
