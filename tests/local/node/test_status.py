"""Phase and conditions of pods, as tables of kubelet's getPhase and condition generators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from trainop.local.node.pods.status import (
    ContainerState,
    PodState,
    Running,
    Terminated,
    Waiting,
    phase,
    pod_status,
    qos_class,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC)


def ended(code: int) -> Terminated:
    return Terminated(code, "Error" if code else "Completed", NOW, NOW)


WAITING = ContainerState("c")
RUNNING = ContainerState("c", state=Running(NOW), ready=True, started=True)
DONE = ContainerState("c", state=ended(0))
FAILED = ContainerState("c", state=ended(1))
CRASHING = ContainerState("c", state=Waiting("CrashLoopBackOff"), last=ended(1), restarts=3)


@pytest.mark.parametrize(
    ("containers", "policy", "word"),
    [
        ([WAITING], "Always", "Pending"),
        ([WAITING, RUNNING], "Always", "Pending"),
        ([RUNNING, RUNNING], "Always", "Running"),
        ([RUNNING, DONE], "Never", "Running"),
        ([RUNNING, FAILED], "Never", "Running"),
        ([DONE, DONE], "Never", "Succeeded"),
        ([DONE, FAILED], "Never", "Failed"),
        ([DONE], "OnFailure", "Succeeded"),
        ([FAILED], "OnFailure", "Running"),
        ([CRASHING], "OnFailure", "Running"),
        ([CRASHING, RUNNING], "Always", "Running"),
        ([DONE], "Always", "Running"),
        ([CRASHING], "Always", "Running"),
    ],
)
def test_phase_while_the_node_keeps_the_pod(containers: list[ContainerState], policy: str, word: str) -> None:
    assert phase(PodState(containers=containers), policy) == word


@pytest.mark.parametrize(
    ("containers", "word"),
    [
        ([DONE], "Succeeded"),
        ([FAILED], "Failed"),
        ([CRASHING], "Failed"),
        ([WAITING], "Failed"),
        ([DONE, FAILED], "Failed"),
    ],
)
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_phase_once_nothing_will_run_again(containers: list[ContainerState], word: str, policy: str) -> None:
    assert phase(PodState(containers=containers, final=True), policy) == word


@pytest.mark.parametrize(
    ("init", "policy", "word"),
    [
        (RUNNING, "Never", "Pending"),
        (FAILED, "Never", "Failed"),
        (FAILED, "OnFailure", "Pending"),
        (CRASHING, "Always", "Pending"),
        (DONE, "Never", "Pending"),
    ],
)
def test_phase_before_the_containers(init: ContainerState, policy: str, word: str) -> None:
    assert phase(PodState(inits=[init], containers=[WAITING]), policy) == word


def test_a_pod_runs_as_long_as_its_sidecars() -> None:
    sidecar = ContainerState("s", state=Running(NOW), started=True, sidecar=True)
    over = ContainerState("s", state=ended(143), sidecar=True)
    assert phase(PodState(inits=[sidecar], containers=[WAITING]), "Never") == "Pending"
    assert phase(PodState(inits=[sidecar], containers=[DONE]), "Never") == "Running"
    assert phase(PodState(inits=[over], containers=[DONE]), "Never") == "Succeeded"


def test_a_pod_that_the_node_ended_has_failed_and_says_why() -> None:
    state = PodState(containers=[DONE], final=True, failure=("DeadlineExceeded", "too long"))
    status = pod_status(make_pod(), state, NOW)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")


def make_pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]},
        "status": status,
    }


def conditions_of(state: PodState, pod: dict[str, Any] | None = None) -> dict[str, tuple[str, str]]:
    status = pod_status(pod or make_pod(), state, NOW)
    return {one["type"]: (one["status"], one.get("reason", "")) for one in status["conditions"]}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            PodState(inits=[RUNNING], containers=[WAITING], sandbox=True),
            {
                "PodScheduled": ("True", ""),
                "PodReadyToStartContainers": ("True", ""),
                "Initialized": ("False", "ContainersNotInitialized"),
                "ContainersReady": ("False", "ContainersNotReady"),
                "Ready": ("False", "ContainersNotReady"),
            },
        ),
        (
            PodState(inits=[DONE], containers=[RUNNING], sandbox=True),
            {
                "PodScheduled": ("True", ""),
                "PodReadyToStartContainers": ("True", ""),
                "Initialized": ("True", ""),
                "ContainersReady": ("True", ""),
                "Ready": ("True", ""),
            },
        ),
        (
            PodState(containers=[DONE], final=True),
            {
                "PodScheduled": ("True", ""),
                "PodReadyToStartContainers": ("False", ""),
                "Initialized": ("True", "PodCompleted"),
                "ContainersReady": ("False", "PodCompleted"),
                "Ready": ("False", "PodCompleted"),
            },
        ),
        (
            PodState(containers=[FAILED], final=True),
            {
                "PodScheduled": ("True", ""),
                "PodReadyToStartContainers": ("False", ""),
                "Initialized": ("True", ""),
                "ContainersReady": ("False", "PodFailed"),
                "Ready": ("False", "PodFailed"),
            },
        ),
    ],
)
def test_conditions(state: PodState, expected: dict[str, tuple[str, str]]) -> None:
    assert conditions_of(state) == expected


def test_a_readiness_gate_keeps_a_pod_from_being_ready() -> None:
    pod = make_pod(conditions=[{"type": "example.com/gate", "status": "False"}])
    pod["spec"]["readinessGates"] = [{"conditionType": "example.com/gate"}]
    found = conditions_of(PodState(containers=[RUNNING]), pod)
    assert found["Ready"] == ("False", "ReadinessGatesNotReady")
    assert found["ContainersReady"] == ("True", "")
    assert found["example.com/gate"] == ("False", "")


def test_conditions_of_others_stay_and_times_move_only_with_the_status() -> None:
    first = pod_status(make_pod(), PodState(containers=[RUNNING], sandbox=True), NOW)
    others = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = make_pod(conditions=[*first["conditions"], others])
    second = pod_status(pod, PodState(containers=[DONE], final=True), LATER)
    found = {one["type"]: one for one in second["conditions"]}
    assert found["DisruptionTarget"] == others
    assert found["Initialized"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert found["Ready"]["lastTransitionTime"] == "2026-01-02T03:05:00Z"


def test_a_container_shows_its_last_run_beside_the_present_one() -> None:
    state = PodState(containers=[CRASHING], address="10.244.0.2", host_address="10.244.0.1", started=NOW)
    status = pod_status(make_pod(qosClass="Guaranteed"), state, NOW)
    (container,) = status["containerStatuses"]
    assert container["restartCount"] == 3
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert container["lastState"]["terminated"]["exitCode"] == 1
    assert status["podIPs"] == [{"ip": "10.244.0.2"}]
    assert status["startTime"] == "2026-01-02T03:04:05Z"
    assert status["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("resources", "word"),
    [
        ([{}], "BestEffort"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
    ],
)
def test_quality_of_service(resources: list[dict[str, Any]], word: str) -> None:
    assert qos_class({"spec": {"containers": [{"name": "c", "resources": one} for one in resources]}}) == word
