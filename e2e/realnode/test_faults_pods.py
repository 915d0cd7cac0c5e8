"""Pods that somebody takes away: deletion, eviction, drain, preemption, a node that does not answer."""

from __future__ import annotations

import re
import signal

import pytest

from e2e.realnode import small_programs
from e2e.realnode.cluster import PATIENCE
from e2e.realnode.faults import NODE, Restarts, Scene, SmallJob, disruption, ended
from tests.upstream import Upstream

pytestmark = pytest.mark.images("base")


def test_a_deleted_pod(scene: Scene) -> None:
    """kubectl delete pod, policy OnFailure, backoffLimit 0."""
    job = SmallJob("JAXJob", "OnFailure", workers=2, run_policy={"backoffLimit": 0})
    before = scene.start(job)
    scene.delete_pod("job-worker-1")
    scene.wait_until_replaced(job, 1, before)
    scene.finish(job)
    assert scene.uids(job)[0] == before[0]
    scene.wait_until_placed(job, [1, 2])
    restarting = Upstream("JAXJob job is restarting because 1 Worker replica(s) failed.")
    scene.wait_for_events(job, "JAXJobRestarting", [restarting])
    assert scene.restarts(job) == Restarts(disruptions=1)
    scene.wait_for_counters(job, {"created": 1, "restarted": 1, "disruptions": 1, "successful": 1})
    scene.proof.expect(
        "It is replaced. That is a disruption, and does not count towards backoffLimit.",
        "one new pod, one disruption, no failure; the job succeeded",
    )


def test_a_deleted_pod_that_may_not_restart(scene: Scene) -> None:
    """kubectl delete pod, policy Never."""
    job = SmallJob("TFJob", "Never", workers=2)
    before = scene.start(job)
    scene.delete_pod("job-worker-1")
    scene.proof.wait_for(job.resource, "Failed")
    message = scene.message(job, "Failed")
    assert message == Upstream(f"TFJob {scene.proof.namespace}/job has failed because 1 Worker replica(s) failed.")
    scene.proof.wait_until(lambda: scene.uids(job) == [before[0], ""], "job-worker-1 is gone")
    scene.wait_until_placed(job, [1, 1])
    scene.wait_for_counters(job, {"created": 1, "failed": 1})
    scene.proof.expect("The job fails, and there is no new pod.", message)


def test_an_evicted_pod(scene: Scene) -> None:
    """Eviction by the API, policy ExitCode, backoffLimit 0; on SIGTERM the program ends with the permanent code 1."""
    program = small_programs.EXITS_WITH_1_ON_SIGTERM
    job = SmallJob("TFJob", "ExitCode", workers=2, program=program, run_policy={"backoffLimit": 0})
    before = scene.start(job)
    scene.hold("job-worker-1", on=True)
    try:
        scene.evict("job-worker-1")
        evicted = scene.proof.wait_until(lambda: ended(scene.proof.pod("job-worker-1")), "its program ends")
        assert evicted["exitCode"] == 1
        assert disruption(scene.proof.pod("job-worker-1")) == "EvictionByEvictionAPI"
        scene.proof.wait_for(job.resource, "Restarting")
    finally:
        scene.hold("job-worker-1", on=False)
    scene.wait_until_replaced(job, 1, before)
    scene.finish(job)
    assert scene.uids(job)[0] == before[0]
    assert scene.restarts(job) == Restarts(disruptions=1)
    scene.wait_for_counters(job, {"created": 1, "restarted": 1, "disruptions": 1, "successful": 1})
    scene.proof.expect(
        "It is replaced whatever its exit code, since it was told to end; a disruption, not a failure.",
        "exit code 1 with DisruptionTarget EvictionByEvictionAPI; one new pod, the job succeeded",
    )


def test_a_drained_node(scene: Scene) -> None:
    """kubectl drain, policy OnFailure, backoffLimit 0; later kubectl uncordon."""
    job = SmallJob("JAXJob", "OnFailure", workers=2, run_policy={"backoffLimit": 0})
    before = scene.start(job)
    try:
        selector = f"--pod-selector=training.kubeflow.org/job-name={job.name}"
        drained = scene.cluster.kubectl("drain", NODE, selector, f"--timeout={PATIENCE:.0f}s")
        assert len(re.findall("evicted", drained)) == 2
        (why, *_) = scene.proof.wait_until(lambda: scene.events(job, "Unschedulable"), "the job says why it waits")
        scene.wait_for_conditions(job, ["Restarting=True JAXJobRestarting"])
        scene.proof.wait_until(lambda: not set(scene.uids(job)) & {*before, ""}, "both pods are replaced")
    finally:
        scene.cluster.kubectl("uncordon", NODE)
    scene.finish(job)
    scene.wait_until_placed(job, [2, 2])
    assert scene.restarts(job) == Restarts(disruptions=2)
    scene.wait_for_counters(job, {"created": 1, "restarted": 2, "disruptions": 2, "successful": 1})
    scene.proof.expect("Its pods are replaced, and the job says why the new ones wait.", why)
    scene.proof.expect(
        "Once the node may be used again the job goes on; backoffLimit is not touched.",
        "two disruptions, no failure; the job succeeded",
    )


def test_a_preempted_pod(scene: Scene) -> None:
    """A job of a higher priority needs the place of a pod, policy ExitCode, backoffLimit 0."""
    priority = f"high-{scene.proof.namespace}"
    scene.cluster.kubectl("create", "priorityclass", priority, "--value=1000")
    try:
        half = {"resources": {"requests": {"cpu": _most_of_the_node(scene)}}}
        low = SmallJob("TFJob", "ExitCode", name="low", container=half, run_policy={"backoffLimit": 0})
        high = SmallJob("JAXJob", "Never", name="high", container=half, pod={"priorityClassName": priority})
        before = scene.start(low)
        scene.start(high)
        (why, *_) = scene.proof.wait_until(lambda: scene.events(low, "Unschedulable"), "the job says why it waits")
        scene.wait_for_conditions(low, ["Restarting=True TFJobRestarting"])
        scene.finish(high)
        scene.finish(low)
    finally:
        scene.cluster.kubectl("delete", "priorityclass", priority)
    assert scene.uids(low) != before
    scene.wait_until_placed(low, [2])
    assert scene.proof.events("Preempted")
    assert scene.restarts(low) == Restarts(disruptions=1)
    scene.wait_for_counters(low, {"created": 1, "restarted": 1, "disruptions": 1, "successful": 1})
    scene.proof.expect("The pod is replaced, and the job says why the new one waits.", why)
    scene.proof.expect(
        "It goes on when there is room; the preemption is a disruption, not a failure.",
        "one disruption; both jobs succeeded",
    )


def _most_of_the_node(scene: Scene) -> str:
    """CPUs of which one pod gets that many, and two do not."""
    cpus = int(scene.cluster.get("node", NODE)["status"]["allocatable"]["cpu"])
    return f"{600 * cpus}m"


def test_a_stopped_kubelet(scene: Scene) -> None:
    """The kubelet is stopped until the node's pods are to be evicted, and then goes on. backoffLimit 0."""
    tolerations = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for taint in ("unreachable", "not-ready")
    ]
    pod = {"tolerations": tolerations}
    job = SmallJob("PyTorchJob", "OnFailure", workers=2, pod=pod, run_policy={"backoffLimit": 0})
    never = SmallJob("TFJob", "Never", name="never", pod=pod)
    before = scene.start(job)
    scene.start(never)

    def lost() -> bool:
        scene.renew_standby()
        return not scene.node_is_ready()

    def evicted() -> bool:
        scene.renew_standby()
        return all(disruption(one) == "DeletionByTaintManager" for one in scene.proof.pods())

    scene.add_standby()
    scene.signal_kubelet(signal.SIGSTOP)
    try:
        scene.proof.wait_until(lost, "the node is not ready")
        scene.proof.wait_until(evicted, "the pods are evicted")
        scene.proof.wait_for(job.resource, "Restarting")
        assert scene.uids(job) == before  # their names are free when the kubelet has stopped them
        assert scene.message(never, "Failed") == ""
    finally:
        scene.signal_kubelet(signal.SIGCONT)
        scene.remove_standby()
    scene.proof.wait_until(scene.node_is_ready, "the node is ready")
    scene.finish(job)
    assert not set(scene.uids(job)) & set(before)
    assert scene.restarts(job) == Restarts(disruptions=2)
    scene.wait_for_counters(job, {"created": 1, "restarted": 2, "disruptions": 2, "successful": 1})
    scene.proof.wait_for(never.resource, "Failed")
    scene.wait_until_placed(never, [1])
    scene.wait_for_counters(never, {"created": 1, "failed": 1})
    scene.wait_for_operator()
    scene.proof.expect(
        "Nothing is created twice while the node does not answer; with the node back the pods are replaced.",
        "evicted by their taint (DeletionByTaintManager), two disruptions; the job succeeded",
    )
    scene.proof.expect("A job with policy Never fails when its pod is gone.", scene.message(never, "Failed"))
