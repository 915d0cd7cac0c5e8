"""Containers that fail, and the limits of jobs. `test_faults_*.py` are about pods, nodes and the control plane."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest

from e2e.realnode import small_programs
from e2e.realnode.faults import Restarts, Scene, SmallJob, ended
from tests.upstream import Upstream

pytestmark = pytest.mark.images("base")
BACKOFF = Upstream("Job job has failed because it has reached the specified backoff limit")


# A process ends -------------------------------------------------------------------------------------------------------


def test_kill_9_with_policy_on_failure(scene: Scene) -> None:
    """kill -9 of a worker's process, policy OnFailure."""
    job = SmallJob("JAXJob", "OnFailure", workers=2, run_policy={"backoffLimit": 2})
    before = scene.start(job)
    scene.kill(scene.proof.pod("job-worker-1"))

    def restarts() -> list[int]:
        return [pod["status"]["containerStatuses"][0]["restartCount"] for pod in scene.found(job).values()]

    scene.proof.wait_until(lambda: restarts() == [0, 1], "the kubelet restarts the container")
    assert ended(scene.proof.pod("job-worker-1"))["exitCode"] == 137
    scene.finish(job)
    assert scene.uids(job) == before
    assert scene.conditions(job) == [
        "Created=True JAXJobCreated",
        "Running=False JAXJobRunning",
        "Succeeded=True JAXJobSucceeded",
    ]
    assert scene.restarts(job) == Restarts()
    scene.wait_for_counters(job, {"created": 1, "successful": 1})
    scene.proof.expect(
        "The kubelet restarts the container in its pod, and the operator counts nothing.",
        "exit code 137, then the same pod with restartCount 1; the job succeeded",
    )


def test_kill_9_with_policy_exit_code(scene: Scene) -> None:
    """kill -9 of a worker's process, policy ExitCode."""
    job = SmallJob("TFJob", "ExitCode", workers=2, run_policy={"backoffLimit": 1})
    before = scene.start(job)
    scene.kill(scene.proof.pod("job-worker-1"))
    scene.wait_until_replaced(job, 1, before)
    scene.finish(job)
    assert scene.uids(job)[0] == before[0]
    scene.wait_until_placed(job, [1, 2])
    scene.wait_for_events(job, "TFJobRestarting", [Upstream("job job is restarting because Worker replica(s) failed.")])
    exited = f"Pod: {scene.proof.namespace}.job-worker-1 exited with code 137"
    scene.wait_for_events(job, "ExitedWithCode", [exited])
    assert scene.restarts(job) == Restarts(failures=1)
    scene.wait_for_counters(job, {"created": 1, "restarted": 1, "successful": 1})
    scene.proof.expect(
        "137 is a retryable exit code: a new pod, one failure of the one that backoffLimit allows.",
        f"{exited}; one restart, the job succeeded",
    )


def test_kill_9_with_policy_never(scene: Scene) -> None:
    """kill -9 of a worker's process, policy Never."""
    job = SmallJob("TFJob", "Never", workers=2)
    before = scene.start(job)
    scene.kill(scene.proof.pod("job-worker-1"))
    scene.proof.wait_for(job.resource, "Failed")
    message = scene.message(job, "Failed")
    assert message == Upstream(f"TFJob {scene.proof.namespace}/job has failed because 1 Worker replica(s) failed.")
    status = scene.status(job)
    assert "completionTime" in status
    assert status["replicaStatuses"]["Worker"] == {"active": 1, "failed": 1}
    assert scene.uids(job) == before
    scene.wait_for_counters(job, {"created": 1, "failed": 1})
    scene.proof.expect("The job fails at once, and the pod is kept for its log.", message)


def test_a_permanent_exit_code(scene: Scene) -> None:
    """Exit code 1, policy ExitCode."""
    job = SmallJob("TFJob", "ExitCode", program=small_programs.FAILS)
    scene.proof.apply(job.text())
    scene.proof.wait_for(job.resource, "Failed")
    message = scene.message(job, "Failed")
    assert message == Upstream('job "job" is failing because "Worker" replica(s) failed.')
    assert ended(scene.proof.pod("job-worker-0"))["exitCode"] == 1
    scene.wait_until_placed(job, [1])
    scene.wait_for_counters(job, {"created": 1, "failed": 1})
    scene.proof.expect("Codes below 128 are permanent: no restart, and the job fails.", message)


# Limits of the container ----------------------------------------------------------------------------------------------


def test_out_of_memory(scene: Scene) -> None:
    """A worker exceeds its memory limit, policy ExitCode, backoffLimit 1."""
    limits = {"resources": {"limits": {"memory": "96Mi"}}}
    program = small_programs.TAKES_MEMORY
    job = SmallJob("TFJob", "ExitCode", program=program, container=limits, run_policy={"backoffLimit": 1})
    scene.proof.apply(job.text())
    scene.proof.wait_for(job.resource, "Failed")
    end = ended(scene.proof.pod("job-worker-0"))
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)
    assert scene.message(job, "Failed") == BACKOFF
    scene.wait_until_placed(job, [2])
    assert scene.restarts(job) == Restarts(failures=1)
    scene.wait_for_counters(job, {"created": 1, "restarted": 1, "failed": 1})
    scene.proof.expect(
        "The kernel kills it with 137. A new pod is tried as often as backoffLimit allows: once.",
        f"OOMKilled, exit code 137, two pods one after the other; {BACKOFF}",
    )


def test_a_full_empty_dir(scene: Scene) -> None:
    """A worker fills its emptyDir beyond sizeLimit; the annotation infra-restart-limit is 1."""
    job = SmallJob(
        "PyTorchJob",
        "OnFailure",
        program=small_programs.FILLS_THE_VOLUME,
        pod={"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "4Mi"}}]},
        container={"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
        run_policy={"backoffLimit": 0},
        annotations={"trainop.kubeflow.org/infra-restart-limit": "1"},
    )
    scene.proof.apply(job.text())
    scene.proof.wait_for(job.resource, "Failed")
    status = scene.proof.pod("job-worker-0")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    message = scene.message(job, "Failed")
    assert message == Upstream("Job job has failed because it has reached the specified infra restart limit")
    assert "Worker 0 (pod job-worker-0 on node node-0) was evicted from its node (Evicted, exit code 137)" in message
    assert 'Usage of EmptyDir volume "scratch" exceeds the limit "4Mi"' in message
    scene.wait_until_placed(job, [2])
    assert scene.restarts(job) == Restarts(disruptions=1)
    scene.wait_for_counters(job, {"created": 1, "restarted": 1, "disruptions": 2, "failed": 1})
    scene.proof.expect(
        "The kubelet evicts the pod. A new one is made even with backoffLimit 0; the next eviction exceeds the limit.",
        f"evicted twice: {status['message'].strip()} {message}",
    )


def test_an_image_that_does_not_exist(scene: Scene) -> None:
    """An image that does not exist, corrected later; policy Never."""
    job = SmallJob("JAXJob", "Never")
    scene.proof.apply(job.text("localhost/trainop/absent:1"), keep=True)

    def why() -> list[str]:
        found = [one for reason in ("ErrImagePull", "ImagePullBackOff") for one in scene.events(job, reason)]
        return [message for message in found if "localhost/trainop/absent:1" in message]

    (reason, *_) = scene.proof.wait_until(why, "an event of the job names the image")
    assert reason.startswith("Error pod job-worker-0 container jax waiting message: ")
    assert scene.conditions(job) == ["Created=True JAXJobCreated"]
    scene.proof.apply(job.text())
    scene.delete_pod("job-worker-0")
    scene.finish(job)
    assert scene.restarts(job) == Restarts()
    scene.wait_for_counters(job, {"created": 1, "successful": 1})
    scene.proof.expect("The job does not fail, and an event says why it does not run.", reason)
    scene.proof.expect("With the image corrected and the pod deleted it runs; nothing is counted.", "the job succeeded")


def test_a_job_without_its_image_is_deleted(scene: Scene) -> None:
    """A job that waits for its image is deleted."""
    job = SmallJob("JAXJob", "OnFailure", workers=2)
    scene.proof.apply(job.text("localhost/trainop/absent:1"), keep=True)
    scene.proof.wait_until(lambda: "" not in scene.uids(job), "the pods are there")
    scene.proof.kubectl("delete", job.resource)
    scene.proof.wait_until(lambda: scene.is_gone(job), "pods and Services are gone")
    scene.proof.expect("The garbage collector removes its pods and Services.", "nothing is left")


# Limits of the job ----------------------------------------------------------------------------------------------------


def test_backoff_limit(scene: Scene) -> None:
    """A program that always fails, policy OnFailure, backoffLimit 2."""
    job = SmallJob("JAXJob", "OnFailure", program=small_programs.FAILS, run_policy={"backoffLimit": 2})
    scene.proof.apply(job.text())
    scene.proof.wait_for(job.resource, "Failed")
    assert scene.message(job, "Failed") == BACKOFF
    scene.proof.wait_until(lambda: not scene.found(job), "the failing pod is stopped")
    scene.wait_until_placed(job, [1])
    scene.wait_for_counters(job, {"created": 1, "failed": 1})
    scene.proof.expect("Two restarts by the kubelet exceed the limit, and the pod is stopped.", BACKOFF)


def test_active_deadline(scene: Scene) -> None:
    """activeDeadlineSeconds, six seconds ahead, and nothing else happens to the job."""
    job = SmallJob("JAXJob", "OnFailure", workers=2)
    scene.start(job)
    limit = scene.limit(job, "activeDeadlineSeconds", 6, since="startTime")
    status = scene.proof.wait_for(job.resource, "Failed")["status"]
    message = scene.message(job, "Failed")
    assert message == Upstream("Job job has failed because it was active longer than specified deadline")
    assert scene.conditions(job)[-2:] == ["Running=False JAXJobRunning", "Failed=True JAXJobFailed"]
    scene.proof.wait_until(lambda: not scene.found(job), "its pods are stopped")
    begin, end = (datetime.fromisoformat(status[name]) for name in ("startTime", "completionTime"))
    assert (end - begin).total_seconds() >= limit
    scene.wait_for_counters(job, {"created": 1, "failed": 1})
    scene.proof.expect("It fails then, and its pods are stopped.", f"after {(end - begin).seconds} s: {message}")


def test_suspend_and_resume(scene: Scene) -> None:
    """A running job is suspended and resumed, backoffLimit 0."""
    job = SmallJob("JAXJob", "ExitCode", workers=2, run_policy={"backoffLimit": 0})
    before = scene.start(job)
    start = scene.status(job)["startTime"]
    scene.suspend(job, on=True)
    scene.proof.wait_until(lambda: scene.is_gone(job), "pods and Services are gone")
    created = "Created=True JAXJobCreated"
    scene.wait_for_conditions(job, [created, "Running=False JAXJobSuspended", "Suspended=True JAXJobSuspended"])
    scene.proof.wait_until(
        lambda: not scene.status(job)["replicaStatuses"].get("Worker", {}).get("active"), "no replica is active"
    )
    assert scene.status(job)["startTime"] == start
    scene.suspend(job, on=False)
    scene.wait_until_all_run(job)
    scene.wait_for_conditions(job, [created, "Suspended=False JAXJobResumed", "Running=True JAXJobRunning"])
    assert not set(scene.uids(job)) & set(before)
    assert scene.status(job)["startTime"] > start
    scene.finish(job)
    scene.wait_for_events(job, "JAXJobSuspended", ["JAXJob job is suspended."])
    scene.wait_for_events(job, "JAXJobResumed", ["JAXJob job is resumed."])
    assert scene.restarts(job) == Restarts()
    scene.wait_for_counters(job, {"created": 1, "successful": 1})
    scene.proof.expect("No pods and Services while it is suspended; startTime is kept.", "all gone")
    scene.proof.expect("Resumed it gets new pods and a new startTime; nothing is counted.", "the job succeeded")


def test_time_to_live(scene: Scene) -> None:
    """ttlSecondsAfterFinished, five seconds ahead."""
    job = SmallJob("JAXJob", "OnFailure", workers=2, run_policy={"ttlSecondsAfterFinished": 3600})
    scene.start(job)
    scene.finish(job)
    assert len(scene.found(job)) == 2
    scene.limit(job, "ttlSecondsAfterFinished", 5, since="completionTime")
    scene.proof.kubectl("wait", "--for=delete", job.resource, "--timeout=300s")
    scene.proof.wait_until(lambda: scene.is_gone(job), "pods and Services are gone")
    scene.wait_for_events(job, "SuccessfulDeletePod", ["Deleted job: job"])  # upstream's reason for JAXJob
    scene.wait_for_counters(job, {"created": 1, "successful": 1, "deleted": 1})
    scene.proof.expect(
        "The operator deletes the finished job, and the garbage collector its pods and Services.", "nothing is left"
    )


# A checkpoint ---------------------------------------------------------------------------------------------------------


def test_sigterm_with_a_checkpoint(scene: Scene) -> None:
    """A training that saves its state on SIGTERM is deleted, policy ExitCode, backoffLimit 0."""
    folder = scene.cluster.node.data / "checkpoints" / scene.proof.namespace
    job = SmallJob(
        "PyTorchJob",
        "ExitCode",
        program=small_programs.TRAINS,
        pod={"volumes": [{"name": "checkpoint", "hostPath": {"path": f"{folder}", "type": "DirectoryOrCreate"}}]},
        container={"volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}]},
        run_policy={"backoffLimit": 0},
    )
    before = scene.start(job)
    scene.proof.wait_for_log("job-worker-0", "^step 10 ")
    scene.delete_pod("job-worker-0")
    scene.wait_until_replaced(job, 0, before)
    scene.proof.wait_for(job.resource, "Succeeded")
    resumed = scene.proof.wait_for_log("job-worker-0", r"^starts after step (\d+)")
    steps = [line.split() for line in (folder / "steps").read_text().splitlines()]
    losses = [(int(step), float(loss)) for step, loss in steps]
    assert [step for step, _ in losses] == list(range(1, small_programs.STEPS + 1))
    assert all(later < sooner for (_, sooner), (_, later) in pairwise(losses))
    assert int(resumed[1]) >= 10
    assert scene.restarts(job) == Restarts(disruptions=1)
    scene.wait_for_counters(job, {"created": 1, "restarted": 1, "disruptions": 1, "successful": 1})
    scene.proof.loss(losses)
    scene.proof.expect(
        "It has its grace period to save its state. The new pod continues there; no step is lost or repeated.",
        f"the new pod {resumed[0]}; steps 1 to {small_programs.STEPS} once each, the loss always falls",
    )
