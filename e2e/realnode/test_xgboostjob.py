"""XGBoostJob: XGBoost's tracker in containers, configured by nothing but what the operator injects."""

from __future__ import annotations

import pytest

from e2e.realnode.proof import Proof
from e2e.realnode.training import check_loss, check_ranks, check_weights, logs_of


@pytest.mark.images("xgboost")
def test_boosting(proof: Proof) -> None:
    """RabitTracker and train: a master and two workers end with the same model"""
    proof.apply("examples/xgboost/train.yaml", image="xgboost")
    proof.wait_for("xgboostjob/train-xgboost", "Running")
    proof.wait_for("xgboostjob/train-xgboost", "Succeeded")
    logs = logs_of(proof, "train-xgboost")
    check_ranks(proof, logs, r"rank (\d+) of (\d+) of the tracker, (XGBoost \S+)", 3)
    check_loss(proof, logs["train-xgboost-master-0"])
    check_weights(proof, logs, 3)
