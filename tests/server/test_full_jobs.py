"""Jobs so large that etcd has almost no room for their status and annotations, on a real kube-apiserver: they end or
wait with a message that a user understands, without an effect on other jobs or a burst of writes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.server.process import Operator, fetch
from tests.server.world import JOBS, MERGE, Json, World, replicas

RESTARTS = "trainop.kubeflow.org/restarts"
ANNOTATIONS_LIMIT = 256 * 1024
"""Bytes of all names and values (apimachinery `pkg/api/validation/objectmeta.go`, `TotalAnnotationSizeLimitB`)."""

CAPACITY = 1536 * 1024 - 200
"""Bytes available to a job: a request to etcd is limited to 1.5 MiB, including its key and its precondition."""

TOO_LARGE = "etcdserver: request is too large"
REFUSED_STATUSES = 'trainop_statuses_refused_total{framework="pytorch"}'

MANY = 48
"""Pods that restart together: recording their restarts takes more room than failing the job."""

HELD = 30.0
"""Minimum seconds before a refused status is tried again: a minute, less the jitter."""

REFUSED_WRITES = 6
"""Requests allowed per refusal: annotations, status and shortened status, and as many that etcd answered 500 because it
was slow. Five attempts of each would be ten at least."""

CALM = 3.0
"""Seconds without a write that show that nothing is repeated: longer than any pause between the attempts of a request
that is answered 500, and much shorter than `HELD`."""


def size_of(job: Json) -> int:
    """Bytes of the job as stored in etcd. resourceVersion is not part of the value, and the API server drops
    `managedFields` when an object would be too large (apiserver
    `pkg/endpoints/handlers/patch.go`, `isTooLargeError`)."""
    metadata = {
        name: value for name, value in job["metadata"].items() if name not in ("resourceVersion", "managedFields")
    }
    return len(json.dumps(job | {"metadata": metadata}, separators=(",", ":"), ensure_ascii=False).encode())


def ballast(size: int) -> Json:
    """Spec fields of `size` bytes that the operator ignores without gang scheduling and that no pod contains."""
    return {"runPolicy": {"schedulingPolicy": {"priorityClass": "x" * size}}}


@pytest.fixture
def stage(world: World) -> Iterator[World]:
    """Deletes job `j` after the test, so that it does not slow down the next ones."""
    yield world
    world.try_to("DELETE", f"{JOBS}/j")
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the end of the large job")


def fill(world: World, room: int) -> None:
    """Fill job j up to `room` bytes below the limit."""
    light = world.ask("PATCH", f"{JOBS}/j?dryRun=All", {"spec": ballast(1)}, MERGE)
    world.patch_job(ballast(CAPACITY - size_of(light) - room + 1))


def empty(world: World) -> None:
    world.patch_job(ballast(1))


def writes(operator: Operator, code: str = "...") -> float:
    """The operator's writing requests so far, whatever the response or with `code`. It renews no lease here."""
    text = fetch(operator.metrics_url)[1]
    series = rf'^rest_client_requests_total\{{code="{code}",.*method="(?:PATCH|POST|PUT|DELETE)"\}} (\S+)$'
    found = re.findall(series, text, re.MULTILINE)
    return sum(map(float, found))


def is_calm(world: World, operator: Operator) -> bool:
    before = writes(operator)
    world.settle(CALM)
    return 0 < before == writes(operator)  # 0 if the metric had another name


def assert_calm(world: World, operator: Operator) -> None:
    """Check that another job gets its pods, and that afterwards the operator stops writing. On a busy machine the next
    attempt of a held status may come first."""
    world.create_job("small", {"Worker": replicas(1)})
    world.wait_pod("small-worker-0")
    world.run_pod("small-worker-0")
    world.wait_condition("Running", "small")
    world.wait(lambda: is_calm(world, operator), f"{CALM} seconds without a write")
    assert operator.probe("/healthz")[0] == 200


@pytest.fixture
def bounded_refusals(operator: Operator) -> Iterator[None]:
    """Checks that a status is refused once, and at most once more per retry interval, and that nothing is sent again
    that etcd has refused for its size."""
    before, failed, begin = operator.metric(REFUSED_STATUSES) or 0, writes(operator, "500"), time.monotonic()
    yield
    refused = (operator.metric(REFUSED_STATUSES) or 0) - before
    assert 1 <= refused <= 1 + (time.monotonic() - begin) / HELD
    assert 1 <= writes(operator, "500") - failed <= refused * REFUSED_WRITES


def invalid_job() -> Json:
    """A job whose failed validation has a long message."""
    roles = {"Worker": replicas(1)} | {f"Role{number}": replicas(1) for number in range(100)}
    spec = {"pytorchReplicaSpecs": roles}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}, "spec": spec}


def fail_unfilled(world: World) -> tuple[str, int]:
    """The failure message of the invalid job when there is room, and the size of its status in bytes."""
    made = world.ask("POST", JOBS, invalid_job())
    message = world.wait_condition("Failed")["message"]
    grown = size_of(world.job()) - size_of(made)
    world.ask("DELETE", f"{JOBS}/j")
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the end of the job")
    return message, grown


def post_full(world: World, job: Json, room: int) -> None:
    """Create a job that is `room` bytes below the limit from the start."""
    light = job | {"spec": job["spec"] | ballast(1)}
    size = CAPACITY - room - size_of(world.ask("POST", f"{JOBS}?dryRun=All", light)) + 1
    world.ask("POST", JOBS, job | {"spec": job["spec"] | ballast(size)})


def test_a_status_that_does_not_fit_is_written_shortened(stage: World, operator: Operator):
    message, grown = fail_unfilled(stage)
    assert len(message) > 500
    refused = operator.metric(REFUSED_STATUSES)
    post_full(stage, invalid_job(), grown - 400)
    short = stage.wait_condition("Failed")
    assert short["reason"] == "PyTorchJobFailedValidation"
    assert len(short["message"].encode()) <= 128
    assert short["message"].startswith(message[:40])
    assert short["message"].endswith("characters left out)")
    assert_calm(stage, operator)
    assert stage.pods().keys() == {"small-worker-0"}
    assert stage.events("FailedStatusUpdate") == []
    assert operator.metric(REFUSED_STATUSES) == refused


@pytest.mark.usefixtures("bounded_refusals")
def test_a_status_without_any_room_is_reported_in_one_event(stage: World, operator: Operator):
    message, _ = fail_unfilled(stage)
    post_full(stage, invalid_job(), 100)
    (event,) = stage.wait(lambda: stage.events("FailedStatusUpdate"), "the event")
    assert TOO_LARGE in event["message"]
    assert f"it would say Failed: {message[:100]}" in event["message"]
    assert_calm(stage, operator)
    assert stage.conditions() == []
    stage.wait_events("FailedStatusUpdate")
    empty(stage)
    assert stage.wait_condition("Failed")["message"] == message, "written as soon as there is room"


def run_workers(world: World, count: int) -> list[str]:
    names = [f"j-worker-{number}" for number in range(count)]
    world.create_job("j", {"Worker": replicas(count, "ExitCode")})
    world.wait_pods(*names)
    world.run_pod(*names)
    world.wait_condition("Running")
    world.wait(lambda: world.tally("Worker").get("active") == count, "that all are counted")
    return names


def test_a_restart_that_etcd_has_no_room_to_record_fails_the_job(stage: World, operator: Operator):
    names = [f"j-worker-{number}" for number in range(MANY)]
    stage.create_job("j", {"Worker": replicas(MANY, "ExitCode")}, cleanPodPolicy="All")
    annotations = {"trainop.kubeflow.org/restart-scope": "job"}
    stage.ask("PATCH", f"{JOBS}/j", {"metadata": {"annotations": annotations}}, MERGE)
    stage.wait_pods(*names)
    stage.wait(lambda: stage.status().get("replicaStatuses"), "that pods are counted")
    fill(stage, 400)
    stage.end_pod(names[0], 130)
    failed = stage.wait_condition("Failed")
    assert TOO_LARGE in failed["message"]
    assert "restarts cannot be noted" in failed["message"]
    stage.wait_pods()
    stage.wait_services()
    assert_calm(stage, operator)
    assert stage.job()["metadata"]["annotations"] == annotations


@pytest.mark.usefixtures("bounded_refusals")
def test_a_restart_waits_where_not_even_its_refusal_can_be_written(stage: World, operator: Operator):
    names = run_workers(stage, 2)
    before = stage.pods()
    fill(stage, 20)
    stage.end_pod(names[0], 130)
    (event,) = stage.wait(lambda: stage.events("FailedStatusUpdate"), "the event")
    assert TOO_LARGE in event["message"]
    assert "restarts cannot be noted" in event["message"]
    assert_calm(stage, operator)
    stage.wait_events("FailedStatusUpdate")
    kept = {name: stage.pods()[name]["metadata"]["uid"] for name in names}
    assert kept == {name: pod["metadata"]["uid"] for name, pod in before.items()}, (
        "a restart that could not be recorded does not happen"
    )
    empty(stage)
    stage.wait_successor(names[0], kept[names[0]])
    assert json.loads(stage.job()["metadata"]["annotations"][RESTARTS])["failures"] == 1


def test_a_restart_that_large_annotations_leave_no_room_for_fails_the_job(stage: World, operator: Operator):
    names = run_workers(stage, 2)
    annotations = {"note": "x" * (ANNOTATIONS_LIMIT - len("note"))}
    stage.ask("PATCH", f"{JOBS}/j", {"metadata": {"annotations": annotations}}, MERGE)
    stage.end_pod(names[0], 130)
    failed = stage.wait_condition("Failed")
    assert "restarts cannot be noted" in failed["message"]
    assert f"may not be more than {ANNOTATIONS_LIMIT} bytes" in failed["message"]
    assert_calm(stage, operator)
    assert stage.job()["metadata"]["annotations"] == annotations
