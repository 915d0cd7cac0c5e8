"""Admission of new and of updated jobs."""

from __future__ import annotations

import copy

import pytest

from tests.controllers.kinds import make
from tests.engine.builders import make_job
from trainop.engine.admission import Judgement, judge
from trainop.engine.framework import Framework
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.xgboost import XGBOOST
from trainop.runtime.objects.metadata import Json, Unstructured


def judge_raw(new: Json, old: Json | None = None, framework: Framework = PYTORCH) -> Judgement:
    return judge(framework, Unstructured(new), None if old is None else Unstructured(old))


def changed(job: Json, **policy: object) -> Json:
    job = copy.deepcopy(job)
    job["spec"].setdefault("runPolicy", {}).update(policy)
    return job


def test_a_good_job_is_admitted():
    assert judge_raw(make_job()) == Judgement()


def test_each_wrong_field_of_a_new_job_is_an_error():
    found = judge_raw(changed(make_job(), cleanPodPolicy="Sometimes", backoffLimit=-1))
    assert {error.path for error in found.errors} == {"spec.runPolicy.cleanPodPolicy", "spec.runPolicy.backoffLimit"}


def test_an_update_is_refused_only_for_what_it_makes_wrong():
    """A job that was stored before a rule existed can still get a finalizer."""
    old = changed(make_job(), cleanPodPolicy="Sometimes")
    same = judge_raw(old, old)
    assert same.errors == ()
    assert len(same.warnings) == 1
    assert "spec.runPolicy.cleanPodPolicy" in same.warnings[0]
    worse = judge_raw(changed(old, backoffLimit=-1), old)
    assert [error.path for error in worse.errors] == ["spec.runPolicy.backoffLimit"]
    other = judge_raw(changed(make_job(), cleanPodPolicy="Never"), old)
    assert [error.path for error in other.errors] == ["spec.runPolicy.cleanPodPolicy"]


def test_pods_in_which_no_program_could_start_are_an_error():
    """10,000 workers are valid, but the variable with their names is too long."""
    job = make("XGBoostJob", {"Master": 1, "Worker": 10_000}, name="boost")
    found = judge_raw(job, framework=XGBOOST)
    assert [error.path for error in found.errors] == ["spec.xgbReplicaSpecs[Master]"]
    assert "the variable WORKER_ADDRS of Master replicas would have" in found.errors[0].detail
    assert judge_raw(job, job, XGBOOST).errors == ()


def test_a_restart_policy_of_the_template_is_a_warning():
    job = make_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["restartPolicy"] = "Always"
    found = judge_raw(job)
    assert found.errors == ()
    at = "spec.pytorchReplicaSpecs[Worker]"
    assert found.warnings == (f"{at}.template.spec.restartPolicy: overwritten by {at}.restartPolicy",)


@pytest.mark.parametrize("spec", [None, [], "x", {"pytorchReplicaSpecs": {"Worker": {"template": []}}}])
def test_nothing_that_a_job_contains_makes_it_raise(spec: object):
    job = make_job() | {"spec": spec}
    assert judge_raw(job).errors
    assert judge_raw(job, job).errors == ()
