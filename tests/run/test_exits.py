"""The exits of replicas: frozen at the moment of the end, the root cause first, consequences marked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.builders import at, make_job, stamp
from trainop.explain import Failure
from trainop.run.exits import HINT, Exits, cannot_start
from trainop.runtime.objects.metadata import Json, Unstructured

L = "training.kubeflow.org/"
NOW = at(60)


def pod(
    name: str,
    code: int | None = None,
    second: int = 0,
    *,
    uid: str = "",
    phase: str = "",
    deleted: int | None = None,
    restarts: int = 0,
    last: int | None = None,
    message: str = "",
) -> Unstructured:
    role, index = name.split("-")
    metadata: Json = {"name": f"j-{name}", "namespace": "ns", "uid": uid or name, "creationTimestamp": stamp(-99)}
    metadata["labels"] = {f"{L}replica-type": role, f"{L}replica-index": index}
    if deleted is not None:
        metadata |= {"deletionTimestamp": stamp(deleted + 30), "deletionGracePeriodSeconds": 30}
    end = {"exitCode": code, "reason": "Error", "finishedAt": stamp(second), "startedAt": stamp(-9), "message": message}
    state = {"running": {}} if code is None else {"terminated": end}
    before = {} if last is None else {"terminated": {**end, "exitCode": last}}
    container = {"name": "pytorch", "restartCount": restarts, "state": state, "lastState": before}
    status = {"phase": phase or ("Running" if code is None else "Failed"), "containerStatuses": [container]}
    return Unstructured({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})


def exits_of(*pods: Unstructured, cause: Json | None = None) -> Exits:
    exits = Exits("PyTorchJob")
    exits.take_job(Unstructured(make_job(1, 3, status={"lastFailure": cause} if cause else None)))
    for each in pods:
        exits.record(each, each.metadata.name.removeprefix("j-"), 0, NOW)
    return exits


def told(exits: Exits) -> list[str]:
    return [text for text, _ in exits.describe()]


def test_a_pod_that_is_stopped_does_not_hide_the_culprit():
    exits = exits_of(
        pod("worker-1", 1, 5, message="ValueError: bad"),
        pod("worker-0", 143, 7, deleted=6),
        pod("master-0", 143, 7, deleted=6),
        pod("worker-1", 143, 9, uid="successor", deleted=8),
    )
    assert told(exits) == [
        "Root cause: Worker 1 (rank 2, pod j-worker-1 on node n) exited with code 1 at 2025-06-01T12:00:05Z",
        "Stopped by the operator: master-0, worker-0",
    ]
    assert next(log for _, log in exits.describe()) == ("ValueError: bad",)


def test_an_exit_is_frozen():
    first = pod("worker-1", 1, 5)
    exits = exits_of(first)
    assert exits.record(first, "worker-1", 0, NOW) is None
    assert exits.record(pod("worker-1", 143, 6, deleted=6), "worker-1", 0, NOW) is None
    assert told(exits)[0].endswith("exited with code 1 at 2025-06-01T12:00:05Z")


def test_later_failures_are_sorted_and_marked():
    exits = exits_of(pod("master-0", 134, 8), pod("worker-0", 1, 6), pod("worker-1", 139, 5))
    assert [line.partition(" at ")[0].partition(") ")[2] for line in told(exits)] == [
        "was ended by SIGSEGV (exit code 139)",
        "exited with code 1",
        "was ended by SIGABRT (exit code 134)",
    ]
    assert [line.endswith("(a consequence)") for line in told(exits)] == [False, True, True]


def test_the_cause_in_the_status_counts():
    cause = {"role": "Worker", "index": 0, "pod": "j-worker-0", "exitCode": 7, "time": stamp(1), "log": ["x"]}
    exits = exits_of(pod("worker-1", 1, 5), pod("worker-0", 7, 1), pod("worker-2", 1, 0), cause=cause)
    assert [line.partition(" (")[0] for line in told(exits)] == ["Root cause: Worker 0", "Worker 1"]


def test_a_deadline_has_no_culprit():
    exits = exits_of(
        pod("worker-0", 1, 5), cause={"reason": "DeadlineExceeded", "message": "3 of 4 replicas were running"}
    )
    assert told(exits) == ["No replica had failed: 3 of 4 replicas were running."]


def test_a_restart_in_place_is_told_when_it_is_known_what_follows():
    exits = exits_of()
    ended = pod("worker-0", 3, 1, phase="Running")
    assert exits.record(ended, "worker-0", 0, NOW) is None
    again = exits.record(pod("worker-0", None, 1, restarts=1, last=3), "worker-0", 0, NOW)
    assert again is not None
    assert (again.exit_code, again.attempt) == (3, 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"exit_code": 127}, True),
        ({"exit_code": 126}, True),
        ({"exit_code": 128, "reason": "StartError"}, True),
        ({"exit_code": 2, "log": ("python: can't open file '/x.py': [Errno 2] No such file or directory",)}, True),
        ({"exit_code": 1, "log": ("ModuleNotFoundError: No module named 'torch'",)}, True),
        ({"exit_code": 1, "log": ("FileNotFoundError: [Errno 2] No such file or directory: 'checkpoint'",)}, False),
        ({"exit_code": 1}, False),
        ({"exit_code": 137}, False),
    ],
)
def test_what_cannot_start_here(fields: dict[str, Any], expected: bool):
    assert cannot_start(Failure("Worker", **fields)) is expected


def test_the_second_failure_of_the_same_kind_is_hopeless():
    exits = exits_of()
    rows = [("worker-0", 127, "a: not found"), ("worker-0", 1, "x"), ("worker-0", 1, "x")]
    rows += [("worker-1", 127, "b: not found"), *[("worker-0", 127, "b: not found")] * 2]
    found = []
    for uid, (name, code, text) in enumerate(rows):
        failure = exits.record(pod(name, code, uid=str(uid), message=text), name, uid, NOW)
        assert failure is not None
        found.append(exits.is_hopeless(failure))
    assert found == [False] * 5 + [True]
    assert told(exits)[-1] == HINT


@pytest.mark.parametrize(
    ("text", "folder", "said"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", "", "/home/me"),
        ("python: can't open file 'train.py': [Errno 2] No such file or directory", "/srv/job", "/srv/job"),
        ("ValueError: 3", "/srv/job", ""),
    ],
)
def test_who_lacks_a_path_is_told_its_folder(text: str, folder: str, said: str):
    exits = exits_of()
    exits.directory = "/home/me"
    failed = pod("worker-0", 2, 1, message=text)
    failed.raw["spec"] = {"containers": [{"name": "pytorch", **({"workingDir": folder} if folder else {})}]}
    exits.record(failed, "worker-0", 0, NOW)
    line = f"worker-0 ran in the folder {said}, to which relative paths refer."
    assert (line in told(exits)) == bool(said), told(exits)


def test_pods_that_cannot_be_read_are_left_out():
    exits = exits_of()
    assert exits.record(Unstructured({"metadata": {"name": "j-worker-0"}, "status": 7}), "worker-0", 0, NOW) is None
    assert told(exits) == []


def di_pod(role: str, suffix: str, code: int, second: int) -> Unstructured:
    end = {"exitCode": code, "reason": "Error", "finishedAt": stamp(second), "startedAt": stamp(-9)}
    status = {"phase": "Failed", "containerStatuses": [{"name": "di-container", "state": {"terminated": end}}]}
    name = f"a-{role}{suffix}"
    return Unstructured({"metadata": {"name": name, "uid": name, "labels": {"replica-type": role}}, "status": status})


def test_the_culprit_of_a_dijob_is_named_once():
    exits = Exits("DIJob")
    cause = {"role": "coordinator", "pod": "a-coordinator", "exitCode": 1, "time": stamp(3)}
    exits.take_job(Unstructured({"metadata": {"name": "a"}, "status": {"lastFailure": cause}}))
    for each in (di_pod("coordinator", "", 1, 3), di_pod("collector", "-x1", 143, 4)):
        exits.record(each, each.metadata.name.removeprefix("a-"), 0, NOW)
    assert [line.partition(" (")[0] for line in told(exits)] == ["Root cause: coordinator", "collector"]


def test_a_worker_of_an_mpijob_has_the_index_of_its_name():
    exits = Exits("MPIJob")
    status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
    labels = {f"{L}job-role": "worker", f"{L}replica-index": "2"}
    made = Unstructured({"metadata": {"name": "a-worker-1", "uid": "1", "labels": labels}, "status": status})
    failure = exits.record(made, "worker-2", 0, NOW)
    assert failure is not None
    assert (failure.role, failure.index) == ("Worker", 1)
