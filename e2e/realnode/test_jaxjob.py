"""JAXJob: jax.distributed in containers, configured by nothing but what the operator injects."""

from __future__ import annotations

import pytest

from e2e.realnode.proof import Proof
from e2e.realnode.training import check_loss, check_ranks, check_weights, logs_of


@pytest.mark.images("jax")
def test_data_parallel_training(proof: Proof) -> None:
    """jax.distributed: psum and a sharded batch over three processes"""
    proof.apply("examples/jax/data_parallel.yaml", image="jax")
    proof.wait_for("jaxjob/data-parallel", "Running")
    proof.wait_for("jaxjob/data-parallel", "Succeeded")
    logs = logs_of(proof, "data-parallel")
    check_ranks(proof, logs, r"process (\d+) of (\d+), (JAX \S+)", 3)
    assert all("psum of the processes 3" in log for log in logs.values()), logs
    check_loss(proof, logs["data-parallel-worker-0"])
    check_weights(proof, logs, 3)
