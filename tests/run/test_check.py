"""The errors that `trainop run` reports about files before it starts anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainop.run.check import find_jobs
from trainop.run.documents import BadInputError, read


def job(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"}, "spec": spec}


def master(**fields: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}, **fields}


def said(tmp_path: Path, *objects: dict[str, Any]) -> list[str]:
    """The lines of the error, without the path of the file."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    with pytest.raises(BadInputError) as refused:
        find_jobs(read([path]))
    return [re.sub(r"^\d+:\d+: ", "", line) for line in str(refused.value).replace(f"{path}:", "").splitlines()]


def test_a_misspelt_field_is_named_with_what_was_meant(tmp_path: Path):
    assert said(tmp_path, job(pytorchReplicaSpec={"Master": master()})) == [
        'error: spec.pytorchReplicaSpec: unknown field, did you mean "pytorchReplicaSpecs"?',
        "error: spec.pytorchReplicaSpecs: Required value: must be required",
    ]
    assert said(tmp_path, job(pytorchReplicaSpecs={"Master": master(replica=1, xyz=1)})) == [
        'error: spec.pytorchReplicaSpecs.Master.replica: unknown field, did you mean "replicas"?',
        "error: spec.pytorchReplicaSpecs.Master.xyz: unknown field",
    ]


def test_a_misspelt_field_of_a_template_is_refused(tmp_path: Path):
    entry = master()
    entry["template"]["spec"]["containers"][0]["resource"] = {"limits": {"nvidia.com/gpu": 1}}
    at = "error: spec.pytorchReplicaSpecs.Master.template.spec.containers[0].resource"
    assert said(tmp_path, job(pytorchReplicaSpecs={"Master": entry})) == [
        f'{at}: unknown field, did you mean "resources"?'
    ]


def test_an_object_beside_the_job_is_checked_too(tmp_path: Path):
    spec = {"aggregator": {"template": {"spec": {"containers": [{"name": "c", "envs": []}]}}}}
    config = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "AggregatorConfig", "metadata": {"name": "a"}}
    at = "spec.aggregator.template.spec.containers[0].envs"
    lines = said(tmp_path, job(pytorchReplicaSpecs={"Master": master()}), {**config, "spec": spec})
    assert [line.partition(": ")[2] for line in lines] == [f'{at}: unknown field, did you mean "env"?']


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({"command": "python x.py"}, "command: must be a list, found a string"),
        (
            {"env": [{"name": "A", "value": 1}]},
            "env[0].value: must be a string, found a whole number; put it in quotes",
        ),
        (
            {"resources": {"limits": {"cpu": "lots"}}},
            'resources.limits.cpu: must be a quantity such as 2, 500m or 4Gi, found "lots"',
        ),
    ],
)
def test_wrong_types_below_a_template_are_said_before_anything_starts(
    tmp_path: Path, container: dict[str, Any], line: str
):
    entry = master()
    entry["template"]["spec"]["containers"][0] |= container
    at = "error: spec.pytorchReplicaSpecs.Master.template.spec.containers[0]"
    assert said(tmp_path, job(pytorchReplicaSpecs={"Master": entry})) == [f"{at}.{line}"]


def test_one_mistake_is_said_once(tmp_path: Path):
    entry = master(replicas="two")
    entry["template"]["spec"]["containers"][0]["env"] = [{"a": "b"}]
    lines = said(tmp_path, job(pytorchReplicaSpecs={"Master": entry}))
    assert len([line for line in lines if ".replicas: " in line]) == 1
    assert len(lines) == len(set(lines))


def test_metadata_of_wrong_types_is_an_error(tmp_path: Path):
    wrong = {**job(pytorchReplicaSpecs={"Master": master()}), "metadata": {"name": "train", "labels": {"a": 1}}}
    assert said(tmp_path, wrong) == ["error: metadata.labels: must be a string, found a number; put it in quotes"]


def test_all_errors_are_reported_at_once(tmp_path: Path):
    first = job(pytorchReplicaSpecs={"Master": master(replicas=2)})
    second = {**job(pytorchReplicaSpecs={"Worker": master(restartPolicy="Sometimes")}), "metadata": {"name": "other"}}
    lines = said(tmp_path, first, second)
    assert [line.split(": ")[1].rpartition(".")[2] for line in lines] == ["replicas", "restartPolicy"]
    assert "replicas: Forbidden: must be 1" in lines[0]
    assert 'restartPolicy: Unsupported value: "Sometimes"' in lines[1]


def test_files_without_a_job_are_refused(tmp_path: Path):
    lines = said(tmp_path, {"apiVersion": "v1", "kind": "PyTorchJob", "metadata": {"name": "train"}})
    assert lines[0].startswith("1: no job found, only PyTorchJob (v1); supported kinds of jobs: DIJob, JAXJob, ")


def test_an_object_may_stand_only_once(tmp_path: Path):
    twin = job(pytorchReplicaSpecs={"Master": master()})
    (line,) = said(tmp_path, twin, twin)
    assert line.endswith("PyTorchJob train is already defined at 1")


@pytest.mark.parametrize("version", ["v1", "v2beta1"])
def test_mpijobs_are_checked_as_their_version_demands(tmp_path: Path, version: str):
    template = {"spec": {"containers": [{"name": "mpi", "image": "i", "command": ["mpirun"]}]}}
    roles = {"Launcher": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}
    good = {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "metadata": {"name": "pi"},
        "spec": {"mpiReplicaSpecs": roles},
    }
    path = tmp_path / "good.yaml"
    path.write_text(yaml.safe_dump(good), encoding="utf-8")
    ((document, found),) = find_jobs(read([path]))
    assert (document.key.name, found.resource.version) == ("pi", version)
    bad = {
        **good,
        "spec": {"mpiReplicaSpecs": {**roles, "Launcher": {"replicas": 2, "template": template}}, "slotsPerWorkers": 1},
    }
    lines = said(tmp_path, bad)
    assert lines[0] == 'error: spec.slotsPerWorkers: unknown field, did you mean "slotsPerWorker"?'
    assert "Launcher" in lines[1]


def test_the_examples_of_mpijobs_are_valid():
    for path in sorted((Path(__file__).parents[2] / "examples" / "mpi").glob("*.yaml")):
        assert find_jobs(read([path]))
