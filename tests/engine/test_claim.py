"""Ownership of children: claim, adoption and release."""

import pytest

from tests.engine.builders import (
    CREATED,
    RUNNING,
    condition,
    conditions_of,
    labels,
    make_job,
    make_pod,
    make_service,
    names,
    plan_for,
    pod_created,
    pod_deleted,
    see,
    service_created,
    service_deleted,
    stamp,
    status_of,
    written,
)
from trainop.engine.actions import Adopt, Event, Release, Remove
from trainop.engine.children import Claimed, claim
from trainop.engine.parse import parse
from trainop.engine.seen import Pod
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import PODS, SERVICES, Json

OTHER_LABELS = labels("worker", 0) | {"training.kubeflow.org/job-name": "other"}
STRANGER = [{"apiVersion": "v1", "kind": "Set", "name": "s", "uid": "s", "controller": True}]


def claimed(pod: Pod) -> Claimed[Pod]:
    seen = see(make_job(), [pod], [])
    return claim(PYTORCH, parse(PYTORCH, seen.job), seen).pods


@pytest.mark.case("job-engine-35", "a")
def test_own_and_matching_is_ours():
    found = claimed(make_pod())
    assert [pod.metadata.name for pod in found.owned] == ["j-worker-0"]
    assert found.claims == []


def test_the_labels_of_the_selector_are_all_that_it_takes():
    both = {key: value for key, value in labels("worker", 0).items() if "replica" not in key}
    assert len(claimed(make_pod(labels=both)).owned) == 1
    for missing in both:
        rest = {key: value for key, value in both.items() if key != missing}
        assert claimed(make_pod(labels=rest)).owned == []


@pytest.mark.case("job-engine-35", "b")
def test_own_with_changed_labels_is_released_and_its_name_not_used_in_this_pass():
    pod = make_pod(labels=OTHER_LABELS)
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [pod], [make_service()])
    assert made.actions == (Release(PODS, "j-worker-0", "uid-j-worker-0"),)


@pytest.mark.case("job-engine-35", "ce")
@pytest.mark.case("runtime-26", "d")
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"ownerReferences": STRANGER}, "foreign"),
        ({"owner": "older"}, "being_removed"),
        ({"ownerReferences": STRANGER, "dying": True}, "being_removed"),
        ({"owner": None, "dying": True}, "being_removed"),
    ],
)
def test_foreign_and_terminating_orphaned_pods_are_not_ours(fields: Json, where: str):
    found = claimed(make_pod(**fields))
    assert found.owned == []
    assert found.claims == []
    assert list(getattr(found, where)) == ["j-worker-0"]


@pytest.mark.case("job-engine-35", "d")
@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_an_orphan_is_adopted_and_counts_once_it_is_ours(phase: str):
    """The API server may refuse the adoption; until it is observed, the pod occupies its name and is not counted."""
    job = make_job(None, 1, policy="Never", status=status_of(CREATED))
    fields: Json = {"phase": phase, "exit_code": int(phase == "Failed")}
    made = plan_for(job, [make_pod(owner=None, **fields)], [make_service(owner=None)])
    assert made.actions == (
        Adopt(PODS, "j-worker-0", "uid-j-worker-0"),
        Adopt(SERVICES, "j-worker-0", "uid-j-worker-0"),
    )
    assert [type_ for type_, _, _ in conditions_of(made.status)] == ["Created"]
    assert written(made)["replicaStatuses"]["Worker"].keys() == {"selector"}
    assert made.begun
    made = plan_for(job, [make_pod(**fields)], [make_service()])
    assert written(made)["conditions"][-1]["type"] == phase
    assert {"Running": "active"}.get(phase, phase.lower()) in written(made)["replicaStatuses"]["Worker"]


def test_a_resumed_job_waits_for_an_orphan_to_be_adopted_and_gone():
    job = make_job(None, 1, status=status_of(CREATED, condition("Suspended")))
    made = plan_for(job, [make_pod(owner=None, phase="Failed")], [])
    assert made.actions == (Adopt(PODS, "j-worker-0", "uid-j-worker-0"),)
    assert made.status is None


def test_of_a_finished_job_an_orphan_is_adopted_before_its_service_goes():
    job = make_job(None, 1, status=status_of(CREATED, condition("Succeeded")), run={"cleanPodPolicy": "All"})
    made = plan_for(job, [make_pod(owner=None)], [make_service()])
    assert made.actions == (Adopt(PODS, "j-worker-0", "uid-j-worker-0"),)


def test_a_restart_that_is_counted_stays_counted_while_its_pod_is_an_orphan():
    job = make_job(None, 2, status=status_of(CREATED))
    first = plan_for(job, [make_pod(phase="Failed"), make_pod(index=1)])
    job["metadata"]["annotations"] = dict(first.annotations)
    second = plan_for(job, [make_pod(phase="Failed", owner=None), make_pod(index=1, phase="Failed")])
    job["metadata"]["annotations"] |= dict(second.annotations)
    third = plan_for(job, [make_pod(phase="Failed"), make_pod(index=1, phase="Failed")])
    assert third.annotations == {}


@pytest.mark.parametrize(
    ("moved", "deleted"),
    [(labels("worker", 7), True), (labels("worker", "x"), False), (labels("other", 0), True)],
)
def test_the_name_of_an_own_child_with_other_labels_is_free_only_once_it_has_gone(moved: Json, deleted: bool):
    """Both if it is deleted as surplus, and if it is left alone because its labels name no replica."""
    job = make_job(None, 2, status=status_of(CREATED))
    pods, services = [make_pod(labels=moved), make_pod(index=1)], [make_service(labels=moved), make_service(index=1)]
    made = plan_for(job, pods, services)
    assert names(made, pod_created) == names(made, service_created) == []
    assert names(made, pod_deleted) == names(made, service_deleted) == ["j-worker-0"] * deleted
    assert made.requeue_after == 30
    made = plan_for(job, [make_pod(labels=moved, dying=True), make_pod(index=1)], services[1:])
    assert names(made, pod_created) == []
    assert names(made, service_created) == ["j-worker-0"]
    made = plan_for(job, pods[1:], services[1:])
    assert names(made, pod_created) == ["j-worker-0"]


def test_the_warning_says_that_a_pod_whose_labels_name_no_replica_is_not_replaced():
    made = plan_for(make_job(None, 1), [make_pod(labels=labels("worker", "x"))], [])
    (notice,) = made.notices
    text = "Not counted and not replaced, as their labels replica-type and replica-index name no replica: j-worker-0"
    assert notice.event == Event("Warning", "InvalidReplicaLabels", text)


@pytest.mark.parametrize("fields", [{"labels": OTHER_LABELS}, {"owner": None}])
def test_a_job_whose_only_pod_has_lost_its_labels_or_owner_has_begun(fields: Json):
    """An invalid edit before the first status write does not fail it."""
    job = make_job(None, 1, run={"cleanPodPolicy": "sometimes"})
    made = plan_for(job, [make_pod(**fields)], [])
    assert "Failed" not in [type_ for type_, _, _ in conditions_of(made.status)]
    assert made.begun


BORN = stamp(-60)


@pytest.mark.parametrize(
    ("fields", "adopted"),
    [
        ({}, True),
        ({"creationTimestamp": BORN}, True),
        ({"creationTimestamp": stamp(-61)}, False),
        ({"creationTimestamp": None}, False),
        ({"name": "planted"}, False),
        ({"name": "j-worker-00", "labels": labels("worker", "00")}, False),
        ({"name": "j-worker-x", "labels": labels("worker", "x")}, False),
        ({"name": "j-other-0", "labels": labels("other", 0)}, False),
        ({"name": "j-master-0"}, False),
    ],
)
@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_only_pods_that_the_job_may_have_created_are_adopted(phase: str, fields: Json, adopted: bool):
    """Anyone who may create pods can set labels, so a foreign pod never affects the job."""
    job = make_job(None, 1, policy="Never", status=status_of(CREATED))
    job["metadata"]["creationTimestamp"] = BORN
    pod = make_pod(phase=phase, owner=None, **fields)
    service = make_service(owner=None, **fields)
    made = plan_for(job, [pod], [service])
    assert [type(action) for action in made.actions if isinstance(action, Adopt)] == [Adopt] * 2 * adopted
    assert written(made)["replicaStatuses"]["Worker"].keys() == {"selector"}
    assert names(made, pod_deleted) == []
    unexpected = [notice.event for notice in made.notices if notice.event.reason.startswith("Unexpected")]
    assert len(unexpected) == 2 * (not adopted)
    assert all(pod.metadata.name in event.message for event in unexpected)


def test_foreign_objects_without_our_labels_are_not_reported():
    assert claimed(make_pod(ownerReferences=STRANGER, labels=OTHER_LABELS)).unexpected == []


@pytest.mark.parametrize("name", ["j-master-0", "planted"])
def test_a_pod_that_waited_for_the_job_ends_nothing(name: str):
    """It bears all labels of the master, and has succeeded."""
    job = make_job(1, None)
    job["metadata"]["creationTimestamp"] = BORN
    planted = make_pod("master", phase="Succeeded", exit_code=0, owner=None, name=name, creationTimestamp=stamp(-90))
    made = plan_for(job, [planted], [])
    assert [type_ for type_, _, _ in conditions_of(made.status)] == ["Created"]
    assert names(made, pod_created) == ([] if name == "j-master-0" else ["j-master-0"])


def test_a_pod_with_the_jobs_owner_reference_and_another_name_counts_for_nothing():
    """Anyone can set an owner reference with the job's UID; the pod then belongs to the job, and is deleted."""
    planted = make_pod("master", phase="Succeeded", exit_code=0, name="planted", creationTimestamp=stamp(-1))
    made = plan_for(make_job(1, None), [planted], [])
    assert [type_ for type_, _, _ in conditions_of(made.status)] == ["Created"]
    assert names(made, pod_deleted) == ["planted"]
    assert names(made, pod_created) == ["j-master-0"]


def test_one_warning_names_ten_strangers_and_stays_the_same_while_more_come():
    def warning(count: int) -> list[Event]:
        planted = [
            make_pod(owner=None, name=f"p{number:04}", uid=str(number), creationTimestamp=stamp(number - 10_000))
            for number in range(count)
        ]
        made = plan_for(make_job(None, 1), planted, [])
        return [notice.event for notice in made.notices]

    (event,) = warning(2)
    text = "Not made for PyTorchJob j, so ignored although they have its labels"
    assert event == Event("Warning", "UnexpectedPods", f"{text}: p0000, p0001")
    (first,) = warning(11)
    assert first.message == f"{text}: {', '.join(f'p{number:04}' for number in range(10))} and others"
    assert warning(500) == [first]


def test_an_orphan_is_adopted_before_it_is_deleted():
    orphan = make_pod(index=7, owner=None)
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), orphan], [make_service()])
    assert made.actions == (Adopt(PODS, "j-worker-7", "uid-j-worker-7"),)
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), make_pod(index=7)])
    assert [pod_deleted(action) or service_deleted(action) for action in made.actions] == [True, True]


@pytest.mark.case("job-engine-35", "f")
def test_while_the_job_is_being_deleted_nothing_is_adopted_or_released():
    job = make_job(status=status_of(CREATED, RUNNING))
    job["metadata"]["deletionTimestamp"] = stamp()
    pods = [make_pod(), make_pod(index=1, owner=None), make_pod(index=2, labels=OTHER_LABELS)]
    assert plan_for(job, pods).actions == ()


def test_deletions_carry_the_uid():
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), make_pod(index=1)])
    assert Remove(PODS, "j-worker-1", "uid-j-worker-1") in made.actions
