"""Discovery: the documents at `/api`, `/apis` and below, unaggregated and aggregated."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainop.local.api.registry.kinds import Kind, Registry
from trainop.runtime import Json

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SUBRESOURCE_VERBS = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "finalize": ("update",),
    "log": ("get",),
    "binding": ("create",),
    "eviction": ("create",),
    "ephemeralcontainers": ("get", "patch", "update"),
    "token": ("create",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
}
_SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
    "exec": ("", "v1", "PodExecOptions"),
    "attach": ("", "v1", "PodAttachOptions"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
}


def document(registry: Registry, path: str, host: str) -> Json | None:
    """The unaggregated discovery document at a path; None if there is none."""
    match path.strip("/").split("/"):
        case ["api"]:
            return core_versions(host)
        case ["apis"]:
            return groups(registry)
        case ["api", version]:
            return resources(registry, "", version)
        case ["apis", name]:
            return group(registry, name)
        case ["apis", name, version]:
            return resources(registry, name, version)
    return None


def version_info(version: str) -> Json:
    """The document at `/version`."""
    major, minor = version.lstrip("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "python",
        "compiler": "cpython",
        "platform": "any/any",
    }


def core_versions(host: str) -> Json:
    """APIVersions, at `/api`."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}] if host else []
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def groups(registry: Registry) -> Json:
    """APIGroupList, at `/apis`."""
    named = [_group(registry, name) for name in registry.groups() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}


def group(registry: Registry, name: str) -> Json | None:
    """APIGroup, at `/apis/<group>`; None if the group is not served."""
    if not name or name not in registry.groups():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, name)}


def _group(registry: Registry, name: str) -> Json:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in versions_by_priority(registry, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def versions_by_priority(registry: Registry, group_name: str) -> list[str]:
    """The versions of a group by priority: GA, beta, alpha (apimachinery `pkg/version/helpers.go`)."""
    return sorted(registry.versions(group_name), key=_priority)


def _priority(version: str) -> tuple[int, int, int, str]:
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if match is None:
        return (3, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stage, -int(match[1]), -int(match[3] or 0), "")


def resources(registry: Registry, group_name: str, version: str) -> Json | None:
    """APIResourceList, at `/api/v1` and `/apis/<group>/<version>`; None if the version is not served."""
    kinds = [kind for kind in registry if (kind.resource.group, kind.resource.version) == (group_name, version)]
    if not kinds:
        return None
    listed = [entry for kind in kinds for entry in _api_resources(kind)]
    full = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": full, "resources": listed}


def _api_resources(kind: Kind) -> Iterable[Json]:
    resource = kind.resource
    entry: Json = {
        "name": resource.plural,
        "singularName": kind.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name in kind.subresources:
        group_name, version, kind_name = _SUBRESOURCE_KINDS.get(name, ("", "", resource.kind))
        part: Json = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
        }
        if version:
            part |= {"group": group_name, "version": version}
        yield part | {"kind": kind_name, "verbs": list(_SUBRESOURCE_VERBS.get(name, ("get",)))}


def aggregated(registry: Registry, *, core: bool) -> Json:
    """APIGroupDiscoveryList (`apidiscovery.k8s.io/v2`) of the core group, or of all other groups."""
    names = [name for name in registry.groups() if bool(name) != core]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [_group_discovery(registry, name) for name in names],
    }


def _group_discovery(registry: Registry, name: str) -> Json:
    versions = [
        {
            "version": version,
            "resources": [
                _resource_discovery(kind)
                for kind in registry
                if (kind.resource.group, kind.resource.version) == (name, version)
            ],
            "freshness": "Current",
        }
        for version in versions_by_priority(registry, name)
    ]
    return {"metadata": {"name": name} if name else {}, "versions": versions}


def _resource_discovery(kind: Kind) -> Json:
    resource = kind.resource
    entry: Json = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [_subresource_discovery(kind, name) for name in kind.subresources]
    return entry


def _subresource_discovery(kind: Kind, name: str) -> Json:
    resource = kind.resource
    own = (resource.group, resource.version, resource.kind)
    group_name, version, kind_name = _SUBRESOURCE_KINDS.get(name, own)
    return {
        "subresource": name,
        "responseKind": {"group": group_name, "version": version, "kind": kind_name},
        "verbs": list(_SUBRESOURCE_VERBS.get(name, ("get",))),
    }
