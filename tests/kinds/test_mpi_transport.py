"""Which transport an MPIJob has, and that it never changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.builders import UID
from tests.kinds.mpi_world import MpiWorld, mpi_job
from trainop.engine.actions import Plan
from trainop.engine.seen import Options
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.kinds import mpi_kinds
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, TRANSPORT, decode_mpi_job, lookups, version_of_replicas
from trainop.runtime.objects.metadata import Json, Unstructured

EXEC, SSH = mpi_kinds(Options())
REPLICAS: Json = {"f:spec": {".": {}, "f:mpiReplicaSpecs": {"f:Worker": {}}}}


def written(version: str, time: str = "2026-01-01T00:00:00Z", **entry: Any) -> Json:
    return {"manager": "m", "operation": "Update", "apiVersion": version, "time": time, "fieldsV1": REPLICAS, **entry}


V1, V2 = "kubeflow.org/v1", "kubeflow.org/v2beta1"


def undecided(*entries: Json, status: Json | None = None, **fields: Any) -> Json:
    job = mpi_job(transport=None, **fields)
    if status is not None:
        job["status"] = dict(status)
    if entries:
        job["metadata"]["managedFields"] = list(entries)
    return job


def decided(job: Json) -> str | None:
    """What the controller of ssh records in its first plan."""
    return MpiWorld(job).step().annotations.get(TRANSPORT)


@pytest.mark.parametrize(
    ("entries", "version"),
    [
        ((written(V1),), V1),
        ((written(V2),), V2),
        ((written(V1, "2026-01-02T00:00:00Z"), written(V2)), V2),
        ((written(V2, subresource="status"), written(V1, "2026-01-03T00:00:00Z")), V1),
        ((written(V2, fieldsV1={"f:spec": {"f:runPolicy": {}}}),), None),
        ((written(V2, fieldsV1=None), "nonsense"), None),
        ((), None),
    ],
)
def test_the_version_that_wrote_the_replicas(entries: tuple[Json, ...], version: str | None):
    job = undecided(*entries)
    assert version_of_replicas(job) == version
    kept = decode_mpi_job(json.dumps(job).encode())
    assert version_of_replicas(kept.raw) == version
    transport = {V1: "exec", V2: "ssh", None: "exec"}[version]
    assert decided(kept.raw) == transport


@pytest.mark.parametrize("job", [{}, {"metadata": None}, {"metadata": {"managedFields": {}}}])
def test_jobs_without_a_writer(job: Json):
    assert version_of_replicas(job) is None


def test_managed_fields_take_no_memory_once_the_transport_is_recorded():
    job = undecided(written(V2))
    held = decode_mpi_job(json.dumps(job).encode()).raw["metadata"]["managedFields"]
    assert held == [{"apiVersion": V2, "fieldsV1": {"f:spec": {"f:mpiReplicaSpecs": {}}}}]
    job["metadata"]["annotations"][TRANSPORT] = "ssh"
    assert "managedFields" not in decode_mpi_job(json.dumps(job).encode()).raw["metadata"]


@pytest.mark.parametrize(
    ("fields", "transport"),
    [
        ({}, "exec"),
        ({"sshAuthMountPath": "/root/.ssh", "mpiImplementation": "OpenMPI", "runLauncherAsWorker": False}, "exec"),
        ({"sshAuthMountPath": "/home/u"}, "ssh"),
        ({"mpiImplementation": "MPICH"}, "ssh"),
        ({"runLauncherAsWorker": True}, "ssh"),
        ({"launcherCreationPolicy": "WaitForWorkersReady"}, "ssh"),
    ],
)
def test_without_a_writer_the_fields_decide(fields: Json, transport: str):
    assert decided(undecided(**fields)) == transport


def test_without_a_writer_under_the_crd_of_mpi_operator():
    world = MpiWorld(undecided(), options=Options(mpi_version="v2beta1"))
    assert world.step().annotations == {TRANSPORT: "ssh"}
    assert world.kind.source.version == "v2beta1"


@pytest.mark.parametrize("recorded", ["exec", "ssh", "smoke signals"])
def test_a_valid_annotation_of_the_user_counts(recorded: str):
    job = undecided(written(V2), annotations={TRANSPORT: recorded})
    assert decided(job) == {"exec": None, "ssh": None, "smoke signals": "ssh"}[recorded]
    assert bool(MpiWorld(job).step().actions) is (recorded != "exec")


def test_the_transport_is_recorded_with_the_first_children():
    made = MpiWorld(undecided(written(V2))).step()
    assert made.annotations == {TRANSPORT: "ssh"}
    assert made.actions
    other = MpiWorld(undecided(written(V1))).step()
    assert other == Plan(annotations={TRANSPORT: "exec"})


def test_existing_children_win():
    world = MpiWorld(mpi_job(1))
    world.settle()
    for changed in ({TRANSPORT: "exec"}, {}):
        world.raw["metadata"]["annotations"] = dict(changed)
        snapshot = world.snapshot()
        by_exec = EXEC.plan(snapshot)
        assert (by_exec.actions, by_exec.annotations) == ((), {TRANSPORT: "ssh"} if changed else {})
        world.settle()
        assert world.raw["metadata"]["annotations"][TRANSPORT] == "ssh"
    (text,) = world.event_messages("TransportChanged")
    assert text == f"The transport of a job cannot be changed: annotation {TRANSPORT} is set to ssh again"

    mine = MpiWorld(mpi_job(1, transport="exec"), ssh=False)
    mine.settle()
    mine.raw["metadata"]["annotations"] = {TRANSPORT: "ssh"}
    assert SSH.plan(mine.snapshot()).annotations == {TRANSPORT: "exec"}
    made = mine.step()
    assert made.annotations[TRANSPORT] == "exec"
    assert len(mine.event_messages("TransportChanged")) == 1
    mine.settle()
    assert sorted(mine.living()) == ["foo-launcher", "foo-worker-0"]


def test_the_launcher_of_a_former_operator_is_looked_up_once():
    job = undecided(written(V1))
    assert lookups(Unstructured(job)) == ()
    job["status"] = {"conditions": [{"type": "Created", "status": "True"}]}
    assert lookups(Unstructured(job)) == ((LAUNCHER_JOBS, "foo-launcher"),)
    owner = {"apiVersion": V2, "kind": "MPIJob", "name": "foo", "uid": UID, "controller": True}
    world = MpiWorld(job)
    launcher = {"metadata": {"name": "foo-launcher", "namespace": "bar", "uid": "l", "ownerReferences": [owner]}}
    world.companions[LAUNCHER_JOBS] = {"foo-launcher": launcher | {"spec": {}}}
    assert world.step().annotations[TRANSPORT] == "ssh"
    assert lookups(Unstructured(world.raw)) == ()


OVER: Json = {
    "conditions": [{"type": "Succeeded", "status": "True", "reason": "MPIJobSucceeded", "message": ""}],
    "completionTime": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(("version", "ssh"), [(V1, False), (V2, True)])
def test_a_finished_job_of_a_former_operator_is_not_written(version: str, ssh: bool):
    job = undecided(written(version), status=OVER)
    assert (EXEC.concerns(Unstructured(job)), SSH.concerns(Unstructured(job))) == (not ssh, ssh)
    assert lookups(Unstructured(job)) == ()
    assert MpiWorld(job, ssh=ssh).step() == Plan()


@pytest.mark.parametrize(
    "status",
    [
        {**OVER, "completionTime": None},
        {**OVER, "conditions": [{"type": "Succeeded", "status": "False"}]},
        {**OVER, "conditions": None},
        {**OVER, "conditions": ["Succeeded"]},
    ],
)
def test_a_job_that_may_go_on_gets_its_transport_recorded(status: Json):
    job = undecided(written(V2), status=status)
    assert lookups(Unstructured(job)) == ((LAUNCHER_JOBS, "foo-launcher"),)
    assert decided(job) == "ssh"


def test_a_finished_job_whose_children_are_of_the_other_transport_is_recorded():
    world = MpiWorld(mpi_job(1))
    world.settle()
    world.raw["metadata"] |= {"annotations": {}, "managedFields": [written(V1)]}
    world.raw["status"] = dict(OVER)
    assert EXEC.concerns(Unstructured(world.raw))
    assert EXEC.plan(world.snapshot()) == Plan(annotations={TRANSPORT: "ssh"})


def test_only_one_controller_records_the_transport():
    """Two writes at once would conflict."""
    world = MpiWorld(mpi_job(1, transport="exec"), ssh=False)
    world.settle()
    world.raw["metadata"]["annotations"] = {}
    assert EXEC.plan(world.snapshot()) == Plan()
    assert SSH.plan(world.snapshot()) == Plan(annotations={TRANSPORT: "exec"})


def test_each_controller_has_its_own_jobs():
    for transport, kinds in (("exec", (True, False)), ("ssh", (False, True)), (None, (False, True))):
        job = Unstructured(mpi_job(transport=transport))
        assert (EXEC.concerns(job), SSH.concerns(job)) == kinds


def test_deadlines_are_those_of_exec():
    """The Job controller takes care of those of ssh."""
    for transport, due in (("exec", True), ("ssh", False)):
        world = MpiWorld(mpi_job(transport=transport, run={"activeDeadlineSeconds": 5}), ssh=transport == "ssh")
        world.settle()
        job = Unstructured(world.raw)
        assert (world.kind.due(job, world.now) is not None) is due
        assert EXEC.due(Unstructured(mpi_job(transport="ssh")), world.now) is None


def test_admission_refuses_new_errors_only():
    wrong = Unstructured(mpi_job(slotsPerWorker=-1))
    assert len(SSH.judge(wrong, None).errors) == 1
    assert SSH.judge(wrong, wrong).errors == ()
    assert len(SSH.judge(wrong, Unstructured(mpi_job())).errors) == 1


def test_the_crd_serves_both_versions_without_conversion():
    spec = mpi_crd()["spec"]
    first, second = spec["versions"]
    assert spec["conversion"] == {"strategy": "None"}
    assert [(each["name"], each["served"], each["storage"]) for each in (first, second)] == [
        ("v1", True, True),
        ("v2beta1", True, False),
    ]
    shown = [
        [each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority")]
        for version in (first, second)
    ]
    assert shown == [["Age", "State"], ["Age"]]  # of v2beta1 as without columns
    first, second = (each["schema"]["openAPIV3Schema"]["properties"] for each in (first, second))
    assert first["spec"]["properties"].keys() == second["spec"]["properties"].keys()
    assert first["status"] == second["status"]
    assert first["status"]["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
