"""Invariants of every plan, tested with generated jobs and histories of pods."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.builders import (
    make_job,
    make_pod,
    make_service,
    manifest_of,
    pod_created,
    replica_created,
    see,
    service_created,
)
from tests.engine.world import World
from trainop.engine.actions import Plan
from trainop.engine.extensions import INFRA_RESTART_LIMIT, RESTART_SCOPE, SERVICE_MODE
from trainop.engine.plan import ignored, plan, reject
from trainop.engine.restart_history import MAX_BACKOFF, RESTARTS
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(
        ["True", "Failed", "Running", "Always", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "-0", "{}"]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=6), st.sampled_from(["name", "type", "status", "spec"])), inner, max_size=3
        ),
    ),
    max_leaves=8,
)


def rich_job() -> Json:
    """A job with a value at every place that the engine reads."""
    job = make_job(
        1,
        2,
        run={"suspend": False, "backoffLimit": 3, "ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 60},
        spec={
            "nprocPerNode": "auto",
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "rdzvConf": [{"key": "a", "value": "b"}]},
        },
        status={
            "startTime": "2025-06-01T11:59:00Z",
            "completionTime": None,
            "conditions": [{"type": "Created", "status": "True", "reason": "PyTorchJobCreated"}],
            "replicaStatuses": {"Worker": {"active": 1}, "Master": {}},
        },
    )
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        template = role["template"]
        template["metadata"] = {"labels": {"a": "b"}, "annotations": {"a": "b"}}
        template["spec"]["initContainers"] = [{"name": "i", "image": "i"}]
        template["spec"]["restartPolicy"] = "Never"
        template["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
        template["spec"]["containers"][0]["ports"] = [{"name": "a", "containerPort": 1}]
    return job


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


PLACES = [path for path in places(rich_job()) if path and path[0] in {"spec", "status"}]


@st.composite
def spoilt_jobs(draw: st.DrawFn) -> Json:
    """A valid job with arbitrary values at one to three of its places."""
    job = rich_job()
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        place: Any = job
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = draw(anything)
        except (LookupError, TypeError):
            continue  # an earlier change removed the place
    return job


PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown", "")

pods = st.builds(
    make_pod,
    role=st.sampled_from(["master", "worker", "other", ""]),
    index=st.sampled_from([0, 1, 2, 7, -1, "x", ""]),
    phase=st.sampled_from(PHASES),
    exit_code=st.sampled_from([None, 0, 1, 137]),
    restarts=st.integers(0, 4),
    reason=st.sampled_from(["", "Evicted"]),
    dying=st.booleans(),
    uid=st.text("abc", min_size=1, max_size=3),
    owner=st.sampled_from(["uid-j", "uid-j", None, "older"]),
)


def check_form(made: Plan) -> None:
    """Check that the plan can be applied: all manifests are JSON, and every child has its namespace and owner."""
    json.dumps(made.status)
    for action in made.actions:
        if replica_created(action):
            metadata = manifest_of(action)["metadata"]
            assert metadata["namespace"] == "ns"
            assert metadata["ownerReferences"][0]["uid"] == "uid-j"
    assert made.requeue_after is None or made.requeue_after >= 0
    types = [condition.get("type") for condition in (made.status or {}).get("conditions", [])]
    assert types.count("Failed") <= 1


@SLOW
@given(
    st.one_of(
        spoilt_jobs(), st.builds(lambda spec, status: make_job() | {"spec": spec, "status": status}, anything, anything)
    ),
    st.lists(pods, max_size=4),
    anything,
)
def test_no_job_makes_the_engine_raise(job: Json, seen_pods: list[Any], note: object):
    job["metadata"]["annotations"] = {RESTARTS: note if isinstance(note, str) else json.dumps(note)}
    snapshot = see(job, seen_pods)
    ignored(snapshot.job)
    check_form(plan(PYTORCH, snapshot))
    check_form(reject(PYTORCH, snapshot, "no"))


@SLOW
@given(spoilt_jobs(), st.lists(pods, max_size=4))
def test_a_plan_is_a_function_of_the_snapshot_and_changes_nothing_in_it(job: Json, seen_pods: list[Any]):
    before = copy.deepcopy(job)
    snapshot = see(job, seen_pods)
    assert plan(PYTORCH, snapshot) == plan(PYTORCH, snapshot)
    assert job == before


@SLOW
@given(spoilt_jobs(), st.lists(pods, max_size=4))
def test_the_status_that_a_plan_writes_is_not_written_again(job: Json, seen_pods: list[Any]):
    """Status is a function of the snapshot: with it stored and the pods as they were, there is nothing to write."""
    first = plan(PYTORCH, see(job, seen_pods))
    notes = {key: value for key, value in first.annotations.items() if value is not None}
    stored = copy.deepcopy(job)
    stored["metadata"]["annotations"] = notes
    if first.status is not None:
        stored["status"] = json.loads(json.dumps(first.status))
    second = plan(PYTORCH, see(stored, seen_pods))
    assert (second.status, second.annotations, second.transitions) == (None, {}, ())


# Forged annotations --------------------------------------------------------------------------------------------------

times = st.one_of(
    st.sampled_from(
        [
            "0000-02-29T00:00:00Z",
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-12:00",
            "2025-06-01T12:00:00Z",
            "2025-06-01T11:59:59.999999999Z",
            "2025-06-01T12:00:00+99:99",
            "2025-06-01",
        ]
    ),
    st.datetimes().map(lambda at: at.isoformat(timespec="seconds") + "Z"),
    scalars,
)
counts = st.one_of(st.integers(-1, 2**33), st.sampled_from([10**4000, 1e308, float("inf"), float("nan")]), scalars)
roles = st.sampled_from(["Master", "Worker", "*", "worker", "", "\ud800"])
packed = st.one_of(st.text("AB-_9 \ud800\u2603", max_size=40), scalars)
ledgers = st.fixed_dictionaries(
    {"job": st.sampled_from(["uid-j", "uid-j", "uid-j", "other"])},
    optional={
        "failures": counts,
        "disruptions": counts,
        "settled": packed,
        "lost": st.one_of(st.dictionaries(roles, packed, max_size=4), anything),
        "rounds": st.one_of(st.dictionaries(roles, st.tuples(counts, times), max_size=4), anything),
    },
).map(json.dumps)
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["pod", "job", "Role", "-0", "1e9", "9" * 5000, "\u0663", "[" * 9999])
)


@SLOW
@given(
    st.fixed_dictionaries(
        {},
        optional={
            RESTARTS: st.one_of(ledgers, texts),
            RESTART_SCOPE: texts,
            INFRA_RESTART_LIMIT: texts,
            SERVICE_MODE: texts,
        },
    ),
    st.lists(pods, max_size=4),
    st.sampled_from(["Never", "OnFailure", "Always", "ExitCode"]),
)
def test_forged_annotations_cause_no_long_pause_and_are_rewritten_validly(
    annotations: dict[str, str], seen_pods: list[Any], policy: str
):
    """`MAX_BACKOFF` is the longest pause that docs/annotations.md knows; the job sets no time itself. A history
    that is written can be read again, and no forged count grows into an annotation that no server takes."""
    status = {"conditions": [{"type": "Created", "status": "True"}], "startTime": "2025-06-01T11:59:00Z"}
    job = make_job(1, 2, policy=policy, status=status, annotations=annotations)
    made = plan(PYTORCH, see(job, seen_pods))
    check_form(made)
    assert made.requeue_after is None or made.requeue_after <= MAX_BACKOFF + 30, "a dying pod has 30 s"
    text = made.annotations.get(RESTARTS)
    if text is not None:
        assert len(text.encode("utf-8", "strict")) < 10_000
        assert json.loads(text)["job"] == "uid-j"
        following = plan(PYTORCH, see(make_job(1, 2, policy=policy, status=status, annotations={RESTARTS: text}), ()))
        assert following.requeue_after is None or following.requeue_after <= MAX_BACKOFF


# Histories ------------------------------------------------------------------------------------------------------------


def on_some_pod(act: Callable[[World, str], None]) -> Callable[[World, int], None]:
    def on(world: World, choice: int) -> None:
        names = sorted(world.pods)
        if names:
            act(world, names[choice % len(names)])

    return on


def start(world: World, name: str) -> None:
    if world.pods[name]["status"]["phase"] == "Pending":
        world.run(name)


def finish(code: int, **status: Any) -> Callable[[World, str], None]:
    def end(world: World, name: str) -> None:
        if world.pods[name]["status"]["phase"] in {"Pending", "Running"}:
            world.end(name, code, **status)

    return end


def scale(world: World, choice: int) -> None:
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = choice % 4


def suspend(world: World, choice: int) -> None:
    world.spec.setdefault("runPolicy", {})["suspend"] = bool(choice % 2)


def lose(world: World, name: str) -> None:
    del world.pods[name]


HAPPENINGS: dict[str, Callable[[World, int], None]] = {
    "start": on_some_pod(start),
    "start all": lambda world, _: world.run(),
    "succeed": on_some_pod(finish(0)),
    "crash": on_some_pod(finish(1)),
    "kill": on_some_pod(finish(137)),
    "evict": on_some_pod(finish(137, reason="Evicted")),
    "delete": on_some_pod(World.delete),
    "lose": on_some_pod(lose),
    "reap": lambda world, _: world.reap(),
    "scale": scale,
    "suspend": suspend,
    "wait": lambda world, choice: world.pass_time(choice),
}

histories = st.lists(st.tuples(st.sampled_from(sorted(HAPPENINGS)), st.integers(0, 50)), max_size=25)
jobs = st.builds(
    make_job,
    master=st.sampled_from([1, None]),
    worker=st.integers(1, 3),
    policy=st.sampled_from(["Never", "OnFailure", "Always", "ExitCode"]),
    run=st.fixed_dictionaries(
        {},
        optional={
            "cleanPodPolicy": st.sampled_from(["None", "Running", "All"]),
            "backoffLimit": st.integers(0, 3),
            "activeDeadlineSeconds": st.integers(1, 200),
        },
    ),
    annotations=st.fixed_dictionaries(
        {},
        optional={
            RESTART_SCOPE: st.sampled_from(["pod", "role", "job"]),
            INFRA_RESTART_LIMIT: st.sampled_from(["0", "1", "9"]),
        },
    ),
)


def check_state(world: World) -> None:
    """Check the invariants of a settled cluster."""
    types = [type_ for type_, _, _ in world.conditions]
    assert len(types) == len(set(types))
    assert types[0] == "Created"
    assert not (world.is_true("Succeeded") and world.is_true("Failed"))
    assert not (world.is_true("Running") and any(world.is_true(end) for end in ("Succeeded", "Failed", "Restarting")))
    ended = world.is_true("Succeeded") or world.is_true("Failed")
    assert ("completionTime" in world.status) == ended
    assert not (ended and world.is_true("Restarting"))
    assert world.counts["created"] == 1
    assert world.counts.get("successful", 0) + world.counts.get("failed", 0) == int(ended)
    for counters in world.status.get("replicaStatuses", {}).values():
        assert 0 not in counters.values()


@SLOW
@given(jobs, histories)
def test_every_history_settles_and_its_end_is_for_ever(job: Json, history: list[tuple[str, int]]):
    world = World(job)
    world.settle()
    for name, choice in history:
        ended = [entry for entry in world.status["conditions"] if entry["type"] in {"Succeeded", "Failed"}]
        HAPPENINGS[name](world, choice)
        world.settle()
        check_state(world)
        if ended:
            assert [entry for entry in world.status["conditions"] if entry["type"] in {"Succeeded", "Failed"}] == ended
        made = plan(PYTORCH, world.snapshot())
        assert (made.status, made.actions, made.annotations, made.transitions) == (None, (), {}, ())


@SLOW
@given(jobs, st.data())
def test_whatever_happened_a_job_left_alone_comes_to_rest_with_all_its_pods(job: Json, data: st.DataObject):
    """Disruptions never end a job that may restart."""
    job["spec"]["runPolicy"] = {}
    job["metadata"].get("annotations", {}).pop(INFRA_RESTART_LIMIT, None)
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        role["restartPolicy"] = data.draw(st.sampled_from(["OnFailure", "ExitCode", "Always"]))
    world = World(job)
    world.settle()
    for name, choice in data.draw(histories):
        if name in {"start", "start all", "evict", "delete", "lose", "reap", "kill", "suspend"}:
            HAPPENINGS[name](world, choice)
            world.settle()
    world.spec["runPolicy"]["suspend"] = False
    for _ in range(3):
        world.settle()
        world.reap()
        world.pass_time(MAX_BACKOFF)
        world.settle()
        world.run()
    world.settle()
    assert sorted(world.pods) == sorted(world.services) == world.living()
    assert len(world.pods) == sum(role["replicas"] for role in job["spec"]["pytorchReplicaSpecs"].values())
    assert world.is_true("Running")


@SLOW
@given(st.lists(pods, max_size=6))
def test_what_is_deleted_is_seen_and_what_is_created_is_not(seen_pods: list[Any]):
    services = [make_service(pod.metadata.labels["training.kubeflow.org/replica-type"], 0) for pod in seen_pods]
    made = plan(PYTORCH, see(make_job(1, 3), seen_pods, services))
    uids = {child.metadata.uid for child in (*seen_pods, *services)}
    taken = {pod.metadata.name for pod in seen_pods}
    for action in made.actions:
        if pod_created(action):
            assert action.name not in taken
        elif not service_created(action):
            assert getattr(action, "uid", None) in uids
