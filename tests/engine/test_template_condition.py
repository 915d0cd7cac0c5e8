"""The condition `TemplateValid` as a function of the stored status and of what the API server said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.builders import make_job, see
from trainop.engine.actions import Event, Plan
from trainop.engine.seen import Snapshot
from trainop.engine.template_condition import find_dropped_fields, has_template_condition, report_dropped_fields
from trainop.runtime.objects.metadata import Json, Unstructured

START = "Pods run without fields that the API server does not know: "
MASTER, WORKER = (f"spec.pytorchReplicaSpecs.{role}.template" for role in ("Master", "Worker"))
RESOURCE = 'spec.containers[0].resource: unknown field, did you mean "resources"?'
ENVS = 'spec.containers[0].envs: unknown field, did you mean "env"?'


def seen_with(dropped: dict[str, list[str]], status: Json | None = None) -> Snapshot:
    job = make_job()
    if status is not None:
        job["status"] = status
    found: Any = see(job)
    return Snapshot(found.job, (), (), found.now, dropped_fields=dropped)


def condition(*fields: str) -> Json:
    return {
        "type": "TemplateValid",
        "status": "False",
        "reason": "UnknownFields",
        "message": START + "; ".join(fields),
        "lastUpdateTime": "2020-01-01T00:00:00Z",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }


CREATED = {"type": "Created", "status": "True", "reason": "PyTorchJobCreated", "message": "m"}


def messages(plan: Plan) -> list[str]:
    conditions = (plan.status or {}).get("conditions", [])
    return [each["message"] for each in conditions if each["type"] == "TemplateValid"]


@pytest.mark.parametrize(
    ("warning", "fields"),
    [
        ('unknown field "spec.containers[0].resource"', ("spec.containers[0].resource",)),
        ('unknown field "spec.template.spec.containers[0].resource"', ("spec.containers[0].resource",)),
        ('unknown field "spec.template.metadata.label"', ("metadata.label",)),
        ('unknown field "spec.template"', ("spec.template",)),
        ('duplicate field "spec.containers"', ()),
        ('would violate PodSecurity "restricted:latest": unknown field "x" here', ()),
        ('unknown field ""', ()),
    ],
)
def test_fields_are_read_from_warnings(warning: str, fields: tuple[str, ...]):
    assert find_dropped_fields([warning, warning]) == fields


def test_news_become_a_condition_before_all_others_and_one_event():
    seen = seen_with({WORKER: ["spec.containers[0].resource"], MASTER: ["spec.containers[0].envs"]})
    plan = report_dropped_fields(seen, Plan(status={"conditions": [CREATED], "startTime": "t"}))
    text = f"{START}{MASTER}.{ENVS}; {WORKER}.{RESOURCE}"
    assert plan.status is not None
    first, second = plan.status["conditions"]
    assert (first["type"], first["status"], first["reason"], first["message"]) == (
        ("TemplateValid", "False", "UnknownFields", text)
    )
    assert (second, plan.status["startTime"]) == (CREATED, "t")
    assert plan.transitions == (Event("Warning", "UnknownFields", text),)


def test_what_the_status_says_already_is_no_news():
    status = {"conditions": [condition(f"{WORKER}.{RESOURCE}"), CREATED]}
    seen = seen_with({WORKER: ["spec.containers[0].resource"]}, status)
    assert report_dropped_fields(seen, Plan()) == Plan()


def test_without_news_the_condition_stays():
    status = {"conditions": [condition(f"{WORKER}.{RESOURCE}"), CREATED]}
    assert report_dropped_fields(seen_with({}, status), Plan()) == Plan()


def test_another_process_keeps_what_it_has_not_heard_itself():
    status = {"conditions": [condition(f"{MASTER}.{ENVS}", f"{WORKER}.{RESOURCE}"), CREATED]}
    corrected = report_dropped_fields(seen_with({WORKER: []}, status), Plan())
    assert messages(corrected) == [f"{START}{MASTER}.{ENVS}"]
    added = report_dropped_fields(seen_with({WORKER: ["spec.odd"]}, status), Plan())
    assert messages(added) == [f"{START}{MASTER}.{ENVS}; {WORKER}.spec.odd: unknown field"]


def test_the_condition_goes_with_its_last_field():
    status = {"conditions": [condition(f"{WORKER}.{RESOURCE}"), CREATED]}
    plan = report_dropped_fields(seen_with({WORKER: []}, status), Plan())
    assert (plan.status, plan.transitions) == ({"conditions": [CREATED]}, ())
    assert report_dropped_fields(seen_with({WORKER: []}), Plan()) == Plan()


def test_the_message_is_bounded_and_stable():
    fields = [f"spec.containers[{index}].{'x' * 60}" for index in range(100)]
    seen = seen_with({WORKER: fields})
    first = report_dropped_fields(seen, Plan())
    (text,) = messages(first)
    assert len(text.encode()) <= 1024
    assert text.endswith("more)")
    again = seen_with({WORKER: list(reversed(fields))}, first.status)
    assert report_dropped_fields(again, Plan()) == Plan()


@pytest.mark.parametrize("status", [None, 1, {}, {"conditions": 1}, {"conditions": [None, {"type": 1}]}])
def test_a_mangled_status_has_no_condition(status: Any):
    assert not has_template_condition(Unstructured({"status": status}))


@pytest.mark.parametrize("message", [None, 1, "", "x; y", START])
def test_a_mangled_condition_is_written_anew(message: Any):
    status = {"conditions": [condition() | {"message": message}]}
    plan = report_dropped_fields(seen_with({WORKER: ["spec.odd"]}, status), Plan())
    assert [text for text in messages(plan) if f"{WORKER}.spec.odd" in text]


def test_a_job_that_is_being_deleted_gets_no_status():
    job = make_job()
    job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    seen = Snapshot(Unstructured(job), (), (), see(make_job()).now, dropped_fields={WORKER: ["spec.odd"]})
    assert report_dropped_fields(seen, Plan()) == Plan()
