"""Defaults and validation of DIJob, and the CRDs."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.kinds.dijob_world import dijob, template
from trainop.engine.actions import Event
from trainop.engine.fields import sentence
from trainop.kinds.dijob.admission import default_dijob, judge_dijob
from trainop.kinds.dijob.crd import aggregator_config_crd, dijob_crd
from trainop.kinds.dijob.kind import DIJOB
from trainop.local.api.schema.crd_schema import Schema
from trainop.runtime.objects.metadata import Json, Unstructured


def stored_policy(job: Json) -> Any:
    job = copy.deepcopy(job)
    default_dijob(job)
    return job["spec"].get("cleanPodPolicy")


def refusal(job: Json, old: Json | None = None) -> str:
    """The message of the refusal after defaulting; empty if the job is admitted."""
    job = copy.deepcopy(job)
    default_dijob(job)
    errors = judge_dijob(Unstructured(job), Unstructured(old) if old else None).errors
    return sentence(errors) if errors else ""


# cleanPodPolicy -------------------------------------------------------------------------------------------------------


@pytest.mark.case("di-orchestrator-11", "ab")
@pytest.mark.parametrize(
    ("given", "stored"),
    [("", "Running"), (None, "Running"), ("ALL", "All"), ("All", "All"), ("None", "None"), ("hello", "hello"), (3, 3)],
)
def test_the_policy_is_defaulted_and_normalised(given: Any, stored: Any):
    assert stored_policy(dijob(cleanPodPolicy=given)) == stored


def test_defaults_touch_nothing_else():
    job = dijob(cleanPodPolicy="", unknown={"x": [1]}, coordinator={**template(), "unknown": 1})
    before = copy.deepcopy(job)
    default_dijob(job)
    assert job == {**before, "spec": {**before["spec"], "cleanPodPolicy": "Running"}}


@pytest.mark.parametrize("spec", [None, 3, [], "x"])
def test_defaults_leave_an_unreadable_job_alone(spec: Any):
    job = {"spec": spec}
    default_dijob(job)
    assert job == {"spec": spec}


@pytest.mark.case("di-orchestrator-11", "c")
def test_an_unknown_policy_is_refused_at_creation_and_update():
    text = "Invalid CleanPodPolicy {}, expected in [None, Running, All]"
    assert refusal(dijob(cleanPodPolicy="hello")) == text.format("hello")
    assert refusal(dijob(cleanPodPolicy="sdft"), dijob(cleanPodPolicy="Running")) == text.format("sdft")
    assert refusal(dijob(cleanPodPolicy="running")) == text.format("running")
    assert all(refusal(dijob(cleanPodPolicy=policy)) == "" for policy in ("", "ALL", "All", "Running", "None", None))


def test_the_validating_webhook_alone_refuses_an_empty_policy():
    for policy in ("", None):
        (error,) = judge_dijob(Unstructured(dijob(cleanPodPolicy=policy))).errors
        assert str(error) == "Invalid CleanPodPolicy , expected in [None, Running, All]"


# What can never work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (dijob(coordinator={"spec": {"containers": []}}), "spec.coordinator.template.spec.containers: Required value"),
        (dijob(coordinator={"spec": {}}), "spec.coordinator.template.spec.containers: Required value"),
        (dijob(name="a" * 52), "must be no more than 51 characters"),
        (dijob(name="1a"), "a DNS-1035 label must consist"),
        (dijob(name="a.b"), "a DNS-1035 label must consist"),
        (dijob(collector={}), "spec.collector.template: Required value"),
        (dijob(learner={"template": []}), "spec.learner.template: Invalid value: []: must be an object"),
        (dijob(priorityClassName=3), "spec.priorityClassName: Invalid value: 3: must be a string"),
        (dijob(volumes={}), "spec.volumes: Invalid value: {}: must be a list"),
        (dijob(volumes=[{"name": "v"}, {"name": "v"}]), 'spec.volumes[v]: Duplicate value: "v"'),
        (
            dijob(volumes=[{"name": "v"}], coordinator=template(volumes=[{"name": "v"}])),
            'spec.coordinator.template.spec.volumes[v]: Duplicate value: "v"',
        ),
        (
            dijob(volumes=[{"name": "v"}], learner={"template": template(volumes=[{"name": "v"}, 3])}),
            'spec.learner.template.spec.volumes[v]: Duplicate value: "v"',
        ),
    ],
)
def test_what_can_never_work_is_refused(job: Json, words: str):
    assert words in refusal(job)


def test_the_longest_name_is_admitted():
    assert refusal(dijob(name="a" * 51)) == ""


def test_errors_of_the_stored_job_do_not_refuse_an_update():
    old = dijob(name="a" * 60, cleanPodPolicy="hello")
    new = {**old, "metadata": {**old["metadata"], "finalizers": ["x/y"]}}
    judgement = judge_dijob(Unstructured(new), Unstructured(old))
    assert judgement.errors == ()
    assert len(judgement.warnings) == 2
    assert refusal({**new, "spec": {**new["spec"], "cleanPodPolicy": "other"}}, old).startswith("Invalid CleanPod")


@pytest.mark.parametrize(
    ("length", "sections", "warnings"),
    [
        (47, ["collector"], 0),
        (48, ["collector"], 1),
        (45, ["learner"], 0),
        (46, ["learner"], 1),
        (51, [], 0),
        (51, ["collector", "learner"], 2),
    ],
)
def test_names_that_will_be_too_long_for_replicas_are_warned_of(length: int, sections: list[str], warnings: int):
    job = dijob(name="a" * length)
    job["spec"] |= {section: {"template": template()} for section in sections}
    default_dijob(job)
    judgement = judge_dijob(Unstructured(job))
    assert (judgement.errors, len(judgement.warnings)) == ((), warnings)


WRONG: list[Any] = [None, 0, "", "x" * 10_000, [], [{}], {}, {"": None}, True, 1.5]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_anything_may_be_anywhere(value: Any):
    for path in (
        ("spec",),
        ("spec", "coordinator"),
        ("spec", "coordinator", "template"),
        ("spec", "coordinator", "template", "metadata"),
        ("spec", "coordinator", "template", "spec"),
        ("spec", "coordinator", "template", "spec", "containers"),
        ("spec", "coordinator", "template", "spec", "volumes"),
        ("spec", "volumes"),
        ("spec", "cleanPodPolicy"),
        ("spec", "collector"),
        ("status",),
    ):
        job = dijob(volumes=[{"name": "v"}])
        place = job
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        default_dijob(job)
        judgement = judge_dijob(Unstructured(job))
        assert len(sentence(judgement.errors)) < 2000 if judgement.errors else True


# CRDs -----------------------------------------------------------------------------------------------------------------


def version(definition: Json) -> Json:
    (found,) = definition["spec"]["versions"]
    return dict(found)


def test_the_names_of_the_crds():
    for definition, plural, kind, short in (
        (dijob_crd(), "dijobs", "DIJob", "dijob"),
        (aggregator_config_crd(), "aggregatorconfigs", "AggregatorConfig", "agconfig"),
    ):
        assert definition["metadata"]["name"] == f"{plural}.diengine.opendilab.org"
        names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
        assert definition["spec"]["names"] == {**names, "shortNames": [short]}
        assert definition["spec"]["conversion"] == {"strategy": "None"}
        found = version(definition)
        assert (found["name"], found["served"], found["storage"]) == ("v1alpha1", True, True)
        assert found["subresources"] == {"status": {}}
        assert len(json.dumps(definition)) < 64 * 1024, "the annotation of kubectl apply has room for 256 KiB"
    columns = [(each["name"], each["jsonPath"]) for each in version(dijob_crd())["additionalPrinterColumns"]]
    assert columns[:2] == [("Phase", ".status.phase"), ("Age", ".metadata.creationTimestamp")]
    more = version(dijob_crd())["additionalPrinterColumns"][2:]
    assert [(each["name"], each["priority"]) for each in more] == [("Progress %", 1), ("ETA", 1)]
    columns = [
        (each["name"], each["jsonPath"]) for each in version(aggregator_config_crd())["additionalPrinterColumns"]
    ]
    assert columns == [("Age", ".metadata.creationTimestamp")]


def schema(definition: Json) -> Schema:
    return Schema(version(definition)["schema"]["openAPIV3Schema"])


def test_templates_and_volumes_are_not_pruned():
    metadata = {"labels": {"x": "y"}, "annotations": {"x": "y"}, "unknown": {"x": 1}}
    one = {"metadata": metadata, "spec": {"containers": [{"name": "c", "new": 1}], "newField": {"x": 1}}}
    job = dijob(coordinator=one, collector={"template": one}, volumes=[{"name": "v", "newSource": {"x": 1}}])
    pruned, lost = schema(dijob_crd()).prune(copy.deepcopy(job))
    assert (pruned, lost) == (job, [])
    config = {"apiVersion": job["apiVersion"], "kind": "AggregatorConfig", "spec": {"aggregator": {"template": one}}}
    assert schema(aggregator_config_crd()).prune(copy.deepcopy(config)) == (config, [])


@pytest.mark.parametrize("spec", [None, {}, {"coordinator": {}}])
def test_the_schema_requires_a_coordinator(spec: Json | None):
    job = dijob()
    del job["spec"]
    assert schema(dijob_crd()).validate(job | ({} if spec is None else {"spec": spec}))
    assert not schema(dijob_crd()).validate(dijob())


def test_events_about_children_have_upstreams_texts():
    """Whatever the API server says is a text, and no format string."""
    events, error = DIJOB.child_events, "50% {0} {name} %s"
    assert events.event(events.created, "Pod", "p") == Event("Normal", "SuccessfulCreate", "Create pod: p")
    assert events.event(events.deleted, "Service", "s") == Event("Normal", "SuccessfulDelete", "Delete service: s")
    text = f"Failed to create pod: p error: {error}"
    assert events.event(events.not_created, "Pod", "p", error) == Event("Warning", "FailedCreate", text)
    text = f"Failed to delete service: s error: {error}"
    assert events.event(events.not_deleted, "Service", "s", error) == Event("Warning", "FailedDelete", text)


def test_the_kind_has_both_webhooks():
    assert (DIJOB.default, DIJOB.judge) == (default_dijob, judge_dijob)
