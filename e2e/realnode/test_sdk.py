"""The Python SDK of training-operator: the table of `make test-sdk`, on a real node."""

from __future__ import annotations

import subprocess

import pytest

from e2e.realnode.derived import delivery
from e2e.realnode.proof import Proof
from e2e.sdk import NEWEST, command, environment

SECONDS = 1800.0


@pytest.mark.images("torch")
@pytest.mark.parametrize(("version", "kinds"), [(NEWEST, ()), ("1.8.1", ("MXJob",)), ("1.7.0", ("MXJob",))])
def test_every_call(proof: Proof, version: str, kinds: tuple[str, ...]) -> None:
    """Every call of the SDK does what its documentation promises, for every kind of job"""
    proof.cluster.import_image(delivery())
    proof.cluster.install("progress")  # for jobs that stall
    arguments = [
        f"--namespace={proof.namespace}",
        f"--image={proof.cluster.load('base')}",
        f"--torch-image={proof.cluster.load('torch')}",
        "--webhook",
        *(f"--kind={kind}" for kind in kinds),
    ]
    program = command(environment(version), proof.cluster.node.kubeconfig, *arguments)
    try:
        done = subprocess.run(
            [*proof.cluster.node.inside(), *program], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    finally:
        proof.cluster.install()
    results = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    proof.framework(f"kubeflow-training {version}")
    for promise in dict.fromkeys((call, promise) for _result, _kind, call, promise, *_rest in results):
        found = [one for one in results if (one[2], one[3]) == promise]
        proof.expect(": ".join(promise), ", ".join(f"{one[1]} {one[0]}" for one in found))
    assert done.returncode == 0, done.stdout + done.stderr
    assert results
