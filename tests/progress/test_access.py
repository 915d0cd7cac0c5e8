"""What pods get so that they can report: the same for every kind, in the main container only, and nothing otherwise."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainop.engine.kind import doubt_progress
from trainop.engine.progress import ProgressEndpoint, access_of, find_doubt
from trainop.engine.seen import Options, Snapshot
from trainop.explain.rehearsal import rehearse
from trainop.programs.schemes import all_kinds
from trainop.run.check import find_jobs
from trainop.run.documents import read
from trainop.runtime import Json, Metadata, Resource, Unstructured

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/[!b]*/*.yaml"))
ENDPOINT = ProgressEndpoint("https://op.ns.svc:9444", authority="PEM")
OFF, ON, ALL = Options(), Options(progress=ENDPOINT), Options(progress=replace(ENDPOINT, everywhere=True))
MAIN = {"PyTorchJob": "pytorch", "TFJob": "tensorflow", "DIJob": "di-container"}
NAMES = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
)


def jobs() -> dict[str, Json]:
    """An example of each kind and transport, with a second container."""
    found: dict[str, Json] = {}
    for path in EXAMPLES:
        if path.parent.name == "runtime":
            continue
        for document, _ in find_jobs(read([path])):
            found.setdefault(f"{document.kind}-{document.api_version.rpartition('/')[2]}", document.raw)
    return found


JOBS = jobs()


def pods_of(raw: Json, options: Options, annotation: str | None) -> list[Json]:
    """The pods and pod templates that the operator makes."""
    job = copy.deepcopy(raw)
    if annotation is not None:
        job["metadata"].setdefault("annotations", {})["trainop.kubeflow.org/progress"] = annotation
    group, _, _ = job["apiVersion"].rpartition("/")
    kinds = [each for each in all_kinds(options) if (each.resource.kind, each.resource.group) == (job["kind"], group)]
    made = rehearse(kinds, job, options, datetime.now(UTC)).made
    templates = [each.manifest["spec"]["template"] for each in made if each.resource.kind == "Job"]
    return [*(each.manifest for each in made if each.resource.kind == "Pod"), *templates]


def test_every_kind_has_an_example():
    assert {name.partition("-")[0] for name in JOBS} == {kind.resource.kind for kind in all_kinds(OFF)}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    ("options", "annotation"), [(OFF, "true"), (ON, None), (ON, "false"), (ON, "yes"), (ALL, "false")]
)
def test_a_job_that_does_not_ask_has_the_same_pods(name: str, options: Options, annotation: str | None):
    def without(pods: list[Json]) -> list[Json]:
        return [{name: value for name, value in pod.items() if name != "metadata"} for pod in pods]

    assert without(pods_of(JOBS[name], options, annotation)) == without(pods_of(JOBS[name], OFF, annotation))
    assert "kubeflow-trainer-token" not in str(pods_of(JOBS[name], options, annotation))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("options", "annotation"), [(ON, "true"), (ALL, None)])
def test_the_pods_of_a_job_that_asks(name: str, options: Options, annotation: str | None):
    raw = JOBS[name]
    before, after = pods_of(raw, OFF, annotation), pods_of(raw, options, annotation)
    assert len(before) == len(after) > 0
    audience = f"{raw['apiVersion']}/namespaces/default/{raw['kind'].lower()}s/{raw['metadata']['name']}/status"
    for old, pod in zip(before, after, strict=True):
        assert pod["metadata"]["annotations"]["trainop.kubeflow.org/progress-ca"] == "PEM"
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "kubeflow-trainer-token")
        token, certificates = volume["projected"]["sources"]
        assert token["serviceAccountToken"] == {"path": "token", "audience": audience, "expirationSeconds": 3600}
        (file,) = certificates["downwardAPI"]["items"]
        assert file["path"] == "ca.crt"
        assert file["fieldRef"]["fieldPath"] == "metadata.annotations['trainop.kubeflow.org/progress-ca']"
        (container,) = (each for each in pod["spec"]["containers"] if NAMES[0] in str(each.get("env")))
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert [variables[each] for each in NAMES] == [
            f"https://op.ns.svc:9444/apis/{audience}",
            "/var/run/secrets/kubeflow/trainer/ca.crt",
            "/var/run/secrets/kubeflow/trainer/token",
        ]
        assert {
            "name": "kubeflow-trainer-token",
            "mountPath": "/var/run/secrets/kubeflow/trainer",
            "readOnly": True,
        } in (container["volumeMounts"])
        # Everything else is as before.
        assert [each["name"] for each in pod["spec"]["containers"]] == [
            each["name"] for each in old["spec"]["containers"]
        ]
        assert [each for each in container["env"] if each["name"] not in NAMES] == (
            next(each for each in old["spec"]["containers"] if each["name"] == container["name"]).get("env") or []
        )


JOB = Metadata(name="j", namespace="ns", annotations={"trainop.kubeflow.org/progress": "true"})
RESOURCE = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": None},
        {"containers": "x"},
        {"containers": [1, None]},
        {"containers": [{}]},
        {"containers": [{"name": "a"}], "volumes": [{"name": "kubeflow-trainer-token"}]},
    ],
    ids=range(6),
)
def test_specs_that_are_left_as_they_are(spec: Json):
    access = access_of(JOB, RESOURCE, ENDPOINT)
    assert access is not None
    assert access.add_to(spec, "a") == spec


@pytest.mark.parametrize("field", ["env", "volumeMounts", "volumes"])
@pytest.mark.parametrize("value", [1, "x", {"a": 1}, None])
def test_fields_of_a_wrong_type_do_not_raise(field: str, value: object):
    container = {"name": "a", **({field: value} if field != "volumes" else {})}
    spec = {"containers": [container], **({"volumes": value} if field == "volumes" else {})}
    before = copy.deepcopy(spec)
    access = access_of(JOB, RESOURCE, ENDPOINT)
    assert access is not None
    assert len(access.add_to(spec, "a")["volumes"]) == 1
    assert spec == before


def test_the_account_of_the_template_is_kept():
    access = access_of(JOB, RESOURCE, ENDPOINT)
    assert access is not None
    for given, expected in (({}, "default"), ({"serviceAccountName": "s"}, "s"), ({"serviceAccount": "t"}, "t")):
        assert access.add_to({"containers": [{"name": "a"}], **given})["serviceAccountName"] == expected


@pytest.mark.parametrize(
    ("value", "endpoint", "said"),
    [
        (None, None, ""),
        ("false", None, ""),
        ("true", ENDPOINT, ""),
        ("true", None, "this operator takes no reports"),
        ("True", ENDPOINT, '"True" is ignored'),
        ("x" * 5000, None, '"xxx'),
    ],
    ids=range(6),
)
def test_doubts(value: str | None, endpoint: ProgressEndpoint | None, said: str):
    found = find_doubt({} if value is None else {"trainop.kubeflow.org/progress": value}, endpoint)
    assert said in found
    assert bool(said) == bool(found)
    assert len(found) < 400


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("options", "value", "warned"), [(OFF, "true", True), (ON, "yes", True), (ON, "true", False)])
def test_a_job_that_cannot_report_gets_one_warning(name: str, options: Options, value: str, warned: bool):
    job = copy.deepcopy(JOBS[name])
    annotations = job["metadata"].setdefault("annotations", {})
    annotations["trainop.kubeflow.org/progress"] = value
    if job["kind"] == "MPIJob":  # the first pass writes the transport, and nothing else
        annotations["trainop.kubeflow.org/mpi-transport"] = "exec" if name.endswith("-v1") else "ssh"
    raw = Unstructured({**job, "metadata": {**job["metadata"], "namespace": "ns", "uid": "u"}})
    kind = next(each for each in all_kinds(options) if each.resource.kind == job["kind"] and each.concerns(raw))
    plan = kind.decide(Snapshot(raw, (), (), datetime.now(UTC), options))
    found = [each for each in plan.notices if each.event.reason == "ProgressNotReported"]
    assert len(found) == int(warned)
    ended = replace(plan, waits=None)
    assert doubt_progress(Snapshot(raw, (), (), datetime.now(UTC), options), ended) == ended
