"""MXJob: MXNet's KVStore in containers, configured by nothing but what the operator injects."""

from __future__ import annotations

import pytest

from e2e.realnode.proof import Proof
from e2e.realnode.training import check_loss, check_ranks, check_weights, logs_of


@pytest.mark.images("mxnet")
def test_training_with_servers(proof: Proof) -> None:
    """KVStore dist_sync: a scheduler, two servers and two workers"""
    proof.apply("examples/mxnet/kvstore.yaml", image="mxnet")
    proof.wait_for("mxjob/kvstore", "Running")
    proof.wait_for("mxjob/kvstore", "Succeeded")
    logs = logs_of(proof, "kvstore")
    check_ranks(proof, logs, r"worker (\d+) of (\d+), (MXNet \S+)", 2)
    workers = {name: log for name, log in logs.items() if "-worker-" in name}
    assert all("sum of the ranks 1" in log for log in workers.values()), logs
    check_loss(proof, workers["kvstore-worker-0"])
    check_weights(proof, workers, 2)
