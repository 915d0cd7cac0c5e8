"""Builds of the shipped kustomizations, as users combine them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainop.manifests.pairs import CRDS, INCLUDED, NO, YES, pairs
from trainop.manifests.tree import tree

MANIFESTS = Path(__file__).parent.parent / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
RBAC_KINDS = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
PAIRS = pairs(tree())
"""Folder of a component -> overlay -> whether it fits, as in manifests/README.md."""


def build(kubectl: str, folder: Path) -> list[Any]:
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def combine(
    kubectl: str,
    folder: Path,
    overlay: str,
    components: Iterable[str] = (),
    patches: Sequence[Any] = (),
    namespace: str = "kubeflow",
) -> list[Any]:
    """The objects of an overlay with components and patches, built from a kustomization in the empty `folder`."""
    write(folder, overlay, components, patches, namespace)
    return build(kubectl, folder)


def rights_of(objects: Iterable[Any], account: str) -> list[Any]:
    """The service account, the bindings that name it and the roles that they grant."""
    found = [each for each in objects if each["kind"] in RBAC_KINDS]
    bindings = [each for each in found if any(one["name"] == account for one in each.get("subjects", ()))]
    roles = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} | {("ServiceAccount", account)}
    return [*(each for each in found if (each["kind"], each["metadata"]["name"]) in roles), *bindings]


def write(
    folder: Path,
    overlay: str,
    components: Iterable[str],
    patches: Sequence[Any] = (),
    namespace: str = "kubeflow",
) -> None:
    """Writes a kustomization of a user's own to the empty `folder`, which takes the shipped files as they are."""
    root = os.path.relpath(MANIFESTS, folder)
    own = {
        "namespace": namespace,
        "resources": [f"{root}/{overlay if overlay == CRDS else f'overlays/{overlay}'}"],
        "components": [f"{root}/{name if '/' in name else f'components/{name}'}" for name in components],
        "patches": list(patches),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")


def combinations() -> list[tuple[str, list[str]]]:
    """Every overlay alone, with each component that fits it, and with all of them."""
    alone = [(overlay, list[str]()) for overlay in OVERLAYS]
    each = [(overlay, needed_for(overlay, name)) for overlay in OVERLAYS for name in fitting(overlay)]
    return [*alone, *each, *((overlay, fitting(overlay)) for overlay in OVERLAYS)]


def fitting(overlay: str) -> list[str]:
    """The folders of the components that can be added to an overlay together, each after those that it needs."""
    fits = {name: fit[overlay] for name, fit in PAIRS.items() if fit[overlay] not in {NO, INCLUDED}}
    if "components/di-network-policy" in fits:  # it includes this one
        del fits["components/di-server-network-policy"]
    return sorted(fits, key=lambda name: fits[name] != YES)


def needed_for(overlay: str, component: str) -> list[str]:
    """The component, after the one that it needs."""
    fit = PAIRS[component][overlay]
    return [component] if fit == YES else [fit, component]
