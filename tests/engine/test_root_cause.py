"""The root cause: which of several failures is named, in which words, and what the status keeps of it."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.builders import (
    CREATED,
    NOW,
    RUNNING,
    at,
    make_job,
    make_pod,
    plan_for,
    pod_deleted,
    stamp,
    status_of,
    written,
)
from tests.engine.world import World
from tests.upstream import Upstream
from trainop.engine.actions import Event
from trainop.engine.children import decode_pod
from trainop.engine.evidence import Place, failure_of, past_failure_of, was_stopped
from trainop.engine.extensions import RESTART_SCOPE
from trainop.engine.root_cause import (
    Failure,
    append_cause,
    describe,
    describe_cause,
    find_cause,
    log_lines,
    mark_consequences,
    one_line,
    read_failure,
    signal_name,
)
from trainop.engine.seen import Pod
from trainop.runtime.objects.metadata import Json


def failure(
    index: int = 0, code: int | None = 1, when: float | None = 0, *, began: float | None = -60, **more: Any
) -> Failure:
    return Failure(
        role=more.pop("role", "Worker"),
        index=index,
        pod=f"j-worker-{index}",
        exit_code=code,
        reason=more.pop("reason", "Error"),
        at=None if when is None else at(when),
        began=None if began is None else at(began),
        **more,
    )


# Order ----------------------------------------------------------------------------------------------------------------

ORDERS: dict[str, tuple[list[Failure], int, list[int]]] = {
    # what happened -> (failures, index of the cause, indices of consequences)
    "one": ([failure(3)], 3, []),
    "the earlier one": ([failure(0, 1, 5), failure(1, 1, 2)], 1, [0]),
    "the earlier one, whatever its code": ([failure(0, 1, 5), failure(1, 143, 2)], 1, [0]),
    "same second: not the one that lost a peer": ([failure(0, 134), failure(1, 1)], 1, [0]),
    "same second: not the one whose log names a peer": (
        [failure(0, 1, log=("Connection reset by peer",)), failure(1, 1)],
        1,
        [0],
    ),
    "same second and kind: the one that started first": ([failure(0, 1, began=-5), failure(1, 1, began=-9)], 1, [0]),
    "all alike: the lowest index": ([failure(2), failure(1), failure(0)], 0, [1, 2]),
    "unknown times come last": ([failure(0, 1, None), failure(1, 1, 9)], 1, []),
    "within the time-out of a collective": ([failure(0, 1, 0), failure(1, 1, 600)], 0, [1]),
    "after it": ([failure(0, 1, 0), failure(1, 1, 601)], 0, []),
    "after it, but in the words of gloo": (
        [failure(0, 1, 0), failure(1, 1, 1800, log=("[gloo/transport/tcp] Timed out waiting 1800000ms for recv",))],
        0,
        [1],
    ),
    "SIGTERM half an hour later": ([failure(0, 1, 0), failure(1, 143, 1800)], 0, [1]),
    "SIGTERM an hour later": ([failure(0, 1, 0), failure(1, 143, 3600)], 0, []),
    "started after the first one ended": ([failure(0, 1, 0), failure(1, 1, 30, began=10)], 0, []),
}


@pytest.mark.parametrize("row", ORDERS.values(), ids=ORDERS)
def test_the_first_failure_is_the_cause(row: tuple[list[Failure], int, list[int]]):
    failures, cause, consequences = row
    for shuffled in (failures, failures[::-1]):
        marked = mark_consequences(shuffled)
        assert marked[0].index == cause
        assert not marked[0].consequence
        assert sorted(each.index or 0 for each in marked if each.consequence) == consequences
        assert marked[0].others == len(failures) - 1
        found = find_cause(shuffled)
        assert found is not None
        assert (found.index, found.others) == (cause, len(failures) - 1)


LOST_A_PEER = {
    "python sockets": "ConnectionResetError: [Errno 104] Connection reset by peer",
    "gloo": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.0.0.1]:1: abort",
    "gloo timeout": "RuntimeError: [tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
    "nccl watchdog": "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "nccl remote": "ncclRemoteError: A call failed possibly due to a network error.",
    "tcp store": "torch.distributed.DistNetworkError: Connection was closed by peer",
    "pipe": "BrokenPipeError: [Errno 32] Broken pipe",
    "not yet there": "ConnectionRefusedError: [Errno 111] Connection refused",
    "jax": "Terminating process because the JAX distributed service detected fatal errors: heartbeat timeout",
}


@pytest.mark.parametrize("text", LOST_A_PEER.values(), ids=LOST_A_PEER)
def test_last_words_of_a_program_that_lost_a_peer(text: str):
    ordinary, follower = failure(1, 1, 0), failure(0, 1, 0, log=log_lines(text))
    assert mark_consequences([follower, ordinary])[0].index == 1


@pytest.mark.parametrize("text", ["ValueError: bad data", "loss=0.3", "CUDA out of memory", "timeout=30 in config"])
def test_ordinary_last_words(text: str):
    assert mark_consequences([failure(0, 1, 0, log=log_lines(text)), failure(1, 1, 0)])[0].index == 0


PASTS: dict[str, tuple[list[Failure], list[Failure], int, int]] = {
    # what happened -> (standing, past, index of the cause, others)
    "nothing stands: the latest": ([], [failure(0, 1, 0), failure(1, 1, 700, began=-9)], 1, 0),
    "nothing stands: what the latest follows from": ([], [failure(0, 1, 0), failure(1, 1, 300)], 0, 1),
    "a peer of the one that was restarted": ([failure(1, 134, 20)], [failure(0, 1, 0)], 0, 1),
    "a third one, counted on": ([failure(2, 134, 20)], [failure(0, 1, 0, others=1)], 0, 2),
    "again the same replica": ([failure(0, 1, 20, began=10)], [failure(0, 1, 0)], 0, 0),
    "a crash loop with SIGABRT": ([failure(0, 134, 20, began=10)], [failure(0, 134, 0)], 0, 0),
    "another one that began later": ([failure(1, 1, 20, began=10)], [failure(0, 1, 0)], 1, 0),
    "another one long after": ([failure(1, 1, 7200)], [failure(0, 1, 0)], 1, 0),
    "seen in the wrong order": ([failure(0, 1, -5)], [failure(1, 134, 0)], 0, 1),
}


@pytest.mark.parametrize("row", PASTS.values(), ids=PASTS)
def test_a_past_failure_is_the_cause_of_what_follows_from_it(row: tuple[list[Failure], list[Failure], int, int]):
    standing, past, index, others = row
    found = find_cause(standing, past)
    assert found is not None
    assert (found.index, found.others) == (index, others)
    assert found.at == min(each.at for each in (*standing, *past) if each.index == index and each.at) or standing


def test_nothing_has_failed():
    assert find_cause([]) is None
    assert mark_consequences([]) == []


# How a pod ended ------------------------------------------------------------------------------------------------------


def terminated(code: int = 1, end: float | None = 0, begin: float | None = -60, **more: Any) -> Json:
    times = {"startedAt": begin if begin is None else stamp(begin), "finishedAt": end if end is None else stamp(end)}
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **times, **more}}


def ended_pod(
    *containers: Json, now: bool = True, spec: Json | None = None, deleted: float | None = None, **status: Any
) -> Pod:
    metadata: Json = {"name": "j-worker-0", "namespace": "ns", "uid": "u", "creationTimestamp": stamp(-100)}
    if deleted is not None:
        metadata |= {"deletionTimestamp": stamp(deleted + 30), "deletionGracePeriodSeconds": 30}
    raw = {"metadata": metadata, "spec": {"nodeName": "n1", **(spec or {})}, "status": {"phase": "Failed", **status}}
    if containers:
        raw["status"]["containerStatuses"] = list(containers)
    return decode_pod(json.dumps(raw).encode())


def container(state: Json, name: str = "pytorch", restarts: int = 0, last: Json | None = None) -> Json:
    return {"name": name, "restartCount": restarts, "state": state, "lastState": last or {}}


def disruption(reason: str, when: float = 0) -> Json:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": stamp(when)}


ENDS: dict[str, tuple[Pod, dict[str, object]]] = {
    "exit code": (ended_pod(container(terminated(1))), {"exit_code": 1, "reason": "Error", "at": at(0), "attempt": 1}),
    "signal": (ended_pod(container(terminated(139))), {"exit_code": 139, "signal": "SIGSEGV"}),
    "signal without a code": (ended_pod(container(terminated(0, signal=9))), {"exit_code": 137, "signal": "SIGKILL"}),
    "out of memory": (
        ended_pod(container(terminated(137, reason="OOMKilled"))),
        {"exit_code": 137, "reason": "OOMKilled", "signal": "SIGKILL"},
    ),
    "the main container counts": (
        ended_pod(container(terminated(3, -9), "proxy"), container(terminated(4, 0))),
        {"exit_code": 4, "container": "pytorch", "at": at(0)},
    ),
    "else the first": (
        ended_pod(container(terminated(3, 0), "b"), container(terminated(4, -9), "a"), container(terminated(0))),
        {"exit_code": 4, "container": "a"},
    ),
    "an init container": (
        ended_pod(initContainerStatuses=[container(terminated(2), "init")]),
        {"exit_code": 2, "container": "init"},
    ),
    "evicted": (
        ended_pod(
            reason="Evicted",
            message="The node was low on resource: memory.",
            conditions=[disruption("TerminationByKubelet", -3)],
        ),
        {"exit_code": None, "reason": "Evicted", "message": "The node was low on resource: memory.", "at": at(-3)},
    ),
    "evicted with an end": (
        ended_pod(container(terminated(137, -1)), reason="Evicted"),
        {"exit_code": 137, "reason": "Evicted", "at": at(-1)},
    ),
    "preempted": (
        ended_pod(container(terminated(143, 1)), conditions=[disruption("PreemptionByScheduler", -1)], deleted=-1),
        {"exit_code": None, "reason": "PreemptionByScheduler", "at": at(-1)},
    ),
    "node lost": (
        ended_pod(reason="NodeLost", conditions=[disruption("DeletionByTaintManager")]),
        {"reason": "NodeLost"},
    ),
    "unknown end": (
        ended_pod(
            container(terminated(137, None, None, reason="ContainerStatusUnknown")),
            conditions=[disruption("DeletionByPodGC", -2)],
        ),
        {"exit_code": None, "reason": "DeletionByPodGC", "at": at(-2)},
    ),
    "deleted": (
        ended_pod(container(terminated(143, 0)), deleted=-2),
        {"reason": "Deleted", "exit_code": None, "at": at(-2)},
    ),
    "deleted while it runs": (
        ended_pod(container({"running": {}}), deleted=-2, phase="Running"),
        {"reason": "Deleted", "exit_code": None, "at": at(-2)},
    ),
    "failed before its deletion": (
        ended_pod(container(terminated(1, -9)), deleted=-2),
        {"reason": "Error", "exit_code": 1},
    ),
    "stopped in a crash loop": (
        ended_pod(container(terminated(143, -1), restarts=2, last=terminated(1, -9)), deleted=-2),
        {"exit_code": 1, "at": at(-9), "attempt": 2},
    ),
    "attempts of the kubelet": (ended_pod(container(terminated(1), restarts=3)), {"attempt": 4}),
    "no facts": (ended_pod(), {"reason": "", "exit_code": None}),
}


@pytest.mark.parametrize("row", ENDS.values(), ids=ENDS)
def test_how_a_pod_ended(row: tuple[Pod, dict[str, object]]):
    pod, expected = row
    found = failure_of(pod, Place("Worker", 0, 1, "pytorch"), at(10))
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.role, found.index, found.rank, found.pod, found.node) == ("Worker", 0, 1, "j-worker-0", "n1")


CLOCKS: dict[str, tuple[float, float | None, float, float]] = {
    # clock of the node -> (seconds that it is ahead, seconds from binding to the kubelet, end by the true clock, named)
    "right": (0, 1, 60, 60),
    "a second ahead": (1, 1, 60, 61),
    "an hour behind": (-3600, 1, 60, 59),
    "an hour behind, after two hours": (-3600, 1, 7200, 7199),
    "an hour ahead": (3600, 1, 60, 59),
    "right, but the kubelet was late": (0, 1200, 2000, 2000),
    "an hour behind, start unknown": (-3600, None, 60, 0),
}


@pytest.mark.parametrize("row", CLOCKS.values(), ids=CLOCKS)
def test_a_wrong_clock_of_a_node_is_corrected(row: tuple[float, float | None, float, float]):
    ahead, late, end, named = row
    status: Json = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(0)}]}
    if late is not None:
        status["startTime"] = stamp(late + ahead)
    pod = ended_pod(container(terminated(1, end + ahead, end + ahead - 5)), **status)
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, creation_timestamp=stamp(0)))
    found = failure_of(pod, Place("Worker", 0), at(end + 1))
    assert found.at is not None
    assert abs((found.at - at(named)).total_seconds()) <= 1


def test_a_restart_in_place():
    pod = ended_pod(container({"running": {}}, restarts=2, last=terminated(1, -5, message="boom")), phase="Running")
    found = past_failure_of(pod, Place("Worker", 0), at(0))
    assert found is not None
    assert (found.exit_code, found.at, found.attempt, found.log) == (1, at(-5), 2, ("boom",))
    assert past_failure_of(ended_pod(container({"running": {}}), phase="Running"), Place("Worker"), at(0)) is None


def test_a_pod_that_was_stopped_has_not_failed():
    assert was_stopped(ended_pod(container(terminated(143, 0)), deleted=-2), at(9))
    assert not was_stopped(ended_pod(container(terminated(1, -9)), deleted=-2), at(9))
    assert not was_stopped(ended_pod(container(terminated(143, 0))), at(9))


@given(
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["role", "index", "log", "time", "attempt", "exitCode", "failedAfter", "message"]), x
            )
        ),
    )
)
def test_any_stored_value_is_read(raw: object):
    found = read_failure(raw)
    if found is not None:
        assert len(json.dumps(found.as_json())) < 12_000
        assert len(append_cause("x.", found).encode()) <= 1024


# Texts ----------------------------------------------------------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\u202e\x00\x9b1mx\ud800"


def test_hostile_bytes_never_reach_a_text():
    raw = {
        "name": HOSTILE,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "reason": HOSTILE, "message": HOSTILE * 99}},
    }
    status = {"phase": "Failed", "message": HOSTILE, "containerStatuses": [raw]}
    pod = msgspec.convert({"metadata": {"name": HOSTILE}, "spec": {"nodeName": HOSTILE}, "status": status}, Pod)
    found = failure_of(pod, Place("Worker", 0), NOW)
    for text in (json.dumps(found.as_json(), ensure_ascii=False), describe_cause(found)):
        assert text.isprintable(), ascii(text)
        assert "owned" not in text
        assert "red" in text


LINES = {
    "plain": ("a\nb\n", ("a", "b")),
    "empty lines": ("a\n\n  \nb", ("a", "b")),
    "progress bar": ("start\n10%\r50%\r100%\rboom\r\nend", ("start", "boom", "end")),
    "tabs stay": ("\tat x", ("\tat x",)),
    "the last ten": ("\n".join(map(str, range(99))), tuple(map(str, range(89, 99)))),
    "colours": ("\x1b[1;31merror\x1b[0m", ("error",)),
    "nothing": ("", ()),
    "only controls": ("\x00\x1b[2J\r\n", ()),
}


@pytest.mark.parametrize("row", LINES.values(), ids=LINES)
def test_the_end_of_a_log(row: tuple[str, tuple[str, ...]]):
    assert log_lines(row[0]) == row[1]


def test_the_end_of_a_log_is_bounded():
    for text in ("x" * 10_000_000, "é\n" * 1_000_000, "\r" * 1_000_000, "\x1b[" * 500_000, ("y" * 300 + "\n") * 99):
        begun = time.process_time()
        assert sum(len(line.encode()) for line in log_lines(text)) <= 1024
        assert time.process_time() - begun < 2
    assert one_line("a\n b\r\tc" * 1000, 64).isprintable()


WORDS: dict[str, tuple[Failure, str]] = {
    "code": (failure(1, 1), "Worker 1 (pod j-worker-1) exited with code 1 at 2025-06-01T12:00:00Z"),
    "rank and node": (
        failure(1, 1, None, rank=2, node="a"),
        "Worker 1 (rank 2, pod j-worker-1 on node a) exited with code 1",
    ),
    "signal": (failure(1, 139, None), "Worker 1 (pod j-worker-1) was ended by SIGSEGV (exit code 139)"),
    "memory": (
        failure(0, 137, None, reason="OOMKilled"),
        "Worker 0 (pod j-worker-0) was killed because it needed more memory than its limit (OOMKilled, exit code 137)",
    ),
    "evicted": (
        failure(0, None, None, reason="Evicted", message="low on memory."),
        "Worker 0 (pod j-worker-0) was evicted from its node (Evicted): low on memory",
    ),
    "deleted": (
        failure(0, None, None, reason="Deleted"),
        "Worker 0 (pod j-worker-0) was deleted by another client (Deleted)",
    ),
    "not found": (failure(0, 127, None), "Worker 0 (pod j-worker-0) exited with code 127 (the command was not found)"),
    "cannot start": (
        failure(0, 128, None, reason="StartError", log=("no such file",)),
        "Worker 0 (pod j-worker-0) could not start (StartError): no such file",
    ),
    "restarts": (failure(0, 1, None, attempt=3), "Worker 0 (pod j-worker-0) exited with code 1, after 2 restarts"),
    "no facts": (failure(0, None, None, reason=""), "Worker 0 (pod j-worker-0) failed"),
    "a role without an index": (
        Failure("Launcher", pod="j-launcher", exit_code=2),
        "Launcher (pod j-launcher) exited with code 2",
    ),
}


@pytest.mark.parametrize("row", WORDS.values(), ids=WORDS)
def test_the_words_for_a_failure(row: tuple[Failure, str]):
    assert describe(row[0]) == row[1]


def test_the_words_for_a_cause_are_behind_upstreams_and_bounded():
    cause = failure(1, 1, None, others=2, log=("Traceback:", "ValueError: bad"))
    assert append_cause("It failed.", cause) == (
        "It failed. First failure: Worker 1 (pod j-worker-1) exited with code 1; 2 other replicas failed after it."
        " Last output: Traceback: | ValueError: bad"
    )
    assert append_cause("It failed", failure(1, 1, None)).startswith("It failed. First failure: ")
    assert append_cause("It failed", None) == "It failed"
    assert len(append_cause("x" * 900, cause).encode()) <= 1024
    assert append_cause("x" * 900, cause).startswith("x" * 900)


@pytest.mark.parametrize(
    ("code", "name"), [(137, "SIGKILL"), (143, "SIGTERM"), (1, ""), (128, ""), (255, ""), (None, ""), (10**9, "")]
)
def test_signals_by_name(code: int | None, name: str):
    assert signal_name(code) == name


def test_the_status_field_round_trips():
    cause = failure(1, 137, rank=0, node="n", container="c", message="m", log=("a", "b"), others=3, attempt=2)
    assert cause.as_json() == {
        "role": "Worker",
        "index": 1,
        "rank": 0,
        "pod": "j-worker-1",
        "node": "n",
        "container": "c",
        "exitCode": 137,
        "signal": "SIGKILL",
        "reason": "Error",
        "message": "m",
        "attempt": 2,
        "time": stamp(0),
        "log": ["a", "b"],
        "failedAfter": 3,
    }
    again = read_failure(json.loads(json.dumps(cause.as_json())))
    assert again is not None
    assert again.as_json() == cause.as_json()
    assert failure(0, 0, None).as_json()["index"] == 0


# In plans -------------------------------------------------------------------------------------------------------------


def running_world(policy: str, worker: int = 3, **fields: Any) -> World:
    world = World(make_job(1, worker, policy=policy, **fields))
    world.settle()
    world.run()
    world.settle()
    return world


def end(world: World, name: str, code: int, when: float = 0, message: str = "", begin: float = -60) -> None:
    state = {"name": "pytorch", "state": terminated(code, when, begin, message=message)}
    world.set_pod(name, "Failed", containerStatuses=[state])


def last(world: World) -> Json:
    found: Json = world.status["lastFailure"]
    return found


def test_the_culprit_is_named_and_not_its_victims():
    world = running_world("Never")
    end(world, "j-master-0", 134, 5)
    end(world, "j-worker-0", 1, 3, "Connection reset by peer")
    end(world, "j-worker-1", 1, 1, "Traceback\nValueError: bad")
    world.settle()
    assert (last(world)["role"], last(world)["index"], last(world)["rank"]) == ("Worker", 1, 2)
    assert last(world)["failedAfter"] == 2
    assert last(world)["log"] == ["Traceback", "ValueError: bad"]
    message = world.status["conditions"][-1]["message"]
    assert message == Upstream("PyTorchJob j is failed because 1 Master replica(s) failed.")
    assert message.endswith("2 other replicas failed after it. Last output: Traceback | ValueError: bad")
    assert world.event_messages("PyTorchJobFailed") == [message]


def test_it_stays_when_the_pods_are_gone():
    world = running_world("Never", run={"cleanPodPolicy": "All"})
    end(world, "j-worker-1", 3)
    world.settle()
    world.reap()
    world.settle()
    assert world.pods == {}
    assert (last(world)["pod"], last(world)["exitCode"]) == ("j-worker-1", 3)


def test_pods_that_the_operator_deletes_are_never_the_cause():
    world = running_world("OnFailure", annotations={RESTART_SCOPE: "job"})
    end(world, "j-worker-1", 1, 10)
    world.pass_time(10)
    world.settle()
    for name in ("j-master-0", "j-worker-0", "j-worker-2"):
        assert world.pods[name]["metadata"]["deletionTimestamp"]
        end(world, name, 143, 9)
    world.settle()
    assert (last(world)["index"], last(world)["exitCode"]) == (1, 1)
    assert "failedAfter" not in last(world)


def test_a_victim_of_an_earlier_restart_does_not_hide_its_cause():
    world = running_world("OnFailure")
    end(world, "j-worker-1", 1, 0)
    world.settle()
    end(world, "j-worker-0", 134, 5)
    end(world, "j-worker-2", 1, 6)
    world.pass_time(6)
    world.settle()
    assert (last(world)["index"], last(world)["failedAfter"]) == (1, 2)
    world.reap()
    world.settle()
    world.run()
    world.settle()
    world.pass_time(600)
    world.settle()
    world.run()
    world.settle()
    end(world, "j-worker-2", 1, 660, begin=630)
    world.pass_time(60)
    world.settle()
    assert (last(world)["index"], last(world)["attempt"], last(world).get("failedAfter")) == (2, 4, None)


def test_every_restart_is_explained_by_one_event():
    world = running_world("OnFailure")
    end(world, "j-worker-1", 139)
    made = world.step()
    (event,) = (each for each in made.transitions if isinstance(each, Event))
    assert event.message == (
        "job j is restarting because Worker replica(s) failed. First failure: Worker 1 (rank 2, pod j-worker-1) was "
        "ended by SIGSEGV (exit code 139) at 2025-06-01T12:00:00Z."
    )
    assert written(made)["conditions"][-1]["message"] == event.message


def test_restarts_in_place_are_remembered_without_a_write():
    pod = make_pod(status={"containerStatuses": [container({"running": {}}, restarts=1, last=terminated(7, -5))]})
    status = status_of(CREATED, RUNNING, replicaStatuses={"Master": {"active": 1}, "Worker": {"active": 1}})
    job = make_job(1, 1, policy="OnFailure", status=status, run={"backoffLimit": 3})
    steady = plan_for(job, [make_pod("master"), make_pod()])
    settled = {**job, "status": steady.status or status}
    assert plan_for(settled, [make_pod("master"), pod]).status is None
    limited = plan_for({**job, "spec": {**job["spec"], "runPolicy": {"backoffLimit": 1}}}, [make_pod("master"), pod])
    assert written(limited)["lastFailure"]["exitCode"] == 7
    assert written(limited)["conditions"][-1]["message"] == Upstream(
        "Job j has failed because it has reached the specified backoff limit"
    )


def test_a_deadline_blames_nobody_who_runs():
    world = running_world("OnFailure", run={"activeDeadlineSeconds": 60})
    end(world, "j-worker-1", 1)
    world.settle()
    world.reap()
    world.settle()
    world.run()
    world.settle()
    world.pass_time(60)
    world.settle()
    assert last(world) == {
        "reason": "DeadlineExceeded",
        "message": "4 of 4 replicas were running",
        "time": stamp(60),
    }
    assert world.status["conditions"][-1]["message"].endswith("No replica had failed: 4 of 4 replicas were running.")


def test_a_deadline_in_a_crash_loop_blames_the_crash():
    world = running_world("OnFailure", run={"activeDeadlineSeconds": 60})
    end(world, "j-master-0", 9)
    world.settle()
    world.pass_time(60)
    world.settle()
    assert (last(world)["role"], last(world)["exitCode"]) == ("Master", 9)


def test_a_deadline_in_a_crash_loop_within_the_pod_blames_the_crash():
    world = running_world("OnFailure", run={"activeDeadlineSeconds": 60})
    looping = container({"waiting": {"reason": "CrashLoopBackOff"}}, restarts=3, last=terminated(7, 55))
    world.set_pod("j-worker-1", "Running", containerStatuses=[looping])
    world.pass_time(60)
    world.settle()
    assert (last(world)["index"], last(world)["exitCode"], last(world)["attempt"]) == (1, 7, 3)


def test_a_limit_without_any_evidence_says_so():
    world = running_world("OnFailure", run={"backoffLimit": 2})
    world.set_pod("j-worker-1", "Running", containerStatuses=[container({"running": {}}, restarts=2)])
    world.settle()
    assert last(world)["reason"] == "BackoffLimitExceeded"
    assert world.status["conditions"][-1]["message"].endswith("It is not known how the restarted containers ended.")


def test_a_pod_that_another_client_deleted():
    world = running_world("Never")
    world.delete("j-worker-2")
    world.settle()
    world.reap()
    world.settle()
    assert (last(world)["pod"], last(world)["reason"], last(world)["rank"]) == ("j-worker-2", "Deleted", 3)


def test_a_refused_job():
    job = make_job(1, 1)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = {}
    world = World(job)
    world.settle()
    assert last(world)["reason"] == "FailedValidation"
    assert last(world)["message"] in world.status["conditions"][-1]["message"]


def test_a_job_that_succeeds_has_none():
    world = running_world("Never")
    world.end("j-master-0", 0)
    world.settle()
    assert world.is_true("Succeeded")
    assert "lastFailure" not in world.status


def test_ten_thousand_pods_that_fail_at_once_take_no_longer_than_a_second():
    def failed(index: int) -> Pod:
        state = terminated(1 if index == 5_000 else 134, 1, message="x" * 700)
        return make_pod(index=index, phase="Failed", status={"containerStatuses": [container(state)]})

    pods = [failed(index) for index in range(10_000)]
    job = make_job(None, 10_000, policy="Never", status=status_of(CREATED, RUNNING))
    begun = time.process_time()
    made = plan_for(job, pods[::-1])
    assert time.process_time() - begun < 4
    assert (written(made)["lastFailure"]["index"], written(made)["lastFailure"]["failedAfter"]) == (5_000, 9_999)
    assert not any(pod_deleted(action) for action in made.actions)


def test_old_entries_of_the_window():
    """Failures that are further apart than a collective waits are two episodes."""
    first = failure(0, 1, 0)
    later = failure(1, 1, timedelta(minutes=11).total_seconds())
    assert not mark_consequences([first, later])[1].consequence
