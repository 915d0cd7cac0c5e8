"""Upgrades by helm between two different versions, and from a kustomization to a release and back, while jobs of every
kind run. The commands are those of docs/upgrade.md."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.places import binary
from tests.server.process import ROOT
from tests.upgrades.cluster import HOME, Cluster, upgrade_and_return
from tests.upgrades.versions import PAIRS, Version, shipped

PAGE = ROOT / "docs" / "upgrade.md"
VALUES = [
    *("replicas=2", "components.mpiSsh=true", "components.mpiExec=true", "components.dijob=true"),
    "components.userRoles=true",
]
"""What the kustomization of the versions has."""
CRDS = "kubectl apply --server-side --force-conflicts -f manifests/chart/crds"
INSTALL = "helm install training-operator manifests/chart --namespace kubeflow"
UPGRADE = "helm upgrade training-operator manifests/chart --namespace kubeflow"
BACK = "helm rollback training-operator --namespace kubeflow"
ADOPT = f"{INSTALL} --take-ownership"
APPLY = "kubectl apply --server-side --force-conflicts -k"
LABEL = "kubectl label --overwrite -k manifests/overlays/standalone app.kubernetes.io/managed-by=Helm"
ANNOTATE = (
    "kubectl kustomize manifests/overlays/standalone | kubectl annotate --overwrite -f - "
    "meta.helm.sh/release-name=training-operator meta.helm.sh/release-namespace=kubeflow"
)
FORGET = "kubectl --namespace kubeflow delete secret --selector owner=helm,name=training-operator"


def test_the_page_has_these_commands() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").replace("\\\n", "").split())
    commands = (CRDS, INSTALL, UPGRADE, BACK, ADOPT, APPLY, LABEL, ANNOTATE, FORGET)
    assert [command for command in commands if command not in text] == []


def run(cluster: Cluster, version: Version, command: str, *further: str) -> str:
    """What the last program of a pipeline prints; it gets the further arguments."""
    said = ""
    *first, last = (shlex.split(part) for part in command.split(" | "))
    for program, *arguments in (*first, [*last, *further]):
        done = subprocess.run(
            [binary(program), *arguments],
            cwd=version.folder,
            env=cluster.environment,
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        assert "conflict" not in done.stderr
        said = done.stdout
    return said


def settings(*, further: tuple[str, ...] = ()) -> list[str]:
    return [part for value in (*VALUES, *further) for part in ("--set", value)]


@pytest.mark.parametrize("pair", PAIRS)
def test_jobs_do_not_notice_an_upgrade_by_helm_and_its_return(cluster: Cluster, tmp_path: Path, pair: str) -> None:
    before, after = (make(tmp_path / name) for make, name in zip(PAIRS[pair], ("before", "after"), strict=True))

    def install(version: Version) -> None:
        said = run(cluster, version, INSTALL, "--create-namespace", *settings())
        if pair != "from-the-version-before":
            assert "deployment/training-operator" in said, "NOTES.txt says what to wait for"

    def upgrade(version: Version) -> None:
        run(cluster, version, CRDS)
        cluster.check_crds(version)
        run(cluster, version, UPGRADE, "--reset-then-reuse-values")

    def go_back(version: Version) -> None:
        run(cluster, version, BACK)

    def check(version: Version) -> None:
        """The object that the version after does not have is removed, and made again."""
        budgets = cluster.get(f"/apis/policy/v1/namespaces/{HOME}/poddisruptionbudgets")["items"]
        assert len(budgets) == (0 if version.follows else 1)

    upgrade_and_return(cluster, before, after, (install, upgrade, go_back), check)


def test_helm_adopts_a_kustomization_and_gives_it_back(cluster: Cluster, tmp_path: Path) -> None:
    before = after = shipped(tmp_path / "shipped")

    def install(version: Version) -> None:
        cluster.apply(version, *APPLY.split()[1:-1])

    def adopt(version: Version) -> None:
        run(cluster, version, CRDS)
        run(cluster, version, ADOPT, *settings())
        assert cluster.deployment()["metadata"]["annotations"]["meta.helm.sh/release-name"] == "training-operator"
        run(cluster, version, UPGRADE, "--reset-then-reuse-values")

    def give_back(version: Version) -> None:
        cluster.apply(version, *APPLY.split()[1:-1])
        run(cluster, version, FORGET)
        listed = run(cluster, version, "helm list --all --namespace kubeflow --short")
        assert not listed.strip()

    def check(version: Version) -> None:
        done = cluster.kubectl(version, "get", "-k", ".", "-o", "name")
        assert done.returncode == 0, done.stderr

    upgrade_and_return(cluster, before, after, (install, adopt, give_back), check)


def test_an_older_helm_adopts_what_has_its_labels(cluster: Cluster, tmp_path: Path) -> None:
    version = shipped(tmp_path / "shipped")
    standalone = [*APPLY.split()[1:], "manifests/overlays/standalone"]
    assert cluster.kubectl(version, *standalone).returncode == 0
    refused = subprocess.run(
        [binary("helm"), *shlex.split(INSTALL)[1:]],
        cwd=version.folder,
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "invalid ownership metadata" in refused.stderr
    for command in (LABEL, ANNOTATE, INSTALL):
        run(cluster, version, command)
    assert cluster.kubectl(version, *standalone).returncode == 0
    cluster.check_installed(version)
