"""The operator and the control plane fail while jobs run: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import pytest

from e2e.realnode.cluster import NAMESPACE
from e2e.realnode.faults import Restarts, Scene, SmallJob
from tests.upstream import Upstream

pytestmark = pytest.mark.images("base")
LEASE = "lease/1ca428e5.training-operator.kubeflow.org"


def test_the_operator_is_deleted_while_it_creates_pods(scene: Scene) -> None:
    """The operator's pod is deleted while it creates the pods of a job."""
    job = SmallJob("JAXJob", "ExitCode", workers=16, run_policy={"backoffLimit": 0})
    scene.proof.apply(job.text())
    scene.proof.wait_until(lambda: scene.found(job), "the first pod is there", every=0)
    scene.delete_operator()
    scene.wait_until_all_run(job)
    scene.finish(job)
    scene.wait_for_operator()
    scene.wait_until_placed(job, [1] * 16)
    assert scene.restarts(job) == Restarts()
    assert len(scene.found(job)) == 16
    scene.proof.expect("The next one creates those that are missing, and none twice.", "16 pods, each bound once")


def test_the_operator_is_deleted_while_it_restarts_a_pod(scene: Scene) -> None:
    """The operator's pod is deleted just as a worker is killed; policy ExitCode, backoffLimit 2, two rounds."""
    job = SmallJob("TFJob", "ExitCode", workers=3, run_policy={"backoffLimit": 2})
    before = scene.start(job)
    for index in (1, 2):
        scene.kill(scene.proof.pod(f"job-worker-{index}"))
        scene.delete_operator()
        scene.wait_until_replaced(job, index, before)
        scene.wait_until_all_run(job)
    scene.finish(job)
    scene.wait_for_operator()
    scene.wait_until_placed(job, [1, 2, 2])
    assert scene.restarts(job) == Restarts(failures=2)
    scene.proof.expect(
        "Every failure leads to one restart and is counted once, so that backoffLimit 2 is not exceeded.",
        "two failures in the restart history, two new pods; the job succeeded",
    )


def test_workers_die_while_there_is_no_operator(scene: Scene) -> None:
    """Without an operator one worker is killed and another one deleted; policy ExitCode, backoffLimit 1."""
    job = SmallJob("TFJob", "ExitCode", workers=3, run_policy={"backoffLimit": 1})
    before = scene.start(job)
    scene.scale_operator(0)
    try:
        scene.kill(scene.proof.pod("job-worker-1"))
        scene.delete_pod("job-worker-2")
        scene.proof.wait_until(lambda: scene.found(job)["job-worker-1"]["status"]["phase"] == "Failed", "it has failed")
        scene.proof.wait_until(lambda: "job-worker-2" not in scene.found(job), "the other one is gone")
        assert scene.restarts(job) == Restarts()
    finally:
        scene.scale_operator(1)
    scene.finish(job)
    assert scene.uids(job)[0] == before[0]
    scene.wait_until_placed(job, [1, 2, 2])
    assert scene.restarts(job) == Restarts(failures=1)
    scene.wait_for_counters(job, {"restarted": 1, "successful": 1})
    scene.proof.expect(
        "Started again, the operator restarts the one that failed, counts it once, and replaces the one that is gone.",
        "one failure, two new pods; the job succeeded",
    )


def test_the_leader_is_killed(scene: Scene) -> None:
    """Of two operators the leader is killed (kill -9), and then a worker; policy ExitCode, backoffLimit 1."""

    def holder() -> str:
        lease = scene.cluster.get(LEASE, namespace=NAMESPACE)
        return str(lease["spec"].get("holderIdentity") or "")

    job = SmallJob("TFJob", "ExitCode", workers=2, run_policy={"backoffLimit": 1})
    scene.cluster.install("high-availability")
    try:
        scene.proof.wait_until(holder, "there is a leader")
        scene.start(job)
        first = holder()
        (leader,) = [pod for pod in scene.operators() if first.startswith(pod["metadata"]["name"])]
        scene.kill(leader)
        scene.kill(scene.proof.pod("job-worker-1"))
        second = scene.proof.wait_until(lambda: (now := holder()) != first and now, "there is another leader")
        scene.wait_until_placed(job, [1, 2])
        scene.finish(job)
        assert scene.placed(job) == [1, 2]
        assert scene.restarts(job) == Restarts(failures=1)
        scene.wait_for_events(
            job, "TFJobRestarting", [Upstream("job job is restarting because Worker replica(s) failed.")]
        )
    finally:
        scene.cluster.install()
        scene.cluster.kubectl(
            f"--namespace={NAMESPACE}", "delete", "poddisruptionbudget/training-operator", "--ignore-not-found"
        )
    scene.proof.expect(
        "The other replica takes the lease and restarts the worker, once.",
        f"leader {first}, then {second}; one failure, one new pod; the job succeeded",
    )


def test_the_api_server_is_restarted_while_a_job_starts(scene: Scene) -> None:
    """kube-apiserver is restarted while the operator creates the pods of a job, backoffLimit 0."""
    job = SmallJob("PyTorchJob", "OnFailure", workers=8, run_policy={"backoffLimit": 0})
    scene.set_renew_deadline(120)  # on a busy machine the API server needs more than the usual 10 s
    try:
        scene.proof.apply(job.text())
        scene.proof.wait_until(lambda: scene.found(job), "the first pod is there", every=0)
        scene.restart_api_server()
        scene.wait_until_all_run(job)
        (operator,) = scene.operators()
        assert operator["status"]["containerStatuses"][0]["restartCount"] == 0
        scene.finish(job)
        assert len(scene.found(job)) == 8
        assert max(scene.placed(job)) == 1  # the scheduler's events may be lost with the API server, but never doubled
        assert scene.restarts(job) == Restarts()
        scene.wait_for_counters(job, {"created": 1, "successful": 1})
    finally:
        scene.cluster.install()
    scene.proof.expect(
        "The operator waits for it and goes on: all pods once, no restart of the operator.",
        "8 pods; the job succeeded",
    )
