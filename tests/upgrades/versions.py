"""Three versions of the manifests: the one before, recorded as users have it; the shipped one; and one after it, made
from the shipped one by changes such as releases make."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.kustomize import MANIFESTS
from trainop import __version__

(RECORDED,) = Path(__file__).parent.glob("manifests-*.tar.xz")
"""The version before; RELEASE.md says how it is recorded. That of 0.1.0 is from before the CRDs were an installation of
their own."""
NEXT = "9.9.9"
FIELD = "fieldOfTheNextVersion"
FLAG = "--zap-time-encoding=iso8601"
COMPONENTS = ("mpi-ssh", "mpi-exec", "dijob", "user-roles")


class Version(NamedTuple):
    """A folder as a user has it: `manifests`, and a kustomization of his own with all that jobs need."""

    folder: Path
    tag: str
    """Of the image of the operator."""
    follows: bool = False

    @property
    def manifests(self) -> Path:
        return self.folder / "manifests"


def recorded(folder: Path) -> Version:
    folder.mkdir()
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return _customized(Version(folder, RECORDED.name.removeprefix("manifests-").removesuffix(".tar.xz")))


def shipped(folder: Path) -> Version:
    shutil.copytree(MANIFESTS, folder / "manifests")
    return _customized(Version(folder, __version__))


def following(folder: Path) -> Version:
    """Another image, another flag, another field in all CRDs, and one object less: the PodDisruptionBudget."""
    version = shipped(folder)._replace(tag=NEXT, follows=True)
    for path in version.manifests.rglob("*.yaml"):
        if path.parent.name == "templates":
            continue
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        for change in (_change_image, _change_flags, _change_crd, _change_chart, _remove_budget):
            for document in documents:
                change(path.relative_to(version.manifests).as_posix(), document)
        path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    (version.manifests / "chart" / "templates" / "poddisruptionbudget.yaml").unlink()
    return version


def _change_image(_: str, document: Any) -> None:
    for image in document.get("images", ()):
        image["newTag"] = NEXT


def _change_flags(path: str, document: Any) -> None:
    if path == "base/deployment.yaml":
        document["spec"]["template"]["spec"]["containers"][0]["command"].append(FLAG)
    if path == "chart/values.yaml":
        document["args"] = [FLAG]


def _change_crd(_: str, document: Any) -> None:
    if document.get("kind") == "CustomResourceDefinition":
        for version in document["spec"]["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            spec.setdefault("properties", {})[FIELD] = {"type": "string"}


def _change_chart(path: str, document: Any) -> None:
    if path.endswith("/Chart.yaml"):
        document |= {"version": NEXT, "appVersion": NEXT}


def _remove_budget(path: str, document: Any) -> None:
    if path == "components/high-availability/kustomization.yaml":
        del document["resources"]


def _customized(version: Version) -> Version:
    own = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "kubeflow",
        "resources": ["manifests/overlays/high-availability"],
        "components": [f"manifests/components/{name}" for name in COMPONENTS],
    }
    (version.folder / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    return version


PAIRS: dict[str, tuple[Callable[[Path], Version], Callable[[Path], Version]]] = {
    "from-the-version-before": (recorded, shipped),
    "to-the-version-after": (shipped, following),
}
