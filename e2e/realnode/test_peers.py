"""The end-to-end tests of other operators, against ours."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from e2e.peers import build_mpi_tests
from e2e.realnode.cluster import NAMESPACE, OPERATOR, RealCluster
from e2e.realnode.derived import mpi_pi
from e2e.realnode.images import ROOT
from e2e.realnode.proof import Proof

SECONDS = 1800.0
LEFT_OUT = {
    "with Intel Implementation": "Intel MPI is in no Debian package",
    "with scheduler-plugins": "installs charts with helm; `make test-schedulers` runs coscheduling",
    "with volcano-scheduler": "downloads a release of Volcano; `make test-schedulers` runs Volcano",
}
"""Contexts of the suite that are not run, and why."""

RACING = "should not create pods when suspended"
"""A test that updates the job as it has created it: it fails if an operator has written the status in between."""
ATTEMPTS = 50
"""For the test that races; an attempt that fails takes 0.1 s."""
TESTS = 9
"""All others."""

DEPLOYMENT = ("--namespace=mpi-operator", "deployment/mpi-operator")


@pytest.fixture
def mpi_operator(cluster: RealCluster) -> Iterator[None]:
    """The overlay `mpi-operator` instead of the operator for all kinds, with the names that the suite expects."""
    scale = ("scale", f"--namespace={NAMESPACE}", OPERATOR)
    cluster.kubectl(*scale, "--replicas=0")
    try:
        cluster.kubectl(
            "apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests/overlays/mpi-operator")
        )
        cluster.kubectl("rollout", "status", *DEPLOYMENT, "--timeout=300s")
        yield
    finally:
        cluster.kubectl("scale", *DEPLOYMENT, "--replicas=0")
        cluster.kubectl(*scale, "--replicas=1")
        cluster.kubectl("rollout", "status", f"--namespace={NAMESPACE}", OPERATOR, "--timeout=300s")


@pytest.mark.images("openmpi", "mpich")
@pytest.mark.usefixtures("mpi_operator")
def test_suite_of_mpi_operator(proof: Proof) -> None:
    """mpi-operator v0.8.0: its own end-to-end tests, with Open MPI and MPICH"""
    for implementation in ("openmpi", "mpich"):
        proof.cluster.import_image(mpi_pi(implementation))
    proof.framework("mpi-operator v0.8.0 test/e2e")
    for context, why in LEFT_OUT.items():
        proof.expect(context, f"left out: {why}")
    others = run_suite(proof, TESTS, f"-ginkgo.skip={'|'.join((*LEFT_OUT, RACING))}")
    proof.expect("all other tests pass", others)
    racing = run_suite(
        proof, 1, f"-ginkgo.focus={RACING}", f"-ginkgo.skip={'|'.join(LEFT_OUT)}", f"-ginkgo.flakeAttempts={ATTEMPTS}"
    )
    proof.expect(f"“{RACING}” passes once in {ATTEMPTS} attempts", racing)


def run_suite(proof: Proof, tests: int, *chosen: str) -> str:
    """Runs tests of the suite, all of which have to pass. Returns its last line."""
    variables = ("env", "USE_EXISTING_CLUSTER=true", "USE_EXISTING_OPERATOR=true")
    flags = ("-ginkgo.v", "-ginkgo.noColor", "-ginkgo.seed=1")
    done = subprocess.run(
        [*proof.cluster.node.inside(), *variables, str(build_mpi_tests()), *flags, *chosen],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    ran = re.search(r"(\d+) Passed \| (\d+) Failed.*", done.stdout)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert ran, done.stdout[-5000:]
    assert int(ran[1]) == tests, ran[0]
    return ran[0]
