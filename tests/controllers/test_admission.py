"""Admission of jobs of every kind: the rules and messages of upstream's webhooks, and reviews of hostile jobs."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any

import pytest

from e2e.bench.shapes import SHAPES
from tests.controllers.kinds import KINDS, make
from tests.simulation.oracle.kinds import KINDS as ORACLE
from trainop.controllers.admission import (
    MUTATING,
    VALIDATING,
    build_handler,
    configurations_of,
    respond,
    webhooks_of,
)
from trainop.controllers.counters import JobMetrics
from trainop.engine.admission import Judgement
from trainop.engine.kind import Kind, admit_all, kind_of
from trainop.programs.operator import build
from trainop.programs.schemes import FRAMEWORKS, all_kinds
from trainop.programs.settings import Settings
from trainop.runtime.objects.field_error import REQUIRED, FieldError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.webhook.admission import AdmissionRequest, AdmissionResponse

every_kind = pytest.mark.parametrize("kind", KINDS)
REPLICAS = {kind: rules.field for kind, rules in ORACLE.items()}
CONTAINERS = {kind: rules.container for kind, rules in ORACLE.items()} | {"PaddleJob": '"paddle"'}
"""The names of the default containers, as messages show them."""
ROLES = {
    "TFJob": '"Chief", "Master", "Evaluator", "PS", "Worker"',
    "PyTorchJob": '"Master", "Worker"',
    "MXJob": '"Scheduler", "Server", "Worker", "TunerTracker", "TunerServer", "Tuner"',
    "XGBoostJob": '"Master", "Worker"',
    "PaddleJob": '"Master", "Worker"',
    "JAXJob": '"Worker"',
}
MAP = "spec.{map}"
TEMPLATE = "spec.{map}[Worker].template.spec.containers"


def review(kind: str, new: Json | None, old: Json | None = None, operation: str = "") -> AdmissionResponse:
    operation = operation or ("CREATE" if old is None else "UPDATE")
    response = build_handler(kind_of(FRAMEWORKS[kind]).admit)(
        AdmissionRequest("u", operation, object=new, old_object=old)
    )
    assert not inspect.isawaitable(response)
    return response


def denial(kind: str, new: Json, old: Json | None = None) -> str:
    """The message of a denied review."""
    response = review(kind, new, old)
    assert (response.allowed, response.code, response.reason) == (False, 403, "Forbidden")
    return response.message


def roles_of(job: Json) -> Json:
    specs: Json = job["spec"][REPLICAS[job["kind"]]]
    return specs


def edited(kind: str, path: str, value: Any, **fields: Any) -> Json:
    """A job with `value` at a path below its worker, or at a path from the root that starts with `/`."""
    job = copy.deepcopy(make(kind, **fields))
    place = job if path.startswith("/") else roles_of(job)["Worker"]
    *steps, last = path.strip("/").format(map=REPLICAS[kind]).split("/")
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    place[last] = value
    return job


NAME = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
COMMON: list[tuple[str, Any, str]] = [
    ("/metadata/name", "0-test", f'metadata.name: Invalid value: "0-test": should match: {NAME}'),
    (
        "/spec/runPolicy/managedBy",
        "other-job-controller",
        (
            'spec.runPolicy.managedBy: Unsupported value: "other-job-controller": supported values: '
            '"kueue.x-k8s.io/multikueue", "kubeflow.org/training-operator"'
        ),
    ),
    ("/spec/{map}", None, f"{MAP}: Required value: must be required"),
    (
        "/spec/{map}/Boss",
        {},
        f'{MAP}[Boss]: Unsupported value: "Boss": supported values: {{roles}}',
    ),
    (
        "template/spec/containers",
        [],
        (
            f"[{TEMPLATE}: Required value: must be specified, "
            f"{TEMPLATE}: Required value: must have at least one container with name {{container}}]"
        ),
    ),
    ("template/spec/containers/0/image", "", f"{TEMPLATE}[0].image: Required value: must be required"),
    (
        "template/spec/containers/0/name",
        "other",
        f"{TEMPLATE}: Required value: must have at least one container with name {{container}}",
    ),
    # what upstream accepts, and the job then never works
    ("replicas", -1, f"{MAP}[Worker].replicas: {{negative}}"),
    (
        "restartPolicy",
        "Sometimes",
        (
            f'{MAP}[Worker].restartPolicy: Unsupported value: "Sometimes": '
            'supported values: "Always", "OnFailure", "Never", "ExitCode"'
        ),
    ),
    (
        "/spec/runPolicy/cleanPodPolicy",
        "Some",
        'spec.runPolicy.cleanPodPolicy: Unsupported value: "Some": supported values: "None", "Running", "All"',
    ),
    (
        "/spec/runPolicy/backoffLimit",
        -1,
        "spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0",
    ),
]
NEGATIVE = {"PyTorchJob": "Forbidden: must be at least 1"}


@pytest.mark.case("job-engine-37", "abd")
@pytest.mark.case("frameworks-v1-22", "gh")
@pytest.mark.parametrize(("path", "value", "message"), COMMON, ids=[row[0] for row in COMMON])
@every_kind
def test_rules_of_all_kinds(kind: str, path: str, value: Any, message: str):
    job = edited(kind, path, value)
    expected = message.format(
        map=REPLICAS[kind],
        container=CONTAINERS[kind],
        roles=ROLES[kind],
        negative=NEGATIVE.get(kind, "Invalid value: -1: must be greater than or equal to 0"),
    )
    found = denial(kind, job)
    if path == "template/spec/containers/0/image":  # the template is shared by all roles
        assert expected in found
    elif path.startswith("template"):
        assert expected.strip("[]") in found
    else:
        assert found == expected
    # The stored job can still get a finalizer, or be resumed.
    stored = review(kind, edited(kind, path, value, run=job["spec"].get("runPolicy")), job)
    assert stored.allowed
    assert all(len(warning.encode()) <= 256 for warning in stored.warnings)


@every_kind
def test_an_empty_map_and_too_long_names_are_refused(kind: str):
    assert f"spec.{REPLICAS[kind]}: Required value: must " in denial(kind, edited(kind, "/spec/{map}", {}))
    long = make(kind, name="a" * 60)
    assert 'metadata.name: Invalid value: "' in denial(kind, long)
    assert "must be no more than 63 characters" in denial(kind, long)


@pytest.mark.case("job-engine-37", "cfg")
@pytest.mark.case("frameworks-v1-22", "abd")
@pytest.mark.case("frameworks-v1-12", "a")
@pytest.mark.case("frameworks-v1-29", "c")
@pytest.mark.parametrize(
    ("kind", "roles", "spec", "message"),
    [
        ("PyTorchJob", {"Master": 2}, {}, "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"),
        ("PyTorchJob", {"Worker": 0}, {}, "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1"),
        ("XGBoostJob", {"Master": 2}, {}, "spec.xgbReplicaSpecs[Master].replicas: Forbidden: must be 1"),
        ("XGBoostJob", {"Worker": 1}, {}, "spec.xgbReplicaSpecs[Master]: Required value: must be present"),
        (
            "TFJob",
            {"Chief": 1, "Master": 1},
            {},
            "spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master role",
        ),
        (
            "PyTorchJob",
            {"Worker": 1},
            {"nprocPerNode": "2", "elasticPolicy": {"nProcPerNode": 2}},
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
        ),
        *(
            (
                kind,
                {"Master": 1},
                {"elasticPolicy": {}},
                f"spec.{REPLICAS[kind]}[Worker]: Required value: must be configured if elastic policy is used",
            )
            for kind in ("PyTorchJob", "PaddleJob")
        ),
    ],
)
def test_rules_of_one_kind(kind: str, roles: dict[str, int], spec: Json, message: str):
    assert denial(kind, make(kind, roles, **spec)) == message


@every_kind
def test_good_jobs_and_other_operations_are_admitted(kind: str):
    good, bad = make(kind), make(kind, {})
    assert review(kind, good) == AdmissionResponse(True)
    assert review(kind, good, bad) == AdmissionResponse(True)
    for operation in ("DELETE", "CONNECT"):
        assert review(kind, bad, bad, operation).allowed
    assert review(kind, None, bad, "DELETE").allowed


def test_what_no_api_server_sends_is_refused():
    for metadata in ({"name": 1}, "x"):
        response = review("TFJob", {"metadata": metadata})
        assert (response.allowed, response.code) == (False, 400)
        assert response.message.startswith("the object cannot be decoded")


def test_messages_and_warnings_are_bounded():
    errors = tuple(FieldError(f"spec.{'x' * 200}[{number}]", REQUIRED, "y" * 900) for number in range(5000))
    response = respond(Judgement(errors, 7, tuple(f"{number} {'ü' * 3000}" for number in range(5000))))
    assert not response.allowed
    assert len(response.message.encode()) <= 1024
    assert response.message.endswith("more)]")
    assert len(response.warnings) == 11
    assert all(len(warning.encode()) <= 256 for warning in response.warnings)
    assert response.warnings[-1] == "4,990 more warnings are left out"


@pytest.mark.parametrize("shape", ["too many containers", "unknown roles", "bad elastic metrics", "long role"])
def test_messages_about_hostile_jobs_are_bounded(shape: str):
    job = SHAPES[shape].readable_job()
    assert len(denial("PyTorchJob", job).encode()) <= 1024
    stored = review("PyTorchJob", job, job)
    assert stored.allowed
    assert 1 <= len(stored.warnings) <= 11
    assert all(len(warning.encode()) <= 256 for warning in stored.warnings)


def set_policy(job: Json) -> None:
    job["spec"].setdefault("runPolicy", {}).setdefault("cleanPodPolicy", "Running")


def test_a_kind_has_a_webhook_for_its_validation_and_one_for_its_defaults():
    both = replace(kind_of(FRAMEWORKS["TFJob"]), default=set_policy)
    neither = replace(kind_of(FRAMEWORKS["JAXJob"]), judge=admit_all)
    first, second = webhooks_of([both, neither])
    assert (first.path, first.configuration) == ("/mutate-kubeflow-org-v1-tfjob", MUTATING)
    assert (second.path, second.configuration) == ("/validate-kubeflow-org-v1-tfjob", VALIDATING)
    assert configurations_of([first, second, first]) == (MUTATING, VALIDATING)
    request = AdmissionRequest("u", "CREATE", object=make("TFJob", run={"suspend": True}))
    response = first.handler(request)
    assert isinstance(response, AdmissionResponse)
    assert response.patch == ({"op": "add", "path": "/spec/runPolicy/cleanPodPolicy", "value": "Running"},)


class Away:
    """A transport that is not used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        (Settings(pod_namespace="kubeflow", schemes=("tfjob",)), True),
        (Settings(pod_namespace="kubeflow", webhook_server_port=0), False),
        (Settings(), False),
    ],
)
def test_every_kind_is_served_in_a_pod_whatever_kinds_are_enabled(settings: Settings, served: bool):
    """And nothing outside of a pod, where the API server could not reach the operator."""
    metrics = JobMetrics()
    manager = build(settings, Away(), signals=False, metrics=metrics)
    paths = [f"/validate-kubeflow-org-v1-{kind.lower()}" for kind in (*KINDS, "MPIJob")] if served else []
    paths += ["/validate-kubeflow-org-v2beta1-mpijob"] if served else []
    seen = {
        sample.labels["webhook"]
        for family in metrics.registry.collect()
        if family.name == "controller_runtime_webhook_requests"
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert seen == set(paths)
    assert ("webhooks" in manager.ready._checks) == served


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: f"{kind.resource.kind}-{kind.controller}")
def test_a_misspelt_field_of_a_template_is_a_warning_and_no_error(kind: Kind):
    template = {"spec": {"containers": [{"name": "c", "image": "i", "resource": {}}]}}
    roles = {"Worker": {"template": template}}
    job = {"metadata": {"name": "a"}, "spec": {"coordinator": {"template": template}, "xReplicaSpecs": roles}}
    for operation, old in (("CREATE", None), ("UPDATE", job)):
        answer = build_handler(kind.admit)(AdmissionRequest("u", operation, object=job, old_object=old))
        assert isinstance(answer, AdmissionResponse)
        assert "resource" not in answer.message
        assert [text for text in answer.warnings if "unknown field" in text] == [
            f'spec.{at}.template.spec.containers[0].resource: unknown field, did you mean "resources"?'
            for at in ("coordinator", "xReplicaSpecs.Worker")
        ]
