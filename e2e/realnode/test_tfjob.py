"""TFJob: tf.distribute in containers, configured by nothing but TF_CONFIG."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.realnode.proof import Proof
from e2e.realnode.training import check_loss, check_ranks, check_weights, logs_of

pytestmark = pytest.mark.images("tensorflow")


def test_mirrored_training(proof: Proof) -> None:
    """MultiWorkerMirroredStrategy: two workers with equal weights"""
    proof.apply("examples/tensorflow/multiworker.yaml", image="tensorflow")
    proof.wait_for("tfjob/multiworker", "Running")
    proof.wait_for("tfjob/multiworker", "Succeeded")
    logs = logs_of(proof, "multiworker")
    check_ranks(proof, logs, r"worker (\d+) of (\d+), (TensorFlow \S+)", 2)
    assert all("sum of the workers 1" in log for log in logs.values()), logs
    check_loss(proof, logs["multiworker-worker-0"])
    check_weights(proof, logs, 2)


def test_training_with_parameter_servers(proof: Proof, tmp_path: Path) -> None:
    """ParameterServerStrategy: a chief, two workers, two servers and an evaluator"""
    job = "tfjob/parameter-servers"
    proof.apply(
        "examples/tensorflow/parameter_servers.yaml",
        image="tensorflow",
        replace={"/tmp/trainop-parameter-servers": str(tmp_path / "checkpoints")},
    )
    proof.wait_for(job, "Running")
    tasks = {
        f"{role}-{index}" for role, count in {"ps": 2, "worker": 2, "evaluator": 1}.items() for index in range(count)
    }
    for task in sorted(tasks):
        match = proof.wait_for_log(f"parameter-servers-{task}", rf"^{task.replace('-', ' ')}, (TensorFlow \S+)")
        proof.framework(match[1])
    evaluated = proof.wait_for_log("parameter-servers-evaluator-0", r"evaluation of step 60: ([\d.]+)")
    proof.wait_for(job, "Succeeded")
    log = proof.logs("parameter-servers-chief-0")
    assert "2 workers, weights on /job:ps/task:0 /job:ps/task:1" in log
    check_loss(proof, log)
    assert re.search("done: weights", log)
    assert float(evaluated[1]) < 1
    proof.expect("the evaluator sees the last weights", f"its loss is {evaluated[1]}")
    proof.wait_until(lambda: len(proof.pods("parameter-servers")) == 1, "only the chief's pod remains")
    proof.expect("servers, workers and the evaluator are deleted at the end", "only the chief's pod remains")
