"""`diagnose` names the cause that a person would name, for each situation; it never raises."""

from __future__ import annotations

import json
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.explain.situations import GPU, NOW, SITUATIONS, Situation, event, failed, job, pod, seen, unscheduled
from trainop.commands.evidence import read_operator, status_fields
from trainop.commands.why import MAX_CAUSES, render
from trainop.explain.why import Evidence, PodFacts, State, diagnose, read_pod
from trainop.explain.why.evidence import read_events


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_cause_comes_first(name: str):
    evidence, state, code, words = SITUATIONS[name]
    found = diagnose(evidence)
    first = found.causes[0]
    said = " | ".join((first.text, *first.evidence, first.next))
    assert (found.state, first.code) == (state, code), [(each.code, each.text) for each in found.causes]
    assert [word for word in words if word not in said] == [], said


def test_there_are_at_least_sixty_situations_and_all_states():
    assert len(SITUATIONS) >= 60
    assert {situation.state for situation in SITUATIONS.values()} == set(State)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_screen_is_short_and_says_what_to_do(name: str):
    lines = list(render("PyTorchJob j in namespace team", diagnose(SITUATIONS[name].seen)))
    assert lines[0] == f"PyTorchJob j in namespace team: {SITUATIONS[name].state.value}"
    assert 2 <= len(lines) <= 40
    assert max(map(len, lines)) <= 1000
    assert json.dumps(diagnose(SITUATIONS[name].seen).as_json())


@pytest.mark.parametrize("situation", [s for s in SITUATIONS.values() if s.state in {State.WAITING, State.FAILED}])
def test_who_waits_or_failed_is_told_what_to_do(situation: Situation):
    first = diagnose(situation.seen).causes[0]
    assert first.next or first.code in {"Deleting", "QueueChecks", "QueueWaiting", "Restarting", "Starting"}


def codes(evidence: Evidence) -> list[str]:
    return [cause.code for cause in diagnose(evidence).causes]


def test_a_job_of_another_controller_misses_no_operator():
    raw = job(policy={"managedBy": "example.com/other"})
    del raw["status"]
    assert codes(seen(raw)) == ["ManagedElsewhere"]


@pytest.mark.parametrize("training", [59, 60])
def test_the_account_of_a_job_that_took_a_minute_is_shown_and_harmless(training: int):
    account = {"trainingSeconds": training, "until": "2026-11-25T11:00:00Z"}
    raw = job()
    raw["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}], "account": account}
    found = diagnose(seen(raw))
    assert found.state is State.SUCCEEDED
    said = [each.text for each in found.causes if each.code == "Account"]
    assert said == (["its time: training 60 s; goodput 100 %"] if training == 60 else [])
    raw["status"]["conditions"] = [{"type": "Running", "status": "True"}]
    texts = [each.text for each in diagnose(seen(raw)).causes]
    assert ("its time until 2026-11-25 11:00:00 UTC: training 60 s; goodput 100 %" in texts) is (training == 60)


@pytest.mark.parametrize("mode", ["required", "preferred"])
@pytest.mark.parametrize("waits", [True, False])
def test_nodes_that_are_avoided_are_named(mode: str, waits: bool):
    raw = job()
    last = (NOW - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    nodes = {f"n{index}": [2, last, "NodeLost"] for index in range(7)}
    raw["metadata"]["annotations"] = {
        "trainop.kubeflow.org/avoid-bad-nodes": mode,
        "trainop.kubeflow.org/bad-nodes": json.dumps({"job": raw["metadata"]["uid"], "nodes": nodes}),
    }
    found = diagnose(seen(raw, unscheduled("j-worker-0") if waits else pod("j-worker-0")))
    (cause,) = [each for each in found.causes if each.code == "AvoidedNodes"]
    assert "on n0, n1, n2, n3, n4 and others, where pods of the job have ended" in cause.text
    assert cause.evidence[0].startswith("n0: 2 ended, the last because of NodeLost; avoided until ")
    assert len(cause.evidence) == 5
    is_reason = waits and mode == "required"
    assert (found.causes[0] is cause) is is_reason
    assert cause.text.startswith("pods wait for a node") is is_reason
    assert ("remove the annotation" in cause.next) is is_reason


def test_a_warning_of_what_is_explained_is_not_repeated():
    waiting = {"name": "pytorch", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    warned = event("ImagePullBackOff", "Error pod j-worker-0 container pytorch waiting message: no such image")
    pods = (pod(containers=(waiting,)), pod(index=1, containers=(waiting,)))
    assert "Warning" not in codes(seen(job(), *pods, events=(warned,)))
    assert "Warning" in codes(seen(job(), *pods, events=(event("Other", "something else"),)))


def test_an_exit_code_that_is_never_retried_is_called_so():
    failure = {"role": "Worker", "index": 0, "pod": "j-worker-0", "exitCode": 3, "reason": "Error"}
    for policy, said in (("ExitCode", True), ("Never", False)):
        evidence = failed("PyTorchJob j is failed", failure)
        evidence.job["spec"]["pytorchReplicaSpecs"] = {"Worker": {"restartPolicy": policy}}
        assert ("from 128 on" in diagnose(evidence).causes[0].next) == said


def test_a_deadline_without_a_failure_sends_nobody_to_the_replica_that_failed():
    text = "PyTorchJob j has failed because it was active longer than specified deadline"
    evidence = failed(text, {"role": "", "reason": "DeadlineExceeded"})
    assert "failed first" not in diagnose(evidence).causes[0].next


@pytest.mark.parametrize(("how", "said"), [("suspend", "it is suspended in 15 min"), ("fail", "it fails in 15 min")])
def test_what_happens_at_the_startup_deadline_is_said_before(how: str, said: str):
    prefix = "trainop.kubeflow.org/"
    asked = {f"{prefix}startup-deadline": "20m", f"{prefix}on-startup-deadline": how, "other": None}
    starting = {
        "type": "Started",
        "status": "False",
        "reason": "Starting",
        "lastTransitionTime": "2026-11-25T11:55:00Z",
    }
    found = diagnose(seen(job(starting, annotations=asked), unscheduled(GPU)))  # type: ignore[arg-type]
    (text,) = [cause.text for cause in found.causes if cause.code == "Deadline"]
    assert text.startswith(said)


def test_exit_codes():
    assert {state: state.exit_code for state in State} == {
        State.SUCCEEDED: 0,
        State.RUNNING: 0,
        State.FAILED: 1,
        State.WAITING: 3,
        State.TROUBLED: 4,
    }


def test_what_could_not_be_read_is_said():
    lines = list(render("j", diagnose(seen(job(), unread=("events: events is forbidden",)))))
    assert lines[-1] == "could not read events: events is forbidden"


def test_many_causes_are_cut():
    crowd = seen(
        job(policy={"activeDeadlineSeconds": 10, "suspend": True}, status={"startTime": "2026-11-25T11:00:00Z"}),
        *(
            SITUATIONS[name].seen.pods[0]
            for name in ("image", "gated", "taint", "crash loop", "slow start", "init container")
        ),
        events=SITUATIONS["quota"].seen.events,
    )
    lines = list(render("j", diagnose(crowd)))
    assert sum(line.startswith("- ") for line in lines) == MAX_CAUSES - 1
    assert any(line.endswith("more; -o json has all)") for line in lines)


def test_hostile_texts_never_reach_the_terminal():
    evil = "\x1b[2J\x1b]0;title\x07\u202egone\r\n" * 100
    evidence = seen(job(), unscheduled(evil), events=(SITUATIONS["quota"].seen.events[0],), unread=(evil,))
    shown = "\n".join(render(evil, diagnose(evidence)))
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
    assert max(map(len, shown.splitlines())) <= 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def broken(value: Any) -> st.SearchStrategy[Any]:
    """`value` with any part of it replaced by anything."""
    if isinstance(value, dict):
        return JSON | st.fixed_dictionaries({name: broken(part) for name, part in value.items()})
    if isinstance(value, list) and value:
        return JSON | st.tuples(*map(broken, value)).map(list)
    return st.just(value) | JSON


STORED_POD = {
    "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2026-11-25T10:00:00Z", "finalizers": ["f"]},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "c"}],
        "initContainers": [{"name": "i"}],
        "volumes": [{"name": "v"}],
    },
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": GPU}],
        "containerStatuses": [{"name": "c", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
    },
}
STORED_EVENT = {
    "involvedObject": {"kind": "Pod", "name": "p"},
    "type": "Warning",
    "reason": "r",
    "message": "m",
    "count": 2,
}


@settings(max_examples=200, deadline=None)
@given(broken(job()), st.lists(broken(STORED_POD), max_size=3), st.lists(broken(STORED_EVENT), max_size=2), JSON)
def test_nothing_raises_whatever_the_objects_contain(raw: Any, pods: list[Any], events: list[Any], other: Any):
    raw = raw if isinstance(raw, dict) else {}
    pods = [each for each in pods if isinstance(each, dict)]
    facts = tuple(map(read_pod, pods))
    found = read_events([each for each in events if isinstance(each, dict)], raw, [each.name for each in facts])
    other = other if isinstance(other, dict) else {}
    evidence = Evidence(
        kind="PyTorchJob",
        job=raw,
        now=NOW,
        pods=facts,
        events=found,
        group=other,
        workloads=(other,),
        nodes={"n": other},
    )
    assert list(render("t", diagnose(evidence)))
    read_operator(other)
    list(status_fields(other, "v1"))


def test_ten_thousand_pods_are_digested_in_one_line(monkeypatch: pytest.MonkeyPatch):
    """No two pods are ever compared with each other: the cost is linear in their number."""

    def refuse(one: object, other: object) -> bool:
        raise AssertionError("pods are compared in pairs")

    gate = {"spec": {"schedulingGates": [{"name": "g"}]}}
    gated = [unscheduled("", index, reason="SchedulingGated", **gate) for index in range(100)]
    running = [pod("worker", index, "Running") for index in range(100)]
    monkeypatch.setattr(PodFacts, "__eq__", refuse)
    found = diagnose(seen(job(), *(unscheduled(GPU, index) for index in range(10_000)), *gated, *running))
    texts = [cause.text for cause in found.causes]
    assert any(text.startswith("10000 of 10200 pods fit on no node: 12 of 12 nodes: Insufficient") for text in texts)
    assert any(text.startswith("100 of 10200 pods run; ") for text in texts)
    assert max(len(line) for line in render("j", found)) < 500


def test_a_pod_in_memory_is_small():
    tracemalloc.start()
    try:
        pods = [pod("worker", index, "Running") for index in range(1000)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(pods) == 1000
    assert size / 1000 < 4096


def test_flags_of_an_operator_are_read_in_all_forms():
    container: dict[str, Any] = {
        "args": ["--enable-scheme=TFJob", "-enable-scheme", "PyTorchJob", "--namespace", "a", "--leader-elect"]
    }
    found = read_operator(
        {
            "metadata": {"name": "training-operator", "namespace": "kubeflow"},
            "spec": {"template": {"spec": {"containers": [container]}}},
            "status": {"readyReplicas": 1},
        }
    )
    assert (found.schemes, found.watched, found.ready) == (("tfjob", "pytorchjob"), "a", 1)
    container["args"] = []
    container["env"] = [{"name": "KUBEFLOW_NAMESPACE", "value": "team"}]
    assert read_operator({"spec": {"template": {"spec": {"containers": [container]}}}}).watched == "team"
