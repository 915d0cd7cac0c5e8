"""`tell` puts the story of a job together from its status, pods and events; it never raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.explain.situations import NOW, Json, ago
from tests.explain.test_why import JSON, STORED_EVENT, STORED_POD, broken
from trainop.commands.describe import FIRST_STEPS, LAST_STEPS, render
from trainop.engine.phases import Phase
from trainop.explain.story import Step, Story, tell
from trainop.explain.story.timeline import lasted
from trainop.explain.why import Evidence, PodFacts, read_pod
from trainop.explain.why.evidence import read_events
from trainop.programs.schemes import FRAMEWORKS

LABELS = "training.kubeflow.org/"
BEGIN = 1000.0
"""Seconds before `NOW` at which the jobs were created. All times here count from there."""


def moment(seconds: float) -> str:
    return ago(BEGIN - seconds)


def condition(type_: str, since: float, status: str = "True", reason: str = "R", message: str = "m.") -> Json:
    fields = {"type": type_, "status": status, "reason": reason, "message": message}
    return fields | {"lastTransitionTime": moment(since)}


def job(*conditions: Json, kind: str = "PyTorchJob", **status: Any) -> Json:
    specs = "mpiReplicaSpecs" if kind == "MPIJob" else "pytorchReplicaSpecs"
    if kind in FRAMEWORKS:
        specs = FRAMEWORKS[kind].replica_specs
    metadata = {"name": "j", "namespace": "team", "uid": "uid-j", "creationTimestamp": moment(0)}
    spec = {specs: {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}}
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": {"conditions": list(conditions), **status}}


def event(
    reason: str,
    at: float,
    name: str = "j",
    message: str = "m",
    *,
    kind: str = "PyTorchJob",
    uid: str = "uid-j",
    last: float | None = None,
    ahead: float = 0,
    part: str = "",
    **source: str,
) -> Json:
    """An event whose reporter's clock is `ahead`."""
    return {
        "metadata": {"creationTimestamp": moment(at)},
        "involvedObject": {"kind": kind, "name": name, "uid": uid, "fieldPath": part},
        "source": source,
        "reason": reason,
        "message": message,
        "count": 1 if last is None else 2,
        "firstTimestamp": moment(at + ahead),
        "lastTimestamp": moment((at if last is None else last) + ahead),
    }


def pod(
    name: str = "worker-0",
    created: float = 3,
    scheduled: float = 4,
    started: float | None = 10,
    ended: float | None = None,
    code: int = 0,
    *,
    ahead: float = 0,
    node: str = "node-a",
    uid: str = "",
    restarts: int = 0,
    last: Mapping[str, Any] | None = None,
) -> Json:
    role, _, index = name.partition("-")
    state: Json = {"waiting": {"reason": "ContainerCreating"}}
    if started is not None:
        state = {"running": {"startedAt": moment(started + ahead)}}
    if ended is not None and started is not None:
        times = {"startedAt": moment(started + ahead), "finishedAt": moment(ended + ahead)}
        state = {"terminated": {"exitCode": code, **times}}
    container = {"name": "pytorch", "state": state, "restartCount": restarts, "lastState": dict(last or {})}
    return {
        "metadata": {
            "name": f"j-{name}",
            "uid": uid or f"uid-{name}",
            "creationTimestamp": moment(created),
            "labels": {f"{LABELS}replica-type": role, f"{LABELS}replica-index": index},
        },
        "spec": {"nodeName": node, "containers": [{"name": "pytorch"}]},
        "status": {
            "phase": "Running",
            "startTime": moment(scheduled + ahead),
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": moment(scheduled)}],
            "containerStatuses": [container],
        },
    }


def seen(raw: Json, *pods: Json, events: tuple[Json, ...] = (), **fields: Any) -> Evidence:
    facts = tuple(map(read_pod, pods))
    found = read_events(events, raw, [each.name for each in facts])
    return Evidence(kind=raw["kind"], job=raw, now=NOW, pods=facts, events=found, **fields)


Line = tuple[float, str, float | None]


def lines(story: Story) -> list[Line]:
    """Time, name and duration of each step."""
    begin = NOW - timedelta(seconds=BEGIN)
    return [((step.at - begin).total_seconds() if step.at else -1, step.name, step.seconds) for step in story.steps]


def phases(story: Story) -> list[Line]:
    return [line for line, step in zip(lines(story), story.steps, strict=True) if not step.of_replicas]


def step(story: Story, name: str) -> Step:
    return next(each for each in story.steps if each.name == name)


CREATED = condition("Created", 0)
RUNNING = job(CREATED, condition("Running", 12), startTime=moment(3))
SUCCEEDED = job(
    CREATED, condition("Running", 12, "False"), condition("Succeeded", 80, message="all done."),
    startTime=moment(3), completionTime=moment(80),
)  # fmt: skip
RESTART = "job j is restarting because Worker replica(s) failed. First failure: Worker 1 (rank 2, pod j-worker-1) {}."
FAILED_POD: Json = {
    "role": "Worker", "index": 1, "pod": "j-worker-1", "exitCode": 130, "time": moment(49), "log": ["lost a lease"],
}  # fmt: skip
AGAIN = job(
    CREATED, condition("Running", 60, "False"), condition("Succeeded", 100), lastFailure=FAILED_POD,
    startTime=moment(3), completionTime=moment(100),
)  # fmt: skip

TABLE: dict[str, tuple[Evidence, str, list[Line]]] = {
    "not yet seen by an operator": (
        seen({**job(), "status": {}}),
        "Pending",
        [(0, "created", None), (0, "pending", 1000)],
    ),
    "suspended by its user or a queue": (
        seen(job(CREATED, condition("Suspended", 1))),
        "Suspended",
        [(0, "created", None), (1, "suspended", 999)],
    ),
    "running": (
        seen(RUNNING),
        "Running",
        [(0, "created", None), (0, "pending", 3), (3, "starting", 9), (12, "running", 988)],
    ),
    "succeeded, pods and events gone": (
        seen(SUCCEEDED),
        "Succeeded",
        [(0, "created", None), (0, "pending", 3), (3, "starting", 9), (12, "running", 68), (80, "succeeded", None)],
    ),
    "resumed, the event of the suspension is gone": (
        seen(job(CREATED, condition("Suspended", 40, "False"), condition("Running", 50), startTime=moment(41))),
        "Running",
        [
            (0, "created", None), (0, "suspended", 40), (40, "pending", 1), (41, "starting", 9), (50, "running", 950),
        ],
    ),
    "suspended while it ran, and resumed": (
        seen(
            job(
                CREATED, condition("Running", 70), condition("Suspended", 60, "False", "PyTorchJobResumed"),
                startTime=moment(62),
            ),
            events=(
                event("PyTorchJobSuspended", 30),
                event("PyTorchJobResumed", 60),
                event("Started", 10, "j-worker-0", kind="Pod", uid="old"),
                event("Scheduled", 4, "j-worker-0", kind="Pod", uid="old"),
            ),
        ),
        "Running",
        [
            (0, "created", None), (0, "pending", 30), (30, "suspended", 30), (60, "pending", 2), (62, "starting", 8),
            (70, "running", 930),
        ],
    ),
    "restarted anew": (
        seen(
            AGAIN,
            pod("worker-1", 51, 52, 58),
            events=(
                event("PyTorchJobRestarting", 50, message=RESTART.format("exited with code 130")),
                event("Scheduled", 4, "j-worker-1", kind="Pod", uid="old", component="default-scheduler"),
                event("Started", 12, "j-worker-1", kind="Pod", uid="old", host="node-a"),
            ),
        ),
        "Succeeded",
        [
            (0, "created", None), (0, "pending", 3), (3, "starting", 9), (12, "running", 38), (50, "restarting", 10),
            (60, "running", 40), (100, "succeeded", None),
        ],
    ),
    "restarted in place": (
        seen(
            RUNNING,
            pod(restarts=3, last={"terminated": {"exitCode": 1, "finishedAt": moment(90), "message": "last words"}}),
        ),
        "Running",
        [
            (0, "created", None), (0, "pending", 3), (3, "starting", 9), (12, "running", 988),
            (90, "restarted_in_place", None),
        ],
    ),
    "deleted meanwhile": (
        seen(RUNNING, vanished=True),
        "Deleted",
        [
            (0, "created", None), (0, "pending", 3), (3, "starting", 9), (12, "running", 988), (1000, "deleted", None),
        ],
    ),
    "two restarts in the same second": (
        seen(
            job(CREATED, condition("Restarting", 50), startTime=moment(3)),
            events=(
                event("PyTorchJobRestarting", 50, message=RESTART.format("one")),
                event("PyTorchJobRestarting", 50, message=RESTART.format("two")),
            ),
        ),
        "Restarting",
        [
            (0, "created", None), (0, "pending", 3), (3, "starting", 47), (50, "restarting", 0),
            (50, "restarting", 950),
        ],
    ),
    "an event that was repeated": (
        seen(RUNNING, events=(event("PyTorchJobSuspended", 5, last=8),)),
        "Running",
        [
            (0, "created", None), (0, "pending", 3), (3, "starting", 2), (5, "suspended", 7), (12, "running", 988),
        ],
    ),
    "queued by Kueue": (
        seen(
            job(CREATED, condition("Suspended", 0)),
            workloads=(
                {
                    "metadata": {"creationTimestamp": moment(1)},
                    "spec": {"queueName": "gpu"},
                    "status": {
                        "conditions": [condition("QuotaReserved", 20), condition("Evicted", 30, "False")],
                    },
                },
            ),
        ),
        "Suspended",
        [
            (0, "created", None), (0, "suspended", 1000), (1, "queued", None), (20, "quotareserved", None),
        ],
    ),
    "waiting for its gang": (
        seen(
            job(CREATED),
            group={
                "metadata": {"creationTimestamp": moment(1)},
                "spec": {"minMember": 3},
                "status": {"phase": "Inqueue", "conditions": [condition("Scheduled", 9)]},
            },
        ),
        "Pending",
        [(0, "created", None), (0, "pending", 1000), (1, "gang", None), (9, "gang_scheduled", None)],
    ),
    "being deleted": (
        seen({**RUNNING, "metadata": {**RUNNING["metadata"], "deletionTimestamp": moment(500)}}),
        "Running",
        [
            (0, "created", None), (0, "pending", 3), (3, "starting", 9), (12, "running", 988), (500, "deleting", None),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_phases_of_a_story(name: str):
    evidence, state, expected = TABLE[name]
    story = tell(evidence)
    assert (story.state, phases(story)) == (state, expected)
    assert json.dumps(story.as_json())
    assert max(map(len, render("j", story))) < 500


@pytest.mark.parametrize("kind", [*FRAMEWORKS, "MPIJob"])
def test_every_kind(kind: str):
    raw = job(
        CREATED, condition("Running", 12, "False"), condition("Failed", 80),
        kind=kind, startTime=moment(3), completionTime=moment(80),
    )  # fmt: skip
    events = (
        event(f"{kind}Restarting", 30, kind=kind, message="restarting. First failure: Worker 1 exited."),
        event("Scheduled", 4, "j-worker-1", kind="Pod", uid="old"),
    )
    story = tell(seen(raw, pod(), events=events))
    assert [name for _, name, _ in phases(story)] == [
        "created", "pending", "starting", "running", "restarting", "failed",
    ]  # fmt: skip
    assert step(story, "restarting").text == "restarting: Worker 1 exited"
    assert step(story, "created").text == "created with 1 Master, 2 Worker"


def test_a_dijob():
    raw = job(CREATED, condition("Running", 50, "False"), condition("Succeeded", 50), kind="DIJob", phase="Succeeded")
    raw["spec"] = {}
    events = (event("Started", 10, "j-coordinator", kind="Pod", uid="c"),)
    story = tell(seen(raw, events=events))
    assert story.state == "Succeeded"
    assert [name for _, name, _ in lines(story)] == ["created", "pending", "started", "succeeded"]


def test_the_phases_are_those_of_the_metric():
    names = {name for evidence, _, _ in TABLE.values() for _, name, _ in lines(tell(evidence))}
    assert {phase.value for phase in Phase if phase is not Phase.FINISHED} <= names


# Restarts -------------------------------------------------------------------------------------------------------------


def test_a_restart_has_its_cause_and_the_last_lines():
    found = step(tell(TABLE["restarted anew"][0]), "restarting")
    assert found.text == "restarting: Worker 1 (rank 2, pod j-worker-1) exited with code 130"
    assert found.evidence == ("lost a lease",)


def test_without_its_event_a_restart_has_the_cause_of_the_status():
    raw = job(CREATED, condition("Restarting", 50), startTime=moment(3), lastFailure=FAILED_POD)
    found = step(tell(seen(raw)), "restarting")
    assert found.text.startswith("restarting: Worker 1 (pod j-worker-1) was ended by SIGINT (exit code 130)")
    raw["status"]["lastFailure"] = {**FAILED_POD, "time": moment(-400)}
    assert step(tell(seen(raw)), "restarting").text == "restarting; its event, which names the cause, is gone"


def test_the_lines_in_an_event_are_shown_if_the_status_has_another_failure():
    message = RESTART.format("exited with code 1. Last output: first | second").rstrip(".")
    raw = job(
        CREATED, condition("Restarting", 50), startTime=moment(3), lastFailure={**FAILED_POD, "time": moment(400)}
    )
    found = step(tell(seen(raw, events=(event("PyTorchJobRestarting", 50, message=message),))), "restarting")
    assert found.text.endswith("exited with code 1")
    assert found.evidence == ("first", "second")


def test_a_restart_in_place_names_the_replica_and_its_last_words():
    found = step(tell(TABLE["restarted in place"][0]), "restarted_in_place")
    assert found.text == "worker-0: container pytorch was restarted in place 3 times; it ended with code 1 last"
    assert found.evidence == ("last words",)
    many = [pod(f"worker-{n}", restarts=n) for n in range(1, 4)]
    text = step(tell(seen(RUNNING, *many)), "restarted_in_place").text
    assert text == "worker-3: container pytorch was restarted in place 3 times; 3 containers 6 times in all"


def test_restarts_that_the_history_counts_are_noted():
    raw = {**RUNNING, "metadata": {**RUNNING["metadata"], "annotations": {
        "trainop.kubeflow.org/restarts": json.dumps({"job": "uid-j", "failures": 2, "disruptions": 1}),
    }}}  # fmt: skip
    assert tell(seen(raw)).notes == (
        "restarts since the job was created or resumed: 3, of which 1 after disruptions; their events are gone",
        "its pods are gone, and so are their events, which Kubernetes keeps for an hour by default",
    )


# Replicas -------------------------------------------------------------------------------------------------------------


def of_replicas(story: Story) -> list[Line]:
    return [line for line, each in zip(lines(story), story.steps, strict=True) if each.of_replicas]


def test_the_steps_of_one_pod():
    events = (
        event("Pulling", 5, "j-worker-0", kind="Pod", uid="uid-worker-0", host="node-a"),
        event("Pulled", 8, "j-worker-0", kind="Pod", uid="uid-worker-0", host="node-a"),
        event("Pulled", 6, "j-worker-0", kind="Pod", uid="uid-worker-0", part="spec.initContainers{i}"),
        event("Pulled", 70, "j-worker-0", kind="Pod", uid="uid-worker-0", message="a later run of the container"),
    )
    story = tell(seen(SUCCEEDED, pod(ended=79), events=events))
    assert of_replicas(story) == [(4, "scheduled", 1), (8, "pulled", 3), (10, "started", 2), (79, "ended", None)]
    assert step(story, "scheduled").text == "worker-0: scheduled to node-a"
    assert step(story, "ended").text == "worker-0: ended with code 0"


def test_steps_of_the_same_second_are_in_their_order():
    story = tell(seen(SUCCEEDED, pod(created=0, scheduled=3, started=12, ended=80)))
    assert [name for _, name, _ in lines(story)] == [
        "created", "pending", "starting", "scheduled", "started", "running", "ended", "succeeded",
    ]  # fmt: skip


def test_init_containers():
    raw = pod()
    raw["spec"]["initContainers"] = [{"name": "init"}]
    raw["status"]["conditions"].append({"type": "Initialized", "status": "True", "lastTransitionTime": moment(9)})
    story = tell(seen(RUNNING, raw, pod("master-0")))
    assert (9, "initialized", 5) in of_replicas(story)
    assert step(story, "initialized").text == "worker-0: init containers ended"


def test_a_thousand_pods_are_one_line_and_the_outlier_is_named():
    pods = [pod(f"worker-{n}", scheduled=4 + n % 3, started=10 + n % 3) for n in range(999)]
    pods.append(pod("worker-999", scheduled=94, started=100))
    story = tell(seen(RUNNING, *pods))
    found = step(story, "scheduled")
    assert (found.seconds, found.until) == (91, NOW - timedelta(seconds=BEGIN - 94))
    assert found.text == (
        "all 1,000 pods: scheduled; first 1 s, median 2 s, last 91 s (worker-999); worker-999 is far behind"
    )
    assert step(story, "started").spread is not None
    assert found.as_json()["replicas"] == {"count": 1000, "first": 1, "median": 2, "last": 91, "outlier": "worker-999"}
    assert len(of_replicas(story)) == 2


def test_some_pods_are_counted():
    story = tell(
        seen(RUNNING, pod("worker-0", started=None), pod("master-0", ended=20, code=3), pod("worker-1", ended=21))
    )
    assert step(story, "started").text.startswith("2 of 3 pods: containers started")
    assert step(story, "ended").text == "2 of 3 pods: ended master-0 with code 3, worker-1 with code 0"


def test_pods_that_are_gone_are_known_by_their_events_and_others_are_not_taken_for_them():
    events = (
        event("Scheduled", 4, "j-worker-0", kind="Pod", uid="a"),
        event("Started", 7, "j-worker-0", kind="Pod", uid="a"),
        event("Started", 8, "j-2-worker-0", kind="Pod", uid="b"),
        event("Started", 9, "j-launcher-x7k2p", kind="Pod", uid="c"),
    )
    story = tell(seen(SUCCEEDED, events=events))
    assert story.notes == ("2 pods are gone, and known by events only",)
    assert of_replicas(story) == [(4, "scheduled", None), (7, "started", 3)]


@pytest.mark.parametrize(
    ("known_by", "ahead"), [("events", 3600), ("events", 240), ("events", -3600), ("pods", 3600), ("pods", -3600)]
)
def test_the_clock_of_a_node_is_off(known_by: str, ahead: int):
    """One that is some minutes ahead is shown by events alone: without them, the pods may have been started late."""
    host = "node-a" if known_by == "events" else ""
    events = (event("Pulled", 8, "j-worker-0", kind="Pod", uid="uid-worker-0", ahead=ahead if host else 0, host=host),)
    story = tell(seen(RUNNING, pod(ahead=ahead), pod("worker-1", node="node-b"), events=events))
    assert of_replicas(story) == [(4, "scheduled", 1), (8, "pulled", 4), (10, "started", 6)]
    way = "ahead of" if ahead > 0 else "behind"
    apart = f"{abs(ahead) // 60} min"
    assert story.notes[0] == f"the clock of node node-a is {apart} {way} the API server's: its times are corrected"
    assert len(story.notes) == 1


def test_many_wrong_clocks_are_digested():
    pods = [pod(f"worker-{n}", node=f"node-{n:03}", ahead=-3600) for n in range(100)]
    notes = tell(seen(RUNNING, *pods)).notes
    assert len(notes) == 6
    assert notes[-1] == "95 more nodes have wrong clocks"


def test_the_replacements_of_a_restart_are_a_start_of_their_own():
    story = tell(TABLE["restarted anew"][0])
    assert of_replicas(story) == [
        (4, "scheduled", None), (12, "started", 8), (52, "scheduled", 1), (58, "started", 6),
    ]  # fmt: skip


# Bad input ------------------------------------------------------------------------------------------------------------


def test_hostile_texts_never_reach_the_terminal():
    evil = "\x1b[2J\x1b]0;title\x07\u202egone\r\n" * 50
    raw = job(
        CREATED, condition("Failed", 80, message=evil), startTime=moment(3), lastFailure=FAILED_POD | {"log": [evil]}
    )
    raw["metadata"]["name"] = evil
    raw["spec"]["pytorchReplicaSpecs"][evil] = {"replicas": 2}
    wrong = pod(evil, node=evil, ahead=-3600, restarts=2, last={"terminated": {"exitCode": 1, "message": evil}})
    events = (event("PyTorchJobRestarting", 50, message=RESTART.format(evil)),)
    workloads = (
        {
            "metadata": {},
            "spec": {"queueName": evil},
            "status": {"conditions": [condition("Evicted", 5, message=evil)]},
        },
    )
    story = tell(seen(raw, wrong, events=events, workloads=workloads, unread=(evil,)))
    shown = "\n".join(render(evil, story, colours=False))
    assert "gone" in shown
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
    assert max(map(len, shown.splitlines())) <= 1000


def test_ten_thousand_pods_and_restarts_are_digested(monkeypatch: pytest.MonkeyPatch):
    """No two pods are ever compared with each other: the cost is linear in their number."""

    def refuse(one: object, other: object) -> bool:
        raise AssertionError("pods are compared in pairs")

    pods = [pod(f"worker-{n}", restarts=n % 2) for n in range(10_000)]
    restarts = [
        event("PyTorchJobRestarting", 20 + n / 20, message=f"{n}. First failure: Worker {n} x.") for n in range(5000)
    ]
    evidence = seen(RUNNING, *pods, events=tuple(restarts))
    monkeypatch.setattr(PodFacts, "__eq__", refuse)
    story = tell(evidence)
    assert step(story, "scheduled").text == "all 10,000 pods: scheduled"
    screen = list(render("j", story))
    assert len(screen) < FIRST_STEPS + LAST_STEPS + 20
    assert any("more steps; -o json has all" in line for line in screen)


def test_what_could_not_be_read_is_said():
    assert (
        list(render("j", tell(seen(RUNNING, unread=("events: forbidden",)))))[-1] == "could not read events: forbidden"
    )


@settings(max_examples=200, deadline=None)
@given(broken(AGAIN), st.lists(broken(STORED_POD) | broken(pod()), max_size=3),
       st.lists(broken(STORED_EVENT) | broken(event("Started", 4, kind="Pod")), max_size=2), JSON)  # fmt: skip
def test_nothing_raises_whatever_the_objects_contain(raw: Any, pods: list[Any], events: list[Any], other: Any):
    raw = raw if isinstance(raw, dict) else {}
    facts = tuple(read_pod(each) for each in pods if isinstance(each, dict))
    found = read_events([each for each in events if isinstance(each, dict)], raw, [each.name for each in facts])
    other = other if isinstance(other, dict) else {}
    evidence = Evidence(
        kind="PyTorchJob", job=raw, now=NOW, pods=facts, events=found, group=other, workloads=(other,)
    )  # fmt: skip
    assert list(render("t", tell(evidence)))


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "never"])
def test_times_at_the_ends_of_the_calendar(at: str):
    text = json.dumps(
        {"job": AGAIN, "pod": pod(ahead=0), "event": event("Started", 4, "j-worker-0", kind="Pod", uid="x")}
    )
    for place in range(text.count("2026-")):
        parts = text.split("2026-")
        head, tail = "2026-".join(parts[: place + 1]), "2026-".join(parts[place + 1 :])
        raw = json.loads(head + at + tail[tail.index('"') :])
        assert list(render("j", tell(seen(raw["job"], raw["pod"], events=(raw["event"],)))))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.6, "1 s"), (119, "119 s"), (120, "2 min"), (125, "2 min 5 s"), (7200, "2 h"), (200_000, "2 d")],
)
def test_durations(seconds: float, text: str):
    assert lasted(seconds) == text


def test_a_day_is_shown_where_it_changes():
    raw = {**RUNNING, "metadata": {**RUNNING["metadata"], "creationTimestamp": ago(100_000)}}
    times = [line.split("  ")[0].strip() for line in render("j", tell(seen(raw)))][3:]
    assert times[0].startswith("2026-11-24 ")
    days = [datetime.strptime(each[:10], "%Y-%m-%d") for each in times if each[4:5] == "-"]  # noqa: DTZ007
    assert len(days) == 2


def test_the_last_report_of_progress_is_a_note():
    metrics = [{"name": "current_step", "value": "370"}, {"name": "total_steps", "value": "1000"}]
    reported = {"progressPercentage": 37, "estimatedRemainingSeconds": 1260, "metrics": metrics}
    at = moment(90)
    story = tell(seen(job(condition("Running", 60), trainerStatus={**reported, "lastUpdatedTime": at})))
    said = "the last report of progress: 37 %, step 370 of 1,000, 21 min left"
    assert f"{said} (at {at})" in story.notes
    assert said in tell(seen(job(condition("Running", 60), trainerStatus=reported))).notes
    assert not any("progress" in note for note in tell(seen(job(condition("Running", 60), trainerStatus={}))).notes)


ACCOUNT = {
    "queuedSeconds": 20,
    "startingSeconds": 0,
    "trainingSeconds": 7200,
    "restartingSeconds": 30,
    "lostSeconds": 600,
    "lastLostSeconds": 600,
    "lostSince": "Checkpoint",
    "goodputPercent": 91,
    "until": moment(10),
}
SPENT = (
    "queued 20 s, training 2 h, restarting 30 s; 10 min of the training were lost since the last reported checkpoint"
)


def test_what_the_time_was_spent_on():
    ended = tell(seen(job(condition("Succeeded", 10), account=ACCOUNT)))
    assert ended.notes[0] == f"its time: {SPENT}; goodput 91 %"
    assert ended.as_json()["account"] == ACCOUNT
    assert f"its time: {SPENT}; goodput 91 %" in list(render("j", ended))
    goes_on = tell(seen(job(condition("Running", 5), account=ACCOUNT | {"lostSince": "Attempt"})))
    until = f"until {moment(10)}".replace("T", " ").replace("Z", "")
    assert goes_on.notes[0].startswith(f"its time, {until}: queued 20 s, ")
    assert "at most 10 min of the training were lost, as not every run reported a checkpoint" in goes_on.notes[0]
    at_once = tell(seen(job(condition("Failed", 10), account={"until": moment(10)})))
    assert at_once.notes[0] == "its time: less than a second"
    assert tell(seen(job(condition("Failed", 10)))).as_json()["account"] is None
