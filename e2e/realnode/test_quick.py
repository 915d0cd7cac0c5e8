"""The smallest training on a real node, which CI runs: numpy instead of a framework."""

from __future__ import annotations

import re

from e2e.realnode.proof import Proof


def test_numpy_training(proof: Proof) -> None:
    """Four pods average their gradients over MASTER_ADDR and MASTER_PORT with numpy"""
    proof.apply(
        "examples/pytorch/train.yaml", image="base", replace={"pytorch.train]": "pytorch.train, --backend=numpy]"}
    )
    proof.wait_for("pytorchjob/train", "Succeeded")
    logs = [proof.logs(pod["metadata"]["name"]) for pod in proof.pods("train")]
    ends = {end for log in logs for end in re.findall("done: weights (.+)", log)}
    assert len(logs) == 4
    assert len(ends) == 1, ends
    proof.framework("numpy 1.26.4")
