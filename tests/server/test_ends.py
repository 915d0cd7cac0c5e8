"""Failures, restarts, limits, clean-up and time to live of jobs on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.server.process import Operator
from tests.server.world import CORE, JOBS, MERGE, World, container, replicas
from tests.upstream import Upstream


def parse(text: str) -> datetime:
    return datetime.fromisoformat(text)


def seconds_between(first: str, second: str) -> float:
    return (parse(second) - parse(first)) / timedelta(seconds=1)


def test_exit_code_restart(world: World, operator: Operator):
    """job-engine-6 with a PyTorchJob."""
    world.create_job("j", {"Worker": replicas(1, "ExitCode")})
    uid = world.wait_pods("j-worker-0")["j-worker-0"]["metadata"]["uid"]
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    world.end_pod("j-worker-0", 130)
    world.wait_successor("j-worker-0", uid)
    restarting = world.wait_condition("Restarting")
    assert restarting["reason"] == "PyTorchJobRestarting"
    assert restarting["message"] == Upstream("job j is restarting because Worker replica(s) failed.")
    event = world.wait(lambda: world.events("PyTorchJobRestarting"), "the event")[0]
    assert (event["type"], event["message"]) == ("Warning", restarting["message"])
    exited = world.wait(lambda: world.events("ExitedWithCode"), "the event")[0]
    assert exited["type"] == "Normal"
    assert exited["message"] == f"Pod: {world.namespace}.j-worker-0 exited with code 130"
    series = f'training_operator_jobs_restarted_total{{framework="pytorch",job_namespace="{world.namespace}"}}'
    world.wait(lambda: operator.metric(series) == 1, "the counter")
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    assert world.condition("Restarting") == {}


@pytest.mark.case("job-engine-7", "d")
def test_permanent_exit_code(world: World):
    """job-engine-7 with a PyTorchJob."""
    world.create_job("j", {"Worker": replicas(1, "ExitCode")})
    world.wait_pods("j-worker-0")
    world.end_pod("j-worker-0", 1)
    failed = world.wait_condition("Failed")
    assert failed["reason"] == "PyTorchJobFailed"
    assert failed["message"] == Upstream('job "j" is failing because "Worker" replica(s) failed.')
    assert world.status()["completionTime"]
    world.settle()
    assert world.pods()["j-worker-0"]["status"]["phase"] == "Failed"
    assert world.events("PyTorchJobRestarting") == []


@pytest.mark.case("job-engine-8", "ab")
def test_evicted_without_container_statuses(world: World):
    world.create_job("j", {"Worker": replicas(1, "ExitCode")})
    uid = world.wait_pods("j-worker-0")["j-worker-0"]["metadata"]["uid"]
    world.evict_pod("j-worker-0")
    world.wait_successor("j-worker-0", uid)
    assert world.wait_condition("Restarting")["message"] == Upstream(
        "job j is restarting because Worker replica(s) failed."
    )


@pytest.mark.case("job-engine-9", "ab")
def test_on_failure_and_evicted(world: World):
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(1, "OnFailure")})
    uid = world.wait_pods("j-master-0", "j-worker-0")["j-worker-0"]["metadata"]["uid"]
    world.evict_pod("j-worker-0")
    world.wait_successor("j-worker-0", uid)
    world.wait_condition("Restarting")


@pytest.mark.case("frameworks-v1-20", "abc")
def test_a_worker_fails_while_the_master_runs(world: World):
    names = ("j-master-0", "j-worker-0")
    job = world.create_job("j", {"Master": replicas(1), "Worker": replicas(1, "OnFailure")})
    uid = world.wait_pods(*names)["j-worker-0"]["metadata"]["uid"]
    world.run_pod(*names)
    world.wait_condition("Running")
    world.end_pod("j-worker-0", 1)
    world.wait_successor("j-worker-0", uid)
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    assert world.condition("Restarting") == {}
    restarting = ("Restarting", "True", Upstream("job j is restarting because Worker replica(s) failed."))
    assert any(restarting in conditions for conditions in world.history(job))
    world.create_job("pt", {"Master": replicas(1), "Worker": replicas(1, "Never")})
    world.wait(lambda: {"pt-master-0", "pt-worker-0"} <= set(world.pods()), "the second job's pods")
    world.run_pod("pt-master-0", "pt-worker-0")
    world.wait_condition("Running", "pt")
    world.end_pod("pt-worker-0", 1)
    failed = world.wait_condition("Failed", "pt")
    assert failed["message"] == Upstream("PyTorchJob pt is failed because 1 Worker replica(s) failed.")


def test_the_root_cause_survives_the_pods(world: World):
    """The API server stores every field of `lastFailure`, and no write follows the status that has it."""
    names = ("j-master-0", "j-worker-0", "j-worker-1")
    job = world.create_job("j", {"Master": replicas(1, "Never"), "Worker": replicas(2, "Never")}, cleanPodPolicy="All")
    world.wait_pods(*names)
    world.run_pod(*names)
    world.wait_condition("Running")
    now = datetime.now(UTC).replace(microsecond=0)
    ended = {
        "exitCode": 137,
        "reason": "OOMKilled",
        "finishedAt": now.isoformat(),
        "message": "step 1\n\x1b[31mlast words",
    }
    world.set_pod("j-worker-1", {"phase": "Failed", "containerStatuses": [container({"terminated": ended})]})
    failed = world.wait_condition("Failed")
    world.wait(lambda: not world.pods(), "the deletion of all pods")
    cause = world.status()["lastFailure"]
    assert cause == {
        "role": "Worker",
        "index": 1,
        "rank": 2,
        "pod": "j-worker-1",
        "container": "pytorch",
        "exitCode": 137,
        "signal": "SIGKILL",
        "reason": "OOMKilled",
        "attempt": 1,
        "time": now.isoformat().replace("+00:00", "Z"),
        "log": ["step 1", "last words"],
    }
    assert failed["message"].endswith("Last output: step 1 | last words")
    event = world.wait(lambda: world.events("PyTorchJobFailed"), "the event")[0]
    assert event["message"] == failed["message"]
    assert sum(("Failed" in [each[0] for each in conditions]) for conditions in world.history(job)) == 1


@pytest.mark.parametrize(("policy", "left"), [("All", set()), ("Running", {"j-worker-1"}), ("None", None)])
def test_clean_up_after_success(world: World, policy: str, left: set[str] | None):
    names = {"j-master-0", "j-worker-0", "j-worker-1", "j-worker-2"}
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(3)}, cleanPodPolicy=policy)
    world.wait_pods(*names)
    world.run_pod("j-master-0", "j-worker-0")
    world.end_pod("j-worker-1")  # j-worker-2 stays Pending
    world.wait_condition("Running")
    world.end_pod("j-master-0")
    world.wait_condition("Succeeded")
    expected = names if left is None else left | ({"j-master-0"} if policy == "Running" else set())
    world.wait(lambda: set(world.pods()) == expected, f"the pods {expected}")
    world.wait(lambda: set(world.services()) == expected, f"the services {expected}")
    world.settle()
    assert set(world.pods()) == expected


def test_container_restarts_over_the_limit(world: World):
    """job-engine-21 and 22 with a PyTorchJob."""
    names = ("j-worker-0", "j-worker-1")
    world.create_job("j", {"Worker": replicas(2, "OnFailure")}, backoffLimit=3, cleanPodPolicy="All")
    world.wait_pods(*names)
    world.run_pod(*names, restarts=1)
    world.wait(lambda: world.status().get("replicaStatuses", {}).get("Worker", {}).get("active") == 2, "both active")
    world.settle()
    assert not world.is_now("Failed")
    world.run_pod("j-worker-0", restarts=2)
    failed = world.wait_condition("Failed")
    assert failed["message"] == Upstream("Job j has failed because it has reached the specified backoff limit")
    assert world.status()["completionTime"]
    world.wait_pods()
    event = world.wait(lambda: world.events("PyTorchJobFailed"), "the event")
    assert [(e["type"], e["message"]) for e in event] == [("Normal", failed["message"])]


@pytest.mark.case("job-engine-23", "ac")
def test_exit_code_restarts_are_limited_across_restarts_of_the_operator(world: World, operator: Operator):
    world.create_job("j", {"Worker": replicas(1, "ExitCode")}, backoffLimit=2)
    uids = [world.wait_pods("j-worker-0")["j-worker-0"]["metadata"]["uid"]]
    for restarts in range(2):
        world.end_pod("j-worker-0", 137)
        uids.append(world.wait_successor("j-worker-0", uids[-1])["metadata"]["uid"])
        if restarts == 0:
            assert operator.end() == 0
            operator.start()
    world.end_pod("j-worker-0", 137)
    assert "backoff limit" in world.wait_condition("Failed")["message"]
    world.settle()
    assert world.pods()["j-worker-0"]["metadata"]["uid"] == uids[2]
    assert len(set(uids)) == 3


def test_restarts_that_have_no_room_in_the_annotations(world: World, operator: Operator):
    """Other annotations take the room here; restarts of about 30,000 pods would fill the annotations as well."""
    before = len(operator.text())
    world.create_job("j", {"Worker": replicas(2, "ExitCode")})
    world.wait_pods("j-worker-0", "j-worker-1")
    world.ask("PATCH", f"{JOBS}/j", {"metadata": {"annotations": {"note": "x" * (256 * 1024 - 50)}}}, MERGE)
    world.end_pod("j-worker-0", 137)
    failed = world.wait_condition("Failed")
    assert failed["reason"] == "PyTorchJobFailedValidation"
    assert "its restarts cannot be noted: " in failed["message"]
    assert "Too long: may not be more than 262144 bytes" in failed["message"]
    world.wait_pods("j-worker-0")
    assert "Traceback" not in operator.text()[before:]


def test_deadline(world: World):
    """The deadline does not fire early by the wall clock. A test in virtual time shows that it fires in time."""
    world.create_job("j", {"Worker": replicas(2)}, cleanPodPolicy="Running")
    world.wait_pods("j-worker-0", "j-worker-1")
    world.run_pod("j-worker-0", "j-worker-1")
    world.wait_condition("Running")
    began = parse(world.status()["startTime"])
    deadline = 3 + int((datetime.now(UTC) - began).total_seconds())
    world.patch_run_policy(activeDeadlineSeconds=deadline)
    failed = world.wait_condition("Failed")
    assert failed["message"] == Upstream("Job j has failed because it was active longer than specified deadline")
    assert world.conditions()[1:] == [("Running", "False", "PyTorchJobRunning"), ("Failed", "True", "PyTorchJobFailed")]
    assert seconds_between(world.status()["startTime"], failed["lastTransitionTime"]) >= deadline
    world.wait_pods()


@pytest.mark.case("frameworks-v1-21", "ab")
@pytest.mark.case("job-engine-25", "gh")
def test_time_to_live_after_a_permanent_failure(world: World, operator: Operator):
    world.create_job("j", {"Worker": replicas(1, "ExitCode")}, ttlSecondsAfterFinished=30)
    world.wait_pods("j-worker-0")
    world.end_pod("j-worker-0", 1)
    world.wait_condition("Failed")
    completed = parse(world.status()["completionTime"])
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the deletion of the job")
    assert datetime.now(UTC) - completed >= timedelta(seconds=30)
    event = world.wait(lambda: world.events("SuccessfulDeletePod"), "the event")[0]
    assert (event["type"], event["message"]) == ("Normal", "Deleted job: j")
    series = f'training_operator_jobs_deleted_total{{framework="pytorch",job_namespace="{world.namespace}"}}'
    world.wait(lambda: operator.metric(series) == 1, "the counter")


def test_time_to_live_that_passed_while_no_operator_ran(world: World, operator: Operator):
    world.create_job("j", {"Worker": replicas(1)}, ttlSecondsAfterFinished=3600)
    world.wait_pods("j-worker-0")
    world.end_pod("j-worker-0")
    world.wait_condition("Succeeded")
    operator.end()
    world.patch_run_policy(ttlSecondsAfterFinished=1)
    world.settle(2.5)
    operator.start()
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the deletion of the job")


@pytest.mark.case("job-engine-25", "i")
def test_a_user_deletes_a_job(world: World, operator: Operator):
    """No garbage collector runs, so the children stay; the operator must neither create new ones nor count failures."""
    world.create_job("j", {"Worker": replicas(1)})
    world.wait_pods("j-worker-0")
    world.ask("DELETE", f"{JOBS}/j?propagationPolicy=Background")
    world.ask("DELETE", f"{CORE}/pods/j-worker-0")
    world.settle()
    assert world.pods() == {}
    series = f'training_operator_jobs_deleted_total{{framework="pytorch",job_namespace="{world.namespace}"}}'
    assert not operator.metric(series)
    assert world.events("SuccessfulDeletePod") == []
