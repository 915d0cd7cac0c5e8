"""Details of the explanations in conditions: what pods wait for, how long words are, which containers are down."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.engine.builders import NOW
from trainop.engine.children import decode_pod
from trainop.engine.evidence import _is_down
from trainop.engine.restart_history import RestartHistory
from trainop.engine.root_cause import Failure, describe_cause, signal_name
from trainop.engine.seen import Options, Pod, Snapshot
from trainop.engine.waiting import _explain, _Pods
from trainop.runtime.objects.metadata import Json, Unstructured

RUNS = {"name": "a", "state": {"running": {}}}
WAITS = {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
QUIET = {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}
FAILED = {"name": "d", "state": {"terminated": {"exitCode": 1}}}
DONE = {"name": "e", "state": {"terminated": {"exitCode": 0}}}


def pod(*containers: Json, conditions: tuple[Json, ...] = (), **metadata: Any) -> Pod:
    status = {"phase": "Pending", "containerStatuses": list(containers), "conditions": list(conditions)}
    return decode_pod(msgspec.json.encode({"metadata": {"name": "p", **metadata}, "status": status}))


@pytest.mark.parametrize(
    ("containers", "down"),
    [((), False), ((RUNS,), False), ((DONE,), False), ((RUNS, WAITS), True), ((RUNS, FAILED), True)],
)
def test_a_pod_is_down_if_a_container_waits_or_has_failed(containers: tuple[Json, ...], down: bool):
    assert _is_down(pod(*containers)) == down


def test_why_a_pod_has_not_started():
    false = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}
    silent = {"type": "Initialized", "status": "False", "reason": "x"}
    assert _explain(pod(RUNS, QUIET, WAITS)) == "container b of p: CrashLoopBackOff: back-off"
    assert _explain(pod(conditions=(silent, false))) == "Unschedulable: no nodes"
    assert _explain(pod(QUIET)) == "see `kubectl describe pod p`"


def test_the_pods_of_a_pod_of_the_job_are_the_jobs():
    """As the learners that an aggregator of a DIJob asks for."""

    def owner(kind: str, uid: str) -> Json:
        return {"apiVersion": "v1", "kind": kind, "name": "o", "uid": uid, "controller": True}

    of_job = pod(uid="1", ownerReferences=[owner("DIJob", "j")])
    of_pod = pod(uid="2", ownerReferences=[owner("Pod", "1")])
    stranger = pod(uid="3", ownerReferences=[owner("Pod", "9")])
    job = Unstructured({"metadata": {"name": "j", "uid": "j"}})
    seen = Snapshot(job, (of_job, of_pod, stranger), (), NOW, Options())
    assert [each.metadata.uid for each in _Pods(seen)] == ["1", "2"]


def test_only_as_many_lines_as_fit_are_in_a_sentence():
    lines = tuple(f"{number} {'x' * 200}" for number in range(4))
    said = describe_cause(Failure(role="Worker", exit_code=1, log=lines))
    assert "3 xxx" in said
    assert "0 xxx" not in said


def test_numbers_between_the_signals_have_no_name():
    assert (signal_name(128 + 32), signal_name(128 + 15)) == ("", "SIGTERM")


def test_the_longest_back_off_of_all_groups():
    history = RestartHistory("u", {})
    assert history.longest_wait(NOW) == 0
    now = NOW
    for _ in range(4):  # a round begins once the back-off of the last one is over
        now += timedelta(seconds=60)
        history.begin_round("Worker", now, now)
    history.begin_round("Master", now, now)
    assert history.wait("Master", now) == 0
    assert history.longest_wait(now) == history.wait("Worker", now) == 4
