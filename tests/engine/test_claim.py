"""Whose the objects are: claim, adopt, release."""

import pytest

from tests.engine.builders import (
    CREATED,
    RUNNING,
    labels,
    make_job,
    make_pod,
    make_service,
    plan_for,
    see,
    stamp,
    status_of,
)
from trainop.controllers.pytorch import PYTORCH
from trainop.engine.claim import Claimed, claim
from trainop.engine.model import Adopt, DeletePod, Pod, Release
from trainop.engine.parse import parse
from trainop.runtime.objects import Json

OTHER_LABELS = labels("worker", 0) | {"training.kubeflow.org/job-name": "other"}
STRANGER = [{"apiVersion": "v1", "kind": "Set", "name": "s", "uid": "s", "controller": True}]


def claimed(pod: Pod) -> Claimed[Pod]:
    seen = see(make_job(), [pod], [])
    return claim(PYTORCH, parse(PYTORCH, seen.job), seen).pods


@pytest.mark.case("job-engine-35", "a")
def test_own_and_matching_is_ours():
    found = claimed(make_pod())
    assert [pod.metadata.name for pod in found.ours] == ["j-worker-0"]
    assert found.claims == []


def test_the_labels_of_the_selector_are_all_that_it_takes():
    both = {key: value for key, value in labels("worker", 0).items() if "replica" not in key}
    assert len(claimed(make_pod(labels=both)).ours) == 1
    for missing in both:
        rest = {key: value for key, value in both.items() if key != missing}
        assert claimed(make_pod(labels=rest)).ours == []


@pytest.mark.case("job-engine-35", "b")
def test_own_with_changed_labels_is_released_and_its_name_not_used_in_this_pass():
    pod = make_pod(labels=OTHER_LABELS)
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [pod], [make_service()])
    assert made.actions == (Release("Pod", "j-worker-0", "uid-j-worker-0"),)


@pytest.mark.case("job-engine-35", "ce")
@pytest.mark.case("runtime-26", "d")
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"ownerReferences": STRANGER}, "foreign"),
        ({"owner": "older"}, "leaving"),
        ({"ownerReferences": STRANGER, "dying": True}, "leaving"),
        ({"owner": None, "dying": True}, "leaving"),
    ],
)
def test_what_others_own_and_what_terminates_alone_is_not_ours(fields: Json, where: str):
    found = claimed(make_pod(**fields))
    assert found.ours == []
    assert found.claims == []
    assert list(getattr(found, where)) == ["j-worker-0"]


@pytest.mark.case("job-engine-35", "d")
def test_an_orphan_is_adopted_and_counts():
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(owner=None)], [make_service(owner=None)])
    assert made.actions == (
        Adopt("Pod", "j-worker-0", "uid-j-worker-0"),
        Adopt("Service", "j-worker-0", "uid-j-worker-0"),
    )
    assert made.status is not None
    assert made.status["replicaStatuses"]["Worker"]["active"] == 1


def test_an_orphan_is_adopted_before_it_is_deleted():
    orphan = make_pod(index=7, owner=None)
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), orphan], [make_service()])
    assert made.actions == (Adopt("Pod", "j-worker-7", "uid-j-worker-7"),)
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), make_pod(index=7)])
    assert [type(action).__name__ for action in made.actions] == ["DeletePod", "DeleteService"]


@pytest.mark.case("job-engine-35", "f")
def test_while_the_job_is_being_deleted_nothing_is_adopted_or_released():
    job = make_job(status=status_of(CREATED, RUNNING))
    job["metadata"]["deletionTimestamp"] = stamp()
    pods = [make_pod(), make_pod(index=1, owner=None), make_pod(index=2, labels=OTHER_LABELS)]
    assert plan_for(job, pods).actions == ()


def test_deletions_carry_the_uid():
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), make_pod(index=1)])
    assert DeletePod("j-worker-1", "uid-j-worker-1") in made.actions
