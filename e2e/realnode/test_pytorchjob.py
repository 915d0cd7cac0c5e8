"""PyTorchJob: torch.distributed and torchrun in containers, configured by nothing but what the operator injects."""

from __future__ import annotations

import pytest

from e2e.realnode.proof import Proof


@pytest.mark.images("torch")
def test_data_parallel_training(proof: Proof) -> None:
    """DistributedDataParallel over gloo: one master and three workers"""
    proof.apply("examples/pytorch/train.yaml", image="torch")
    proof.wait_for("pytorchjob/train", "Succeeded")
