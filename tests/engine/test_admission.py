"""Admission of new and of updated jobs."""

from __future__ import annotations

import copy

import pytest

from tests.controllers.kinds import make
from tests.engine.builders import make_job
from trainop.engine.admission import Judgement, judge
from trainop.engine.framework import THIS_OPERATOR, Framework
from trainop.engine.parse import MULTIKUEUE
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.xgboost import XGBOOST
from trainop.programs.schemes import FRAMEWORKS
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


@pytest.mark.case("job-engine-37", "e")
@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (None, MULTIKUEUE, f'"{MULTIKUEUE}"'),
        (MULTIKUEUE, None, '"null"'),
        (MULTIKUEUE, THIS_OPERATOR, f'"{THIS_OPERATOR}"'),
        (THIS_OPERATOR, THIS_OPERATOR, None),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=lambda framework: framework.kind)
def test_the_manager_of_a_job_never_changes(framework: Framework, old: str | None, new: str | None, shown: str | None):
    """Not even between none and the default, as upstream."""
    jobs = [make(framework.kind, run={} if manager is None else {"managedBy": manager}) for manager in (new, old)]
    found = judge_raw(jobs[0], jobs[1], framework)
    reported = [f"spec.runPolicy.managedBy: Invalid value: {shown}: field is immutable"] if shown else []
    assert [str(error) for error in found.errors] == reported


@pytest.mark.case("job-engine-37", "d")
@pytest.mark.parametrize("manager", ["other-job-controller", ""])
@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_job_has_one_of_two_managers(kind: str, manager: str):
    (error,) = judge_raw(make(kind, run={"managedBy": manager}), framework=FRAMEWORKS[kind]).errors
    assert str(error) == (
        f'spec.runPolicy.managedBy: Unsupported value: "{manager}": '
        f'supported values: "{MULTIKUEUE}", "kubeflow.org/training-operator"'
    )


@pytest.mark.case("frameworks-v1-22", "e")
def test_the_deprecated_number_of_processes_is_a_warning():
    job = make_job(spec={"elasticPolicy": {"nProcPerNode": 2}, "nprocPerNode": "2"})
    found = judge_raw(job)
    text = "spec.elasticPolicy.nProcPerNode"
    assert found.warnings == (f"{text} is deprecated, use spec.nprocPerNode instead",)
    assert [str(error) for error in found.errors] == [f"{text}: Forbidden: must not be used with spec.nprocPerNode"]
    del job["spec"]["nprocPerNode"]
    assert judge_raw(job) == Judgement(warnings=found.warnings)
    job["spec"]["elasticPolicy"] = "wrong"
    assert judge_raw(job).warnings == ()


def test_kueue_resumes_a_stored_job_that_is_invalid():
    """Its pods would be too large, and grow with the node selector that Kueue adds."""
    job = make("XGBoostJob", {"Master": 1, "Worker": 10_000}, name="boost", run={"suspend": True})
    resumed = changed(job, suspend=False)
    for role in resumed["spec"]["xgbReplicaSpecs"].values():
        role["template"]["spec"]["nodeSelector"] = {"zone": "a"}
    resumed["spec"]["xgbReplicaSpecs"]["Worker"]["replicas"] = 10_001
    found = judge_raw(resumed, job, XGBOOST)
    assert found.errors == ()
    assert "(not changed by this update)" in found.warnings[-1]


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
