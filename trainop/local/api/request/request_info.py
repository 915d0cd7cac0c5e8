"""The target of a request: resource, namespace, name and subresource, parsed from the URL path.

Source: apiserver `pkg/endpoints/request/requestinfo.go`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainop.local.api import status_errors
from trainop.local.api.registry.kinds import Kind, Registry
from trainop.local.api.status_errors import StatusError
from trainop.runtime import NAMESPACES

_NAMESPACE_SUBRESOURCES = {"status", "finalize"}


_NOT_SERVED = {
    "v1": "limitranges persistentvolumes podtemplates replicationcontrollers",
    "admissionregistration.k8s.io/v1": "validatingadmissionpolicies validatingadmissionpolicybindings",
    "apps/v1": "controllerrevisions daemonsets replicasets statefulsets",
    "batch/v1": "cronjobs",
    "certificates.k8s.io/v1": "certificatesigningrequests",
    "networking.k8s.io/v1": "ingressclasses ingresses networkpolicies",
    "node.k8s.io/v1": "runtimeclasses",
    "policy/v1": "poddisruptionbudgets",
    "storage.k8s.io/v1": "csidrivers csinodes storageclasses volumeattachments",
}
_NOT_SERVED_RESOURCES = frozenset(
    (version, plural) for version, names in _NOT_SERVED.items() for plural in names.split()
)
"""API version and plural of well-known resources that this server does not serve."""


class NoSuchPathError(Exception):
    """404 in plain text instead of a Status: the path belongs to no served group version."""


def _unknown_resource(registry: Registry, group: str, version: str) -> Exception:
    """The 404 of an unknown resource; in the groups of CRDs, kube-apiserver answers in plain text."""
    kinds = (kind for kind in registry if (kind.resource.group, kind.resource.version) == (group, version))
    return NoSuchPathError() if next(kinds).custom else status_errors.resource_not_served()


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The target of a request.

    `namespace` is None for cluster-scoped kinds and for all namespaces. `name` is empty for a collection, `subresource`
    for the object itself.
    """

    kind: Kind
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The key of the object in its table."""
        return self.namespace or "", self.name

    @property
    def covers_one_namespace(self) -> bool:
        """Whether the request is for one namespace or for a cluster-scoped kind."""
        return bool(self.namespace) or not self.kind.resource.namespaced

    def not_found(self) -> StatusError:
        """The 404 for the requested object."""
        return status_errors.not_found(self.kind.resource, self.name)


def _check_well_known(group: str, version: str, rest: list[str]) -> None:
    """Raise a 404 with an explanation for a well-known resource that is not served."""
    plural = rest[2] if rest[0] == NAMESPACES.plural and len(rest) > 2 else rest[0]
    if (f"{group}/{version}" if group else version, plural) in _NOT_SERVED_RESOURCES:
        shown = f"{plural}.{group}" if group else plural
        detail = f"this cluster does not serve {shown}: it has no controller for them"
        raise StatusError(404, "NotFound", detail, {"group": group, "kind": plural})


def parse_path(registry: Registry, path: str) -> RequestInfo:
    """Parse a path below `/api/` or `/apis/`; raises `NoSuchPathError` or a 404 `StatusError`."""
    root, *parts = path.strip("/").split("/")
    if root == "api" and len(parts) >= 2:
        group, version, rest = "", parts[0], parts[1:]
    elif root == "apis" and len(parts) >= 3:
        group, version, rest = parts[0], parts[1], parts[2:]
    else:
        raise NoSuchPathError
    _check_well_known(group, version, rest)
    if version not in registry.versions(group):
        raise NoSuchPathError
    namespace: str | None = None
    if (
        rest[0] == NAMESPACES.plural
        and len(rest) > 2
        and not (group == "" and len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES)
    ):
        namespace, rest = rest[1], rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or "" in rest:
        raise _unknown_resource(registry, group, version)
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if not kind.resource.namespaced and namespace is not None:
        raise status_errors.resource_not_served()
    if kind.resource.namespaced and name and namespace is None:
        raise status_errors.resource_not_served()
    if subresource and subresource not in kind.subresources:
        raise status_errors.resource_not_served()
    return RequestInfo(kind, namespace, name, subresource)
