"""Validation: one sentence per error in the API server's style, naming the field."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.builders import make_job, plan_for, replica, template, written
from trainop.engine.actions import Event
from trainop.engine.extensions import RESTART_SCOPE
from trainop.engine.fields import Fields, sentence
from trainop.engine.job import Job
from trainop.engine.parse import parse
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json, Unstructured

MAP = "spec.pytorchReplicaSpecs"
SPEC = f"{MAP}[Worker].template.spec"


def read(job: Json) -> Job:
    return parse(PYTORCH, Unstructured(job))


def errors(job: Json) -> list[str]:
    return [str(error) for error in read(job).errors]


def changed(path: str, value: Any, *, elastic: bool = False) -> Json:
    """A good job, but for one field; the path's list places are numbers."""
    job = make_job(1, 1, run={"suspend": False}, spec={"elasticPolicy": {}} if elastic else {})
    place: Any = job
    *parents, last = path.split("/")
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    place[int(last) if isinstance(place, list) else last] = copy.deepcopy(value)
    return job


WORKER = "spec/pytorchReplicaSpecs/Worker"
CONTAINER = f"{WORKER}/template/spec/containers/0"


def test_a_good_job_has_no_errors():
    assert errors(make_job()) == []
    assert errors(make_job(run={"managedBy": None, "suspend": None}, spec={"elasticPolicy": {"rdzvConf": []}})) == []


def test_what_is_not_given_has_defaults():
    job = read(make_job(1, None))
    assert job.run_policy.clean_pod_policy == "None"
    assert (job.roles[0].restart_policy, job.roles[0].replicas) == ("OnFailure", 1)
    assert job.roles[0].port("pytorchjob-port") == 23456
    assert job.roles[0].port("other") is None


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec", None, [f"{MAP}: Required value: must be required"]),
        ("spec", [], ["spec: Invalid value: []: must be an object", f"{MAP}: Required value: must be required"]),
        ("spec/pytorchReplicaSpecs", None, [f"{MAP}: Required value: must be required"]),
        ("spec/pytorchReplicaSpecs", {}, [f"{MAP}: Required value: must have at least one of Master, Worker"]),
        ("spec/pytorchReplicaSpecs", "x", [f'{MAP}: Invalid value: "x": must be an object']),
        (
            "spec/pytorchReplicaSpecs/Chief",
            replica(),
            [f'{MAP}[Chief]: Unsupported value: "Chief": supported values: "Master", "Worker"'],
        ),
        (
            "spec/pytorchReplicaSpecs/worker",
            replica(),
            [f'{MAP}[worker]: Duplicate value: "worker": give Worker once'],
        ),
        ("spec/pytorchReplicaSpecs/Master/replicas", 2, [f"{MAP}[Master].replicas: Forbidden: must be 1"]),
        ("spec/pytorchReplicaSpecs/Master/replicas", 0, [f"{MAP}[Master].replicas: Forbidden: must be 1"]),
        (f"{WORKER}/replicas", 0, [f"{MAP}[Worker].replicas: Forbidden: must be at least 1"]),
        (f"{WORKER}/replicas", -1, [f"{MAP}[Worker].replicas: Forbidden: must be at least 1"]),
        (f"{WORKER}/replicas", "2", [f'{MAP}[Worker].replicas: Invalid value: "2": must be a whole number']),
        (f"{WORKER}/replicas", 1.5, [f"{MAP}[Worker].replicas: Invalid value: 1.5: must be a whole number"]),
        (f"{WORKER}/replicas", True, [f"{MAP}[Worker].replicas: Invalid value: true: must be a whole number"]),
        (
            f"{WORKER}/replicas",
            2**31 - 1,
            [f"{MAP}[Worker].replicas: Invalid value: 2147483647: must be less than or equal to 100000"],
        ),
        (
            f"{WORKER}/restartPolicy",
            "Sometimes",
            [
                (
                    f'{MAP}[Worker].restartPolicy: Unsupported value: "Sometimes": '
                    'supported values: "Always", "OnFailure", "Never", "ExitCode"'
                )
            ],
        ),
        (
            WORKER,
            None,
            [
                f"{SPEC}.containers: Required value: must be specified",
                f"{SPEC}.containers: Required value: must have at least one container with name pytorch",
            ],
        ),
        (f"{WORKER}/template/metadata", 1, [f"{MAP}[Worker].template.metadata: Invalid value: 1: must be an object"]),
        (
            f"{WORKER}/template/metadata",
            {"labels": [], "annotations": "x"},
            [
                f"{MAP}[Worker].template.metadata.labels: Invalid value: []: must be an object",
                f'{MAP}[Worker].template.metadata.annotations: Invalid value: "x": must be an object',
            ],
        ),
        (
            f"{WORKER}/template/spec/containers",
            [],
            [
                f"{SPEC}.containers: Required value: must be specified",
                f"{SPEC}.containers: Required value: must have at least one container with name pytorch",
            ],
        ),
        (
            f"{WORKER}/template/spec/initContainers",
            {},
            [f"{SPEC}.initContainers: Invalid value: {{}}: must be a list"],
        ),
        (
            f"{CONTAINER}/name",
            None,
            [f"{SPEC}.containers: Required value: must have at least one container with name pytorch"],
        ),
        (
            f"{WORKER}/template/spec/containers",
            [{"image": "i"}, {"name": "pytorch", "image": "i"}],
            [f"{SPEC}.containers[0].name: Required value: must be required"],
        ),
        (f"{CONTAINER}/image", "", [f"{SPEC}.containers[0].image: Required value: must be required"]),
        (
            f"{CONTAINER}/image",
            3,
            [
                f"{SPEC}.containers[0].image: Invalid value: 3: must be a string",
                f"{SPEC}.containers[0].image: Required value: must be required",
            ],
        ),
        (f"{CONTAINER}/env", "A=1", [f'{SPEC}.containers[0].env: Invalid value: "A=1": must be a list']),
        (
            f"{CONTAINER}/ports",
            [None],
            [f"{SPEC}.containers[0].ports[0].containerPort: Required value: must be required"],
        ),
        (
            f"{CONTAINER}/ports",
            [{"containerPort": 0, "name": 1}],
            [
                f"{SPEC}.containers[0].ports[0].containerPort: Invalid value: 0: must be greater than or equal to 1",
                f"{SPEC}.containers[0].ports[0].name: Invalid value: 1: must be a string",
            ],
        ),
        ("spec/runPolicy", [], ["spec.runPolicy: Invalid value: []: must be an object"]),
        (
            "spec/runPolicy/cleanPodPolicy",
            "Sometimes",
            [
                (
                    'spec.runPolicy.cleanPodPolicy: Unsupported value: "Sometimes": '
                    'supported values: "None", "Running", "All"'
                )
            ],
        ),
        (
            "spec/runPolicy/managedBy",
            7,
            [
                (
                    "spec.runPolicy.managedBy: Unsupported value: 7: "
                    'supported values: "kueue.x-k8s.io/multikueue", "kubeflow.org/training-operator"'
                )
            ],
        ),
        (
            "spec/runPolicy/backoffLimit",
            -1,
            ["spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            "spec/runPolicy/ttlSecondsAfterFinished",
            "1",
            ['spec.runPolicy.ttlSecondsAfterFinished: Invalid value: "1": must be a whole number'],
        ),
        (
            "spec/runPolicy/activeDeadlineSeconds",
            2**63,
            [
                (
                    "spec.runPolicy.activeDeadlineSeconds: Invalid value: 9223372036854775808: "
                    "must be less than or equal to 9223372036854775807"
                )
            ],
        ),
        ("spec/runPolicy/suspend", "yes", ['spec.runPolicy.suspend: Invalid value: "yes": must be true or false']),
        ("spec/nprocPerNode", 4, ["spec.nprocPerNode: Invalid value: 4: must be a string"]),
        ("spec/elasticPolicy", 4, ["spec.elasticPolicy: Invalid value: 4: must be an object"]),
    ],
)
def test_one_field_wrong(path: str, value: Any, expected: list[str]):
    assert errors(changed(path, value)) == expected


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("minReplicas", 0, "spec.elasticPolicy.minReplicas: Invalid value: 0: must be greater than or equal to 1"),
        ("maxReplicas", "x", 'spec.elasticPolicy.maxReplicas: Invalid value: "x": must be a whole number'),
        ("rdzvPort", 70_000, "spec.elasticPolicy.rdzvPort: Invalid value: 70000: must be less than or equal to 65535"),
        ("rdzvBackend", 1, "spec.elasticPolicy.rdzvBackend: Invalid value: 1: must be a string"),
        ("rdzvConf", {}, "spec.elasticPolicy.rdzvConf: Invalid value: {}: must be a list"),
        ("rdzvConf", [1], "spec.elasticPolicy.rdzvConf[0]: Invalid value: 1: must be an object"),
        ("rdzvConf", [{"key": 1}], "spec.elasticPolicy.rdzvConf[0].key: Invalid value: 1: must be a string"),
        ("standalone", 1, "spec.elasticPolicy.standalone: Invalid value: 1: must be true or false"),
        ("maxRestarts", -1, "spec.elasticPolicy.maxRestarts: Invalid value: -1: must be greater than or equal to 0"),
    ],
)
def test_one_field_of_the_elastic_policy_wrong(field: str, value: Any, expected: str):
    assert errors(changed(f"spec/elasticPolicy/{field}", value, elastic=True)) == [expected]


def test_more_rules_of_the_elastic_policy():
    assert errors(make_job(1, None, spec={"elasticPolicy": {}})) == [
        f"{MAP}[Worker]: Required value: must be configured if elastic policy is used"
    ]
    assert errors(make_job(spec={"elasticPolicy": {"nProcPerNode": 2}, "nprocPerNode": "2"})) == [
        "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode"
    ]
    assert errors(make_job(spec={"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}})) == [
        "spec.elasticPolicy.minReplicas: Invalid value: 3: must be less than or equal to maxReplicas, which is 2"
    ]


@pytest.mark.parametrize("name", ["0-test", "a.b", "A", "a-", "", "ä"])
def test_names_that_are_no_dns_labels(name: str):
    (error,) = errors(make_job(name=name))
    assert error.startswith(f'metadata.name: Invalid value: "{name}": should match: a DNS-1035 label must consist of')


def test_names_that_are_too_long():
    (error,) = errors(make_job(name="a" * 64))
    assert error.endswith("should match: must be no more than 63 characters")
    # a-worker-1 has 9 characters more than the job, and with ten workers still only one digit
    assert errors(make_job(1, 10, name="a" * 54)) == []
    (error,) = errors(make_job(1, 11, name="a" * 54))
    assert error.endswith(
        f'the service "{"a" * 54}-worker-10" must be no more than 63 characters: '
        "shorten the job's name by 1 or lower its replicas"
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(None, "None"), ("", "All"), ("Sometimes", "None"), (7, "None"), ("running", "Running"), ("ALL", "All")],
)
def test_clean_pod_policies(policy: object, expected: str):
    assert read(make_job(run={"cleanPodPolicy": policy})).run_policy.clean_pod_policy == expected


def test_unreadable_limits_do_not_limit():
    run = {"ttlSecondsAfterFinished": "x", "activeDeadlineSeconds": -1, "backoffLimit": "x"}
    policy = read(make_job(run=run)).run_policy
    assert (policy.ttl, policy.active_deadline, policy.backoff_limit) == (None, None, None)


def test_a_time_to_live_below_0_deletes_no_job():
    """training-operator deletes such a job as soon as it ends, and with it the message that says what is wrong."""
    assert read(make_job(run={"ttlSecondsAfterFinished": -5})).run_policy.ttl is None


def test_a_second_container_of_the_name_changes_no_ports():
    ports = [{"name": "pytorchjob-port", "containerPort": 1}]
    containers = [{"name": "pytorch", "image": "i"}, {"name": "pytorch", "image": "i", "ports": ports}]
    job = read(make_job(1, None, tmpl=template(containers=containers)))
    assert job.roles[0].port("pytorchjob-port") == 23456


def test_several_errors_are_one_sentence():
    fields = Fields()
    fields.required("a", "must be required")
    assert sentence(fields.errors) == "a: Required value: must be required"
    fields.forbidden("b", "must be 1")
    assert sentence(fields.errors) == "[a: Required value: must be required, b: Forbidden: must be 1]"


def test_long_values_are_cut_short():
    fields = Fields()
    fields.invalid("a", "x" * 1000, "no")
    assert len(str(fields.errors[0])) < 140


def test_values_that_json_does_not_know_are_shown_all_the_same():
    fields = Fields()
    fields.invalid("a", {1}, "no")
    assert str(fields.errors[0]) == 'a: Invalid value: "{1}": no'


def test_thousands_of_unknown_roles_are_one_short_message():
    """They are not counted as replicas, because etcd would refuse the status."""
    job = make_job()
    job["spec"]["pytorchReplicaSpecs"] = {f"Role{number:05}": {} for number in range(20_000)}
    made = plan_for(job)
    failed = written(made)["conditions"][-1]
    assert (failed["type"], failed["reason"]) == ("Failed", "PyTorchJobFailedValidation")
    assert 'Role00000]: Unsupported value: "Role00000": supported values: "Master", "Worker"' in failed["message"]
    assert len(failed["message"]) <= 1024
    shown, left = (
        failed["message"].count("Unsupported value"),
        re.search(r"\(and ([\d,]+) more\)\]$", failed["message"]),
    )
    assert left is not None
    assert shown + int(left[1].replace(",", "")) == 20_000
    assert len(json.dumps(made.status)) < 2000
    (event,) = (transition for transition in made.transitions if isinstance(transition, Event))
    assert event.message == failed["message"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job: job["spec"]["pytorchReplicaSpecs"].update({"x" * 700_000: {}}),
        lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(restartPolicy="x" * 1_000_000),
        lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=["x"] * 300_000),
        lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(template=[{"a": "x" * 1_000_000}]),
        lambda job: job["metadata"].update(name="x" * 700_000),
        lambda job: job["metadata"].update(annotations={RESTART_SCOPE: "x" * 200_000}),
    ],
)
def test_no_value_of_a_user_makes_a_text_long(spoil: Callable[[Json], None]):
    job = make_job()
    spoil(job)
    made = plan_for(job)
    failed = written(made)["conditions"][-1]
    assert failed["type"] == "Failed"
    texts = [failed["message"], *(event.message for event in made.transitions if isinstance(event, Event))]
    assert len(texts) == 2
    assert all(len(text) <= 1024 and "..." in text for text in texts), texts


def test_of_invalid_ports_few_are_reported():
    """In each of a hundred containers; the time of a review is bounded."""
    bad = {"name": "pytorch", "image": "i", "ports": [{"containerPort": 0}] * 200}
    found = errors(changed(f"{WORKER}/template/spec/containers", [bad] * 200))
    assert len(found) == 100 * 11 + 1
    rest = "after 10 entries, of which 10 are wrong, 190 are not read"
    assert found[10] == f"{SPEC}.containers[0].ports: Too many: {rest}"


def test_a_hundred_invalid_containers_are_reported_and_the_rest_is_counted():
    """A missing framework container is not reported, because the rest was not checked for its name."""
    found = errors(changed(f"{WORKER}/template/spec/containers", [7] * 5000))
    rest = "after 100 entries, of which 100 are wrong, 4,900 are not read"
    assert found[-1] == f"{SPEC}.containers: Too many: {rest}"
    assert len(found) == 201, "no object, no image"
    assert not any("at least one container with name" in error for error in found)
