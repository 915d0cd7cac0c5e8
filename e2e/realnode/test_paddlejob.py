"""PaddleJob: paddle.distributed.launch in containers, configured by nothing but what the operator injects."""

from __future__ import annotations

import pytest

from e2e.realnode.proof import Proof
from e2e.realnode.training import check_loss, check_ranks, check_weights, logs_of


@pytest.mark.images("paddle")
def test_data_parallel_training(proof: Proof) -> None:
    """paddle.distributed.launch, all_reduce and DataParallel over gloo on two nodes"""
    proof.apply("examples/paddle/data_parallel.yaml", image="paddle")
    proof.wait_for("paddlejob/data-parallel", "Running")
    proof.wait_for("paddlejob/data-parallel", "Succeeded")
    logs = logs_of(proof, "data-parallel")
    check_ranks(proof, logs, r"rank (\d+) of (\d+), (Paddle \S+)", 2)
    assert all("sum of the ranks 1" in log for log in logs.values()), logs
    for log in logs.values():
        check_loss(proof, log)
    check_weights(proof, logs, 2)
