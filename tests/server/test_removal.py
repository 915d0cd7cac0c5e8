"""`kubectl delete -k` of whatever was installed: the CRDs stay, and with them every job of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from tests.conftest import start_control_plane
from tests.kustomize import MANIFESTS, OVERLAYS, fitting, write
from tests.patience import PATIENCE
from tests.server.kubectl import Kubectl
from trainop.programs.schemes import crds

ROOT = Path(__file__).parents[2]
PROMETHEUS = Path(__file__).parent / "prometheus-operator.yaml"
EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*/*.yaml")) if path.parent.name not in {"runtime", "broken"}
]
"""Jobs of every kind."""
ELSEWHERE = "another-team"
"""A namespace in which nothing is installed."""
ESTABLISHED = ("wait", "--for=condition=Established", "crd", "--all", f"--timeout={PATIENCE:.0f}s")


@pytest.fixture(scope="module")
def run() -> Iterator[Kubectl]:
    """A new cluster with the CRDs of this release and of the Prometheus operator, and with jobs of every kind."""
    for plane in start_control_plane("removal", ClusterOptions(), crds=False):
        kubectl = Kubectl(plane)
        kubectl("apply", "--server-side", "-f", PROMETHEUS)
        kubectl("apply", "--server-side", "-k", MANIFESTS / "crds")
        kubectl(*ESTABLISHED)
        kubectl("create", "namespace", ELSEWHERE)
        for path in EXAMPLES:
            kubectl("apply", f"--namespace={ELSEWHERE}", "-f", path)
        yield kubectl


def kept(run: Kubectl) -> dict[str, str]:
    """Kind and name -> UID, of CRDs and jobs that are not being deleted."""
    served = [f"{each['spec']['names']['plural']}.{each['spec']['group']}" for each in crds()]
    found = [*run.list("crd"), *(job for each in served for job in run.list(each, f"--namespace={ELSEWHERE}"))]
    return {
        f"{each['kind']} {each['metadata']['name']}": each["metadata"]["uid"]
        for each in found
        if "deletionTimestamp" not in each["metadata"]
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_deleting_an_overlay_leaves_all_crds_and_jobs(run: Kubectl, tmp_path: Path, overlay: str) -> None:
    before = kept(run)
    kinds = {name.partition(" ")[0] for name in before}
    assert {each["spec"]["names"]["kind"] for each in crds()} - kinds == {"AggregatorConfig"}
    namespace = f"of-{overlay}"
    write(tmp_path, overlay, fitting(overlay), namespace=namespace)
    if overlay in {"kubeflow", "namespaced"}:  # which have no Namespace
        run("create", "namespace", namespace)
    run("apply", "--server-side", "-k", tmp_path)
    # without its controller, a namespace does not finish
    deleted = run("delete", "-k", tmp_path, "--wait=false")
    assert "deployment.apps" in deleted
    assert kept(run) == before
