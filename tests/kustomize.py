"""Builds of the shipped kustomizations, as users combine them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parent.parent / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (MANIFESTS / "components").iterdir())


def build(kubectl: str, folder: Path) -> list[Any]:
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def combine(
    kubectl: str, folder: Path, overlay: str, components: Iterable[str], patches: Sequence[Any] = ()
) -> list[Any]:
    """The objects of an overlay with components and patches, built from a kustomization in the empty `folder`."""
    root = os.path.relpath(MANIFESTS, folder)
    own = {
        "namespace": "kubeflow",
        "resources": [f"{root}/overlays/{overlay}"],
        "components": [f"{root}/components/{name}" for name in components],
        "patches": list(patches),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    return build(kubectl, folder)


def combinations() -> list[tuple[str, list[str]]]:
    """Every overlay alone and with all components, and the first one with each component. Two components are
    independent unless both patch one object, and high-availability and di-server only add to the Deployment."""
    found = [(overlay, chosen) for overlay in OVERLAYS for chosen in ([], fitting(overlay))]
    return [*found, *(("standalone", [name]) for name in COMPONENTS)]


def fitting(overlay: str) -> list[str]:
    """The components that can be added to an overlay: not those that it includes, or whose objects it removes."""
    if overlay == "di-system":
        return ["di-network-policy", "di-server-nodeport"]
    unfit = {
        "high-availability": ["high-availability"],
        "namespaced": ["required-webhooks"],
        "mpi-operator": [name for name in COMPONENTS if name != "user-roles"],  # the others are training-operator's
    }
    return [name for name in COMPONENTS if name not in unfit.get(overlay, [])]
