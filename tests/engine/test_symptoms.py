"""Notices about pods in trouble: once per symptom, and bounded for large jobs."""

import pytest

from tests.engine.builders import CREATED, RUNNING, make_job, make_pod, plan_for, status_of
from trainop.engine.actions import Event, Notice
from trainop.engine.seen import Pod
from trainop.runtime.objects.metadata import Json


def notices(*pods: Pod) -> list[Notice]:
    return list(plan_for(make_job(None, len(pods), status=status_of(CREATED, RUNNING)), pods).notices)


def pending(**status: object) -> Pod:
    return make_pod(phase="Pending", status=dict(status))


def waiting(reason: str, message: str, name: str = "pytorch") -> Json:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def terminated(code: int, reason: str = "", message: str = "", name: str = "side") -> Json:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes",
    "lastTransitionTime": "2025-06-01T12:00:00Z",
}
OLDER = {"type": "Ready", "status": "True", "lastTransitionTime": "2025-06-01T11:00:00Z"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (pending(containerStatuses=[waiting("PodInitializing", "")]), []),
        (pending(), []),
        (make_pod(), []),
        (
            pending(containerStatuses=[waiting("ErrImagePull", "not found")]),
            [("ErrImagePull", "Error pod j-worker-0 container pytorch waiting message: not found")],
        ),
        (
            make_pod(status={"containerStatuses": [terminated(3, "Error", "boom")]}),
            [("Error", "Error pod j-worker-0 container side exitCode: 3 terminated message: boom")],
        ),
        (make_pod(status={"containerStatuses": [terminated(0, "Completed")]}), []),
        (
            pending(containerStatuses=[waiting("PodInitializing", "")], initContainerStatuses=[terminated(1)]),
            [("Error", "Error pod j-worker-0 container side exitCode: 1 terminated message: ")],
        ),
        (
            pending(conditions=[OLDER, UNSCHEDULABLE]),
            [("Unschedulable", "Error pod j-worker-0 condition message: 0/3 nodes")],
        ),
        (pending(conditions=[OLDER, {**UNSCHEDULABLE, "reason": "SchedulingGated"}]), []),
        (pending(conditions=[{**OLDER, "lastTransitionTime": "2025-06-01T13:00:00Z"}, UNSCHEDULABLE]), []),
        (pending(conditions=[UNSCHEDULABLE], containerStatuses=[waiting("ContainerCreating", "")]), []),
        (make_pod(dying=True, status={"containerStatuses": [terminated(3, "Error")]}), []),
        (make_pod(phase="Succeeded", status={"containerStatuses": [terminated(3, "Error")]}), []),
    ],
)
def test_active_pods_in_trouble(pod: Pod, expected: list[tuple[str, str]]):
    assert [notice.event for notice in notices(pod)] == [Event("Warning", *pair) for pair in expected]


@pytest.mark.parametrize("code", [0, 7, 130])
def test_the_end_of_the_frameworks_container_is_reported(code: int):
    pods = [make_pod(phase="Failed" if code else "Succeeded", exit_code=code), make_pod(index=1)]
    (notice,) = [notice for notice in notices(*pods) if notice.event.type == "Normal"]
    assert notice.event == Event("Normal", "ExitedWithCode", f"Pod: ns.j-worker-0 exited with code {code}")


def test_the_same_symptom_has_the_same_identity_and_a_new_message_is_reported():
    first, again, other = (
        notices(pending(containerStatuses=[waiting("ErrImagePull", text)]))[0] for text in ("a", "a", "b")
    )
    assert first == again
    assert first.identity == other.identity
    assert first.event != other.event


def test_twenty_pods_represent_all():
    pods = [make_pod(index=index, phase="Pending", status={"conditions": [UNSCHEDULABLE]}) for index in range(100)]
    assert len(notices(*pods)) == 20


def test_long_messages_are_cut_when_they_are_decoded() -> None:
    long = "x" * 4096
    held = pending(
        containerStatuses=[waiting("R" * 500, long), terminated(1, "Error", long), terminated(1, "Error", "é" * 400)],
        conditions=[OLDER | {"type": "Other", "message": long}],
    )
    state = [status.state for status in held.status.container_statuses]
    texts = [state[0].waiting, state[1].terminated, state[2].terminated, held.status.conditions[0]]
    for text in texts:
        assert text is not None
        assert len(text.message.encode()) <= 768
        assert len(text.reason.encode()) <= 128
    assert "(3,376 characters left out)" in notices(held)[0].event.message, "of the text that the pod has"


def test_of_thousands_of_containers_only_informative_ones_are_kept() -> None:
    quiet = [{"name": f"c{number}", "state": {"running": {}}} for number in range(5_000)]
    telling = [terminated(0, name="pytorch"), {"name": "again", "restartCount": 1}, waiting("ErrImagePull", "no", "w")]
    held = make_pod(status={"containerStatuses": [*quiet, *telling], "initContainerStatuses": quiet})
    assert [status.name for status in held.status.container_statuses] == ["c0", "pytorch", "again", "w"]
    assert len(held.status.init_container_statuses) == 1
    assert held.exit_code("pytorch") == 0
