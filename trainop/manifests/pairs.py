"""Which components fit which overlays: what kustomize accepts, computed from the files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence

import yaml

from trainop.runtime import Json

YES, INCLUDED, NO = "yes", "included", "no"
CRDS = "crds"
_CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}

Tree = Mapping[str, Sequence[Json]]
"""Path below the manifests -> the objects in that file."""
Id = tuple[str, str, str]
"""API version, kind and name."""


def overlays(tree: Tree) -> list[str]:
    """Those that components can be added to: `crds` and the names of the others, sorted."""
    found = (path.split("/")[1] for path in tree if path.startswith("overlays/"))
    return [CRDS, *sorted(set(found))]


def component_folders(tree: Tree) -> list[str]:
    """The folders of all components, sorted."""
    return sorted(posixpath.dirname(path) for path, found in tree.items() if found[0].get("kind") == "Component")


def pairs(tree: Tree) -> dict[str, dict[str, str]]:
    """Folder of a component -> overlay -> `YES`, `INCLUDED`, `NO`, or the folder of the component that it needs too."""
    return {
        each: {overlay: _fit(tree, each, overlay) for overlay in overlays(tree)} for each in component_folders(tree)
    }


def _fit(tree: Tree, component: str, overlay: str) -> str:
    there = _objects(tree, CRDS if overlay == CRDS else f"overlays/{overlay}")
    if _fits(tree, component, there):
        return YES
    if (own := _objects(tree, component)) and own <= there:
        return INCLUDED
    for other in component_folders(tree):
        both = _objects(tree, other) | there
        if _fits(tree, other, there) and _fits(tree, component, both):
            return other
    return NO


def _fits(tree: Tree, component: str, there: set[Id]) -> bool:
    """Not if an object that it patches is missing, or if it adds one that is there. kustomize accepts more: objects of
    the cluster in an overlay that has none, and objects of a namespace beside the CRDs, which have none."""
    own = _objects(tree, component)
    fits_scope = not own or bool(_scopes(own) & _scopes(there))
    return fits_scope and _needed(tree, component) <= there | own and not own & there


def _scopes(found: set[Id]) -> set[bool]:
    """Whether there are objects of the cluster, and whether there are objects of a namespace."""
    return {kind in _CLUSTER_SCOPED for _, kind, _ in found}


def _needed(tree: Tree, component: str) -> set[Id]:
    """The objects that patches without a target name: kustomize fails without them."""
    found = {_id(patch) for patch in _patches(tree, component)}
    return found.union(*(_needed(tree, each) for each in _folders(tree, component, "components")))


def _patches(tree: Tree, folder: str) -> Iterator[Json]:
    for each in tree[f"{folder}/kustomization.yaml"][0].get("patches", ()):
        if "target" not in each:
            yield yaml.safe_load(each["patch"])


def _folders(tree: Tree, folder: str, *fields: str) -> Iterator[str]:
    """The kustomizations that this one includes."""
    kustomization = tree[f"{folder}/kustomization.yaml"][0]
    for name in (name for field in fields for name in kustomization.get(field, ())):
        path = posixpath.normpath(f"{folder}/{name}")
        if f"{path}/kustomization.yaml" in tree:
            yield path


def _objects(tree: Tree, folder: str) -> set[Id]:
    """The objects that a kustomization builds."""
    kustomization = tree[f"{folder}/kustomization.yaml"][0]
    files = (tree.get(posixpath.normpath(f"{folder}/{name}"), ()) for name in kustomization.get("resources", ()))
    found = _ids(each for file in files for each in file)
    for path in _folders(tree, folder, "resources", "components"):
        found |= _objects(tree, path)
    return found - _ids(patch for patch in _patches(tree, folder) if patch.get("$patch") == "delete")


def _ids(found: Iterable[Json]) -> set[Id]:
    return {_id(each) for each in found}


def _id(found: Json) -> Id:
    return found["apiVersion"], found["kind"], found["metadata"]["name"]
