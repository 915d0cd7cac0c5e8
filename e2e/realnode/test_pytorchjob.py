"""PyTorchJob: torch.distributed and torchrun in containers, configured by nothing but what the operator injects."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest

from e2e.realnode.proof import Proof

pytestmark = pytest.mark.images("torch")
RANKS = 4


def test_data_parallel_training(proof: Proof) -> None:
    """DistributedDataParallel over gloo: one master and three workers end with equal weights"""
    proof.apply("examples/pytorch/ddp.yaml", image="torch")
    proof.wait_for("pytorchjob/ddp", "Running")
    proof.wait_for("pytorchjob/ddp", "Succeeded")
    logs = {pod["metadata"]["name"]: proof.logs(pod["metadata"]["name"]) for pod in proof.pods("ddp")}
    ranks, ends = set(), set()
    for log in logs.values():
        (said,) = re.findall(r"rank (\d+) of (\d+), PyTorch (\S+)", log)
        ranks.add((int(said[0]), int(said[1])))
        proof.framework(f"PyTorch {said[2]}")
        assert f"ranks {list(range(RANKS))}, sum {sum(range(RANKS))}" in log
        ends |= set(re.findall("done: weights (.+)", log))
    assert ranks == {(rank, RANKS) for rank in range(RANKS)}
    assert len(ends) == 1, ends
    losses = [float(loss) for loss in re.findall(r"step +\d+ loss ([\d.]+)", logs["ddp-master-0"])]
    assert losses[-1] < losses[0] / 10, losses
    assert all(pod["status"]["containerStatuses"][0]["restartCount"] == 0 for pod in proof.pods("ddp"))
    proof.expect("ranks 0 to 3 of 4, rank sum 6, equal weights on all", f"{sorted(ranks)}, weights {ends.pop()}")


def test_elastic_training(proof: Proof) -> None:
    """torchrun: training goes on after a lost process and a lost pod, with fewer workers and with more"""
    proof.apply("examples/pytorch/elastic.yaml", image="torch", replace={"--steps=100": "--steps=100000"})
    job = "pytorchjob/elastic"
    proof.wait_for(job, "Running")
    step = reach(proof, 3, after=0)
    version = proof.wait_for_log("elastic-worker-0", r"PyTorch (\S+)")[1]
    proof.framework(f"PyTorch {version}, torchrun, c10d")

    (process,) = proof.exec("elastic-worker-1", "pgrep", "--full", "--", "-u -m examples.pytorch.elastic").split()
    proof.exec("elastic-worker-1", "kill", "-9", process)
    step = reach(proof, 3, after=step)
    proof.expect("a killed process is started again by torchrun", f"three ranks go on at step {step}")

    old = proof.pod("elastic-worker-2")["metadata"]["uid"]
    proof.kubectl("delete", "pod", "elastic-worker-2", "--grace-period=1")
    proof.wait_until(lambda: proof.pod("elastic-worker-2")["metadata"]["uid"] != old, "a new pod elastic-worker-2")
    step = reach(proof, 3, after=step)
    proof.expect("a deleted pod is made anew and rejoins", f"three ranks go on at step {step}")

    for replicas in (2, 4):
        scale(proof, replicas)
        proof.wait_until(partial(has_workers, proof, replicas), f"{replicas} running workers")
        step = reach(proof, replicas, after=step)
        proof.expect(f"scaled to {replicas} by kubectl patch", f"{replicas} ranks go on at step {step}")

    proof.exec("elastic-worker-0", "touch", "/checkpoints/stop")
    proof.wait_for(job, "Succeeded")
    assert "done at step" in proof.logs("elastic-worker-0")


def reach(proof: Proof, world: int, after: int) -> int:
    """Waits until worker 0 has started again, from a step not before `after`, with this many ranks, and has made ten
    steps. Returns the last of them."""

    def found() -> int:
        *_, last = re.split(r"^starting at ", proof.logs("elastic-worker-0"), flags=re.MULTILINE)
        begun = re.match(r"step (\d+) with (\d+) ranks", last)
        steps = [int(step) for step in re.findall(r"^step +(\d+) loss", last, re.MULTILINE)]
        if not begun or int(begun[1]) < after or int(begun[2]) != world or not steps or steps[-1] < after + 10:
            return 0
        return steps[-1]

    return int(proof.wait_until(found, f"{world} ranks train from step {after} on"))


def scale(proof: Proof, replicas: int) -> None:
    patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas}}}}
    proof.kubectl("patch", "pytorchjob/elastic", "--type=merge", f"--patch={json.dumps(patch)}")


def has_workers(proof: Proof, count: int) -> bool:
    return [pod["status"]["phase"] for pod in proof.pods("elastic")] == ["Running"] * count


def test_autoscaler_of_an_elastic_job(proof: Proof) -> None:
    """The autoscaler of an elastic job is upstream's: limits, metrics and target"""
    proof.apply("examples/pytorch/elastic.yaml", image="torch", replace={"--steps=100": "--steps=20"})
    scaler = proof.wait_until(lambda: proof.get("horizontalpodautoscaler/elastic"), "the autoscaler exists")
    spec = scaler["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "elastic"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert [metric["resource"]["name"] for metric in spec["metrics"]] == ["cpu"]
    assert json.loads(proof.kubectl("get", "--raw", scale_path(proof)))["spec"]["replicas"] == 3
    proof.wait_for("pytorchjob/elastic", "Succeeded")
    proof.expect("HorizontalPodAutoscaler elastic, 1 to 4 replicas of PyTorchJob elastic", "as wanted")
    proof.remark("There is no metrics-server here: the autoscaler does not act.")


def scale_path(proof: Proof) -> str:
    return f"/apis/kubeflow.org/v1/namespaces/{proof.namespace}/pytorchjobs/elastic/scale"
