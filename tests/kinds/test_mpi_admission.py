"""Admission of MPIJobs: which transport's rules apply to a request, and what they refuse."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

from tests.kinds.mpi_world import mpi_job, replicas
from trainop.controllers.admission import webhooks_of
from trainop.engine.seen import Options
from trainop.kinds.mpi.kinds import mpi_kinds
from trainop.kinds.mpi.transport import TRANSPORT
from trainop.programs.schemes import all_kinds
from trainop.runtime.objects.metadata import Json
from trainop.runtime.webhook.admission import AdmissionRequest, AdmissionResponse

V1, V2 = "kubeflow.org/v1", "kubeflow.org/v2beta1"
HANDLERS = {webhook.path: webhook.handler for webhook in webhooks_of(mpi_kinds(Options()))}
MAP = "spec.mpiReplicaSpecs"


def review(new: Json, old: Json | None = None) -> AdmissionResponse:
    """What the webhook of the version of `new` answers. The API server sends both objects in that version."""
    version = new["apiVersion"].rpartition("/")[2]
    operation = "CREATE" if old is None else "UPDATE"
    response = HANDLERS[f"/validate-kubeflow-org-{version}-mpijob"](
        AdmissionRequest("u", operation, object=copy.deepcopy(new), old_object=copy.deepcopy(old))
    )
    assert not inspect.isawaitable(response)
    return response


def denial(new: Json, old: Json | None = None) -> str:
    response = review(new, old)
    assert (response.allowed, response.code, response.reason) == (False, 403, "Forbidden")
    return response.message


def sent(version: str, **fields: Any) -> Json:
    """A job as the API server sends it to the webhook of `version`: no transport is recorded yet."""
    return {**mpi_job(transport=None, **fields), "apiVersion": version}


def through(job: Json, version: str) -> Json:
    return {**copy.deepcopy(job), "apiVersion": version}


def written_by(job: Json, version: str) -> Json:
    """The job with the managed fields of a client that wrote the replicas through `version`."""
    entry = {"manager": "kubectl", "apiVersion": version, "fieldsV1": {"f:spec": {"f:mpiReplicaSpecs": {}}}}
    return {**job, "metadata": {**job["metadata"], "managedFields": [entry]}}


def test_every_version_has_a_webhook():
    paths = {webhook.path for webhook in webhooks_of(all_kinds()) if webhook.resource.kind == "MPIJob"}
    assert paths == {"/validate-kubeflow-org-v1-mpijob", "/validate-kubeflow-org-v2beta1-mpijob"}


EXIT_CODE: dict[str, Any] = {"worker": replicas(2, "ExitCode")}
"""Valid with transport exec only."""
REFUSED = f'{MAP}[Worker].restartPolicy: Unsupported value: "ExitCode": supported values: "Never", "OnFailure"'


def test_the_version_of_a_created_job_chooses_the_rules():
    assert review(sent(V1, **EXIT_CODE)) == AdmissionResponse(True)
    assert denial(sent(V2, **EXIT_CODE)) == REFUSED
    assert review(sent(V1)) == review(sent(V2)) == AdmissionResponse(True)


def test_an_annotation_chooses_the_rules_before_the_version():
    assert denial(sent(V1, annotations={TRANSPORT: "ssh"}, **EXIT_CODE)) == REFUSED
    assert review(sent(V2, annotations={TRANSPORT: "exec"}, **EXIT_CODE)).allowed
    at = f"metadata.annotations[{TRANSPORT}]"
    wrong = sent(V2, annotations={TRANSPORT: "telnet"})
    assert denial(wrong) == f'{at}: Unsupported value: "telnet": supported values: "exec", "ssh"'
    assert review(wrong, wrong).allowed


def test_an_update_is_judged_by_the_stored_transport_whatever_version_it_uses():
    by_exec, by_ssh = mpi_job(transport="exec"), mpi_job(transport="ssh")
    changes = mpi_job(transport=None, **EXIT_CODE)["spec"]
    for version in (V1, V2):
        assert review(through({**by_exec, "spec": changes}, version), through(by_exec, version)).allowed
        assert denial(through({**by_ssh, "spec": changes}, version), through(by_ssh, version)) == REFUSED
    # a client that replaces the job without the annotation, before and after the operator has recorded it
    bare = {**by_ssh, "metadata": {**by_ssh["metadata"], "annotations": {}}}
    assert denial(through({**bare, "spec": changes}, V1), through(by_ssh, V1)) == REFUSED
    undecided = written_by(sent(V1), V2)
    assert denial({**undecided, "spec": changes}, undecided) == REFUSED


def test_the_controller_may_record_and_restore_the_annotation():
    recorded, other = mpi_job(transport="ssh"), mpi_job(transport="exec")
    assert review(recorded, through(sent(V2), V2)).allowed
    assert review(through(recorded, V2), through(other, V2)).allowed
    assert review(through(other, V1), through(recorded, V1)).allowed


def without_launcher() -> Json:
    job = sent(V1)
    del job["spec"]["mpiReplicaSpecs"]["Launcher"]
    return job


@pytest.mark.case("frameworks-v1-40", "b")
@pytest.mark.parametrize(
    ("job", "message"),
    [
        (sent(V1, launcher=replicas(2)), f"{MAP}[Launcher].replicas: Forbidden: must be 1"),
        (without_launcher(), f"{MAP}[Launcher]: Required value: must be present"),
        (
            sent(V1, worker=replicas(1, image="")),
            f"{MAP}[Worker].template.spec.containers[0].image: Required value: must be required",
        ),
        (
            {**sent(V1), "spec": {"mpiReplicaSpecs": {**sent(V1)["spec"]["mpiReplicaSpecs"], "Boss": replicas(1)}}},
            f'{MAP}[Boss]: Unsupported value: "Boss": supported values: "Launcher", "Worker"',
        ),
        ({**sent(V1), "spec": {}}, f"{MAP}: Required value: must be required"),
        (sent(V1, slotsPerWorker=-1), "spec.slotsPerWorker: Invalid value: -1: must be greater than or equal to 0"),
    ],
)
def test_what_transport_exec_refuses(job: Json, message: str):
    assert denial(job) == message


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({**sent(V2), "spec": {}}, f"{MAP}: Required value: must have replica specs"),
        (sent(V2, launcher=replicas(2)), f"{MAP}[Launcher].replicas: Invalid value: 2: must be 1"),
        (
            sent(V2, worker=replicas(0)),
            f"{MAP}[Worker].replicas: Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            sent(V2, launcherCreationPolicy="Whenever"),
            (
                'spec.launcherCreationPolicy: Unsupported value: "Whenever": '
                'supported values: "AtStartup", "WaitForWorkersReady"'
            ),
        ),
        (
            sent(V2, run={"managedBy": "somebody"}),
            (
                'spec.runPolicy.managedBy: Unsupported value: "somebody": supported values: '
                '"kubeflow.org/mpi-operator", "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"'
            ),
        ),
        (
            sent(V2, run={"cleanPodPolicy": "Some", "backoffLimit": -1}),
            (
                '[spec.runPolicy.cleanPodPolicy: Unsupported value: "Some": '
                'supported values: "All", "None", "Running", '
                "spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0]"
            ),
        ),
    ],
)
def test_what_transport_ssh_refuses(job: Json, message: str):
    assert denial(job) == message


@pytest.mark.parametrize(("version", "other"), [(V1, V2), (V2, V1)])
def test_an_update_is_forgiven_what_the_stored_job_has_wrong(version: str, other: str):
    """Kueue resumes such a job, and a controller removes its finalizers, through either version."""
    stored = written_by(sent(version, launcher=replicas(2), run={"suspend": True}), version)
    assert denial(stored)
    for through_version in (version, other):
        old = through(stored, through_version)
        resumed = copy.deepcopy(old)
        resumed["spec"]["runPolicy"]["suspend"] = False
        resumed["metadata"]["finalizers"] = ["example.com/x"]
        answer = review(resumed, old)
        assert answer.allowed
        (warning,) = answer.warnings
        assert warning.startswith(f"{MAP}[Launcher].replicas: ")
        assert warning.endswith("must be 1 (not changed by this update)")
        worse = copy.deepcopy(resumed)
        worse["spec"]["runPolicy"]["backoffLimit"] = -1
        text = "spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0"
        assert denial(worse, old) == text


@pytest.mark.parametrize("version", [V1, V2])
def test_the_manager_of_a_job_does_not_change(version: str):
    job, text = sent(version), "spec.runPolicy.managedBy: Invalid value: {}: field is immutable"
    released = sent(version, run={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert denial(released, job) == text.format('"kueue.x-k8s.io/multikueue"')
    assert denial(job, released) == text.format('"null"')


@pytest.mark.parametrize("version", [V1, V2])
def test_a_hostfile_beyond_the_limit_of_a_config_map_is_one_error(version: str):
    assert review(sent(version, worker=replicas(5_000))).allowed
    large = denial(sent(version, worker=replicas(50_000)))
    at = f"{MAP}[Worker].replicas: Forbidden: the ConfigMap with the hosts of 50000 workers would have "
    assert large.startswith(at)
    assert large.endswith(" bytes, and the API server takes no more than 1048576")
    assert large.count("replicas: ") == 1
    # a stored job of that size may shrink
    grown = sent(version, worker=replicas(50_000))
    assert review(sent(version, worker=replicas(10)), grown).allowed


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        "x",
        {"mpiReplicaSpecs": []},
        {"mpiReplicaSpecs": {"Launcher": 1, "Worker": []}},
        {"mpiReplicaSpecs": {"Launcher": {"template": {"spec": {"containers": [1] * 5000}}}}},
        {"runPolicy": "x", "mpiReplicaSpecs": {"Worker": {"replicas": "many"}}},
        {"slotsPerWorker": 2**70, "mpiReplicaSpecs": {"Launcher": None}},
    ],
)
def test_hostile_jobs_are_refused_with_a_bounded_message(version: str, spec: object):
    job = {**sent(version), "spec": spec}
    assert len(denial(job).encode()) <= 1024
    stored = review(job, job)
    assert stored.allowed
    assert all(len(warning.encode()) <= 256 for warning in stored.warnings)
