"""Manifests that Go modules ship, read from the module cache and created with requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from e2e.cluster.api import Api
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import ClusterError

Json: TypeAlias = dict[str, Any]


def read(path: Path) -> Iterator[Json]:
    """The objects of a YAML file."""
    with path.open() as file:
        yield from (document for document in yaml.safe_load_all(file) if document)


def create(api: Api, body: Json) -> Json:
    """Creates an object of any kind whose plural is regular. Raises `ClusterError` if it is refused."""
    group, kind = body["apiVersion"], body["kind"].lower()
    start = f"/apis/{group}" if "/" in group else f"/api/{group}"
    namespace = body["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    path = f"{start}{within}/{_plural(kind)}"
    answer = api("POST", path, body)
    if answer.status != 201:
        raise ClusterError(f"POST {path}: {answer}")
    created: Json = answer.body
    return created


def _plural(kind: str) -> str:
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    return f"{kind}{'es' if kind.endswith('s') else 's'}"


def install_crds(api: Api, *files: Path, conversions: Mapping[str, Json] | None = None) -> None:
    """Creates the CRDs of these files and waits until their resources are served. `conversions`: CRD -> its
    `spec.conversion`."""
    documents = [document for file in files for document in read(file)]
    for document in documents:
        if conversion := (conversions or {}).get(document["metadata"]["name"]):
            document["spec"]["conversion"] = conversion
    for document in documents:
        document.get("status", {}).clear()
        create(api, document)
    paths = [_served_at(document) for document in documents]
    if not wait_until(lambda: all(api("GET", path).status == 200 for path in paths), 60):
        raise ClusterError(f"not served: {', '.join(paths)}")


def _served_at(crd: Json) -> str:
    spec = crd["spec"]
    return f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}?limit=1"
