"""Invalid jobs of every kind through a real API server, which prunes and defaults them before the operator sees them.

Whatever a job contains, it is refused at admission, or fails with one condition, or runs. The operator does not loop,
logs no traceback, and serves other jobs.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import Phase, given, settings

from e2e.cluster.api import TIMEOUT
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.releases import RELEASES, find_release
from tests.controllers.test_hostile import spoilt_jobs
from tests.patience import PATIENCE
from tests.server.kinds import KindWorld
from tests.server.process import Operator
from tests.server.world import MERGE, Json
from trainop.engine.framework import Framework
from trainop.engine.job import MAX_REPLICAS
from trainop.programs.schemes import FRAMEWORKS

Spoil: TypeAlias = Callable[[Json, str], None]
"""Makes a job invalid in place; the second argument is the name of its replica map in the spec."""

REFUSED, FAILS, RUNS = "refused by the API server", "Failed", "runs"


class Case(NamedTuple):
    outcome: str
    spoil: Spoil
    words: str = ""
    """Part of the expected error message."""


def spec(**fields: Any) -> Spoil:
    return lambda job, _: job["spec"].update(fields)


def policy(**fields: Any) -> Spoil:
    return spec(runPolicy=fields)


def replicas(value: Any) -> Spoil:
    """Replace the replica map with `value`."""
    return lambda job, field: job["spec"].update({field: value})


def roles(change: Callable[[Json], None]) -> Spoil:
    return lambda job, field: change(job["spec"][field])


def worker(**fields: Any) -> Spoil:
    return roles(lambda map_: map_["Worker"].update(fields))


def pod(**fields: Any) -> Spoil:
    return roles(lambda map_: map_["Worker"]["template"]["spec"].update(fields))


def container(**fields: Any) -> Spoil:
    return roles(lambda map_: map_["Worker"]["template"]["spec"]["containers"][0].update(fields))


def make_heavy(job: Json, field: str) -> None:
    """Many containers whose variables name many replicas each, which together exceed the size of a pod."""
    worker = job["spec"][field]["Worker"]
    worker["replicas"] = 300
    worker["template"]["spec"]["containers"] += [{"name": f"c{number}", "image": "none"} for number in range(180)]


def metadata(**fields: Any) -> Spoil:
    """The pod template's metadata."""
    return roles(lambda map_: map_["Worker"]["template"].update({"metadata": fields}))


def annotated(name: str, value: str) -> Spoil:
    return lambda job, _: job["metadata"].update({"annotations": {f"trainop.kubeflow.org/{name}": value}})


def rename(old: str, new: str) -> Spoil:
    return roles(lambda map_: map_.update({new: map_.pop(old)}))


CASES: dict[str, Case] = {
    # the map of replicas
    "no-map": Case(REFUSED, lambda job, field: job["spec"].pop(field), "Required value"),
    "null-map": Case(REFUSED, replicas(None), "Required value"),
    "list-map": Case(REFUSED, replicas([]), "must be of type object"),
    "empty-map": Case(FAILS, replicas({}), "must have at least one of"),
    "null-roles": Case(FAILS, roles(lambda map_: map_.update(dict.fromkeys(map_))), "must"),
    "empty-role": Case(FAILS, roles(lambda map_: map_.update({"Worker": {}})), "must be specified"),
    "unknown-role": Case(FAILS, rename("Worker", "Boss"), "Unsupported value"),
    "unicode-role": Case(FAILS, rename("Worker", "W\u00f6rker\u202e"), "Unsupported value"),
    "odd-case": Case(RUNS, rename("Worker", "wORKER")),
    "twice": Case(FAILS, roles(lambda map_: map_.update({"worker": map_["Worker"]})), "Duplicate value"),
    # numbers
    "negative": Case(FAILS, worker(replicas=-1), "must be"),
    "huge": Case(FAILS, worker(replicas=2**31 - 1), "must be less than or equal to"),
    # an integer of 32 bits: Kubernetes holds it to its format since 1.36
    "beyond": (
        Case(REFUSED, worker(replicas=2**31), "with format int32")
        if find_release() in RELEASES[2:]
        else Case(FAILS, worker(replicas=2**31), "must be less than or equal to")
    ),
    "fraction": Case(REFUSED, worker(replicas=1.5)),
    "words": Case(REFUSED, worker(replicas="two")),
    "null-count": Case(RUNS, worker(replicas=None)),
    "backoff": Case(FAILS, policy(backoffLimit=-1), "backoffLimit"),
    "ttl": Case(FAILS, policy(ttlSecondsAfterFinished=-5), "ttlSecondsAfterFinished"),
    "deadline": Case(RUNS, policy(activeDeadlineSeconds=2**63 - 1)),
    "past-deadline": Case(FAILS, policy(activeDeadlineSeconds=-(2**63)), "activeDeadlineSeconds"),
    # words
    "restart": Case(FAILS, worker(restartPolicy="Sometimes"), "restartPolicy"),
    "clean-up": Case(FAILS, policy(cleanPodPolicy="everything"), "cleanPodPolicy"),
    "null-policy": Case(RUNS, spec(runPolicy=None)),
    "flag": Case(REFUSED, policy(suspend="yes")),
    "scope": Case(FAILS, annotated("restart-scope", "universe"), "restart-scope"),
    "mode": Case(FAILS, annotated("service-mode", ""), "service-mode"),
    "limit": Case(FAILS, annotated("infra-restart-limit", "-1"), "infra-restart-limit"),
    "ledger": Case(RUNS, annotated("restarts", '{"broken":')),
    # templates
    "null-template": Case(FAILS, worker(template=None), "must be specified"),
    "template": Case(REFUSED, worker(template="pod")),
    "no-containers": Case(FAILS, pod(containers=[]), "must be specified"),
    "null-containers": Case(REFUSED, pod(containers=None)),
    "null-container": Case(REFUSED, pod(containers=[None])),
    "other-container": Case(FAILS, container(name="other"), "must have at least one container with name"),
    "no-image": Case(FAILS, container(image=""), "image: Required value"),
    "unicode-name": Case(FAILS, pod(initContainers=[{"name": "\u6a21\u578b", "image": "i"}]), "Invalid value"),
    "env": Case(REFUSED, container(env="A=1")),
    "env-entry": Case(REFUSED, container(env=[{"value": "nameless"}])),
    "env-value": Case(REFUSED, container(env=[{"name": "A", "value": {"a": 1}}])),
    "much-env": Case(RUNS, container(env=[{"name": f"A{number}", "value": "x"} for number in range(10_000)])),
    "port": Case(FAILS, container(ports=[{"name": "p", "containerPort": 70000}]), "containerPort"),
    "port-name": Case(FAILS, container(ports=[{"name": "Not A Port", "containerPort": 1}]), "Invalid value"),
    "probe": Case(FAILS, container(livenessProbe="always")),
    "volumes": Case(FAILS, pod(volumes=[{"name": "v", "emptyDir": {}}, {"name": "v w"}]), "Invalid value"),
    "affinity": Case(FAILS, pod(affinity={"nodeAffinity": "near"})),
    "label": Case(FAILS, metadata(labels={"no/such/key": "x"}), "Invalid value"),
    "label-value": Case(REFUSED, metadata(labels={"key": 1})),
    "our-labels": Case(RUNS, metadata(labels={"training.kubeflow.org/replica-index": "7"})),
    "unicode-job": Case(REFUSED, lambda job, _: job["metadata"].update({"name": "j\u00f6b"}), "Invalid value"),
    "unknown-fields": Case(RUNS, lambda job, field: job["spec"][field]["Worker"].update({"ports": {"a": [None]}})),
}

OF_KIND: dict[str, dict[str, Case]] = {
    "TFJob": {
        "success": Case(FAILS, spec(successPolicy="Whatever"), "successPolicy"),
        "dynamic": Case(REFUSED, spec(enableDynamicWorker="1")),
        "two-chiefs": Case(
            FAILS,
            roles(lambda map_: map_.update({"Chief": map_["Worker"], "Master": map_["Worker"]})),
            "more than 1 Chief or Master",
        ),
    },
    "PyTorchJob": {
        "elastic": Case(RUNS, spec(elasticPolicy={})),
        "no-elastic": Case(RUNS, spec(elasticPolicy={"rdzvConf": [], "metrics": []})),
        "rdzv": Case(REFUSED, spec(elasticPolicy={"rdzvConf": {"k": "v"}})),
        "min-max": Case(FAILS, spec(elasticPolicy={"minReplicas": 5, "maxReplicas": 2}), "minReplicas"),
        "rdzv-port": Case(FAILS, spec(elasticPolicy={"rdzvPort": 99999}), "rdzvPort"),
        "nproc": Case(REFUSED, spec(nprocPerNode=4)),
        "both": Case(FAILS, spec(nprocPerNode="2", elasticPolicy={"nProcPerNode": 2}), "must not be used with"),
        "masters": Case(
            FAILS, roles(lambda map_: map_.update({"Master": {**map_["Worker"], "replicas": 2}})), "must be 1"
        ),
    },
    "MXJob": {
        "mode-number": Case(REFUSED, spec(jobMode=1)),
        "no-mode": Case(REFUSED, lambda job, _: job["spec"].pop("jobMode"), "Required value"),
        "any-mode": Case(RUNS, spec(jobMode="\u2603")),
        "overlong": Case(FAILS, worker(replicas=5000), "the variable MX_CONFIG of Worker"),
        "heavy": Case(FAILS, make_heavy, "larger than max"),
    },
    "XGBoostJob": {
        "no-master": Case(FAILS, roles(lambda map_: map_.pop("Master")), "must be present"),
        "overlong": Case(FAILS, worker(replicas=20_000), "the variable WORKER_ADDRS of Master"),
    },
    "PaddleJob": {
        "elastic": Case(RUNS, spec(elasticPolicy={})),
        "elastic-list": Case(REFUSED, spec(elasticPolicy=[])),
        "min-max": Case(FAILS, spec(elasticPolicy={"minReplicas": 5, "maxReplicas": 2}), "minReplicas"),
    },
    "JAXJob": {
        "master": Case(FAILS, roles(lambda map_: map_.update({"Master": map_["Worker"]})), "Unsupported value"),
    },
}


OF_SCALE = {
    "negative": Case(REFUSED, worker(replicas=-1), "should be a non-negative integer"),
    "beyond": Case(REFUSED, worker(replicas=2**31)),
}
"""The API server itself validates the field of the scale subresource."""


def cases(framework: Framework) -> dict[str, Case]:
    return {**CASES, **OF_KIND.get(framework.kind, {}), **(OF_SCALE if framework.scale else {})}


@pytest.fixture(params=FRAMEWORKS, ids=str)
def stage(request: pytest.FixtureRequest, control_plane: ControlPlane, operator: Operator) -> KindWorld:
    del operator
    return KindWorld(control_plane.api, FRAMEWORKS[request.param])


def sane(stage: KindWorld, name: str) -> Json:
    """A valid job, for a case to make invalid."""
    required = dict.fromkeys(stage.framework.required_roles, 1)
    return stage.body(name, {type_: stage.role(1) for type_ in {**required, "Worker": 1}})


def reconciles(operator: Operator, stage: KindWorld) -> float:
    controller = stage.framework.controller
    names = ("success", "error", "requeue", "requeue_after")
    series = (f'controller_runtime_reconcile_total{{controller="{controller}",result="{name}"}}' for name in names)
    return sum(operator.metric(one) or 0 for one in series)


def wait_rest(operator: Operator, stage: KindWorld) -> None:
    """Wait until the operator is idle."""

    def rests() -> bool:
        before = reconciles(operator, stage)
        time.sleep(1)
        return reconciles(operator, stage) - before <= 3

    stage.wait(rests, "rest")


def put(stage: KindWorld, name: str, case: Case) -> str:
    """Create the job of a case; returns a description of an unexpected response, or an empty string."""
    job = sane(stage, name)
    case.spoil(job, stage.framework.replica_specs)
    answer = stage.try_to("POST", stage.jobs, job)
    if case.outcome != REFUSED:
        return "" if answer.status == 201 else str(answer)
    expected = answer.status in {400, 422} and case.words in answer.body["message"]
    return "" if expected else str(answer)


def judge(stage: KindWorld, name: str, case: Case) -> str:
    """A description of an unexpected outcome of the job, or an empty string."""
    reason = f"{stage.framework.kind}FailedValidation"
    if case.outcome == RUNS:
        return "" if stage.pods_of(name) else f"no pods: {stage.conditions(name)}"
    failed = stage.condition("Failed", name)
    if failed.get("reason") != reason or case.words not in failed["message"]:
        return str(stage.status(name))
    if [c[0] for c in stage.conditions(name) if c[1] == "True"] != ["Created", "Failed"]:
        return str(stage.conditions(name))
    reasons = [event["reason"] for event in stage.warnings_about(name)]
    as_expected = reasons.count(reason) == 1 and set(reasons) <= {reason, "FailedCreatePod", "FailedCreateService"}
    return str(stage.pods_of(name)) if stage.pods_of(name) else "" if as_expected else str(reasons)


def test_no_job_can_harm_the_operator(stage: KindWorld, operator: Operator):
    before = len(operator.text())
    table = cases(stage.framework)
    refused = {name: wrong for name, case in table.items() if (wrong := put(stage, name, case))}
    assert refused == {}
    stage.ask("POST", stage.jobs, sane(stage, "neighbour"))
    stage.wait(lambda: stage.pods_of("neighbour"), "pods of the job beside them")

    def surprises() -> dict[str, str]:
        accepted = {name: case for name, case in table.items() if case.outcome != REFUSED}
        return {name: wrong for name, case in accepted.items() if (wrong := judge(stage, name, case))}

    end = time.monotonic() + PATIENCE
    while surprises() and time.monotonic() < end:
        time.sleep(0.2)
    assert surprises() == {}
    wait_rest(operator, stage)
    log = operator.text()[before:]
    assert "Traceback" not in log, log
    assert '"level": "error"' not in log, log


DRAWN = 40
"""Number of generated jobs of each kind."""
MOST_PODS = 20
"""Generated jobs with more replicas in a role are valid but left out, to save time."""


def draw_specs(framework: Framework) -> list[Any]:
    """Specs generated by hypothesis, the same in every run, without a time to live, so that the jobs can be
    inspected."""
    specs: list[Any] = []

    @settings(max_examples=DRAWN, derandomize=True, database=None, phases=[Phase.generate])
    @given(spoilt_jobs(framework.kind))
    def gather(job: Json) -> None:
        spec = job["spec"]
        if isinstance(spec, dict) and isinstance(spec.get("runPolicy"), dict):
            spec["runPolicy"].pop("ttlSecondsAfterFinished", None)
        if not is_large(spec, framework.replica_specs):
            specs.append(spec)

    gather()
    return specs


def is_large(spec: Any, field: str) -> bool:
    roles = spec.get(field) if isinstance(spec, dict) else None
    asked = (
        [role.get("replicas") for role in roles.values() if isinstance(role, dict)] if isinstance(roles, dict) else []
    )
    return any(isinstance(count, int) and MOST_PODS < count <= MAX_REPLICAS for count in asked)


def test_no_drawn_job_can_harm_the_operator(stage: KindWorld, operator: Operator):
    before = len(operator.text())
    accepted = []
    specs = draw_specs(stage.framework)
    for number, spec in enumerate(specs):
        body = stage.body(f"drawn{number}", {}) | {"spec": spec}
        answer = stage.try_to("POST", stage.jobs, body)
        assert answer.status in {201, 400, 422}, answer
        accepted += [f"drawn{number}"] if answer.status == 201 else []
    assert len(specs) > len(accepted) > 0, "admission refuses some and accepts others"
    stage.ask("POST", stage.jobs, sane(stage, "neighbour"))
    stage.wait(lambda: stage.pods_of("neighbour"), "pods of the job beside them")
    stage.wait(lambda: all(stage.conditions(name) for name in accepted), "an event about each of them")
    wait_rest(operator, stage)

    def warnings(name: str) -> int:
        reasons = [event["reason"] for event in stage.warnings_about(name)]
        return reasons.count(f"{stage.framework.kind}FailedValidation")

    for name in accepted:
        failed = bool(stage.condition("Failed", name))
        if failed:
            stage.wait(partial(warnings, name), f"the warning about {name}")
        assert warnings(name) == failed, (name, stage.status(name))
        assert not (failed and stage.pods_of(name)), name
    log = operator.text()[before:]
    assert "Traceback" not in log, log
    assert '"level": "error"' not in log, log


EDITS: dict[str, Spoil] = {
    "roles gone": roles(lambda map_: map_.update({"Master": None, "Worker": None})),
    "no containers": pod(containers=[]),
    "no template": worker(template=None),
    "negative": worker(replicas=-3),
    "policy": policy(cleanPodPolicy="everything", backoffLimit=-7),
}


@pytest.mark.parametrize("edit", EDITS)
def test_no_edit_of_a_running_job_can_harm_it(stage: KindWorld, operator: Operator, edit: str):
    """Its pods keep running, and an edit that cannot be applied is reported once."""
    before = len(operator.text())
    job = stage.ask("POST", stage.jobs, sane(stage, "j"))
    roles = job["spec"][stage.framework.replica_specs]
    pods = stage.wait_pods(*(f"j-{role.lower()}-0" for role in roles))
    stage.run_pod(*pods)
    stage.wait_condition("Running")
    worker: Json = {"template": {"spec": {"containers": [{}]}}}
    changed: Json = {"spec": {stage.framework.replica_specs: {"Worker": worker}}}
    EDITS[edit](changed, stage.framework.replica_specs)
    answer = stage.try_to("PATCH", f"{stage.jobs}/j", changed, MERGE)
    if answer.status != 422:
        assert answer.status == 200, answer
        stage.wait(lambda: stage.warnings_about("j"), "the warning")
    stage.settle()
    assert set(stage.pods_of("j")) == set(pods)
    assert stage.is_now("Running")
    assert len(stage.warnings_about("j")) == (answer.status == 200)
    assert "Traceback" not in operator.text()[before:]


DEPTHS = {"where CPython ends": 980, "beyond": 2_000, "as the API server takes": 9_000}
HELD = b'"held here"'


def exchange(stage: KindWorld, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
    """The response as text, because JSON decoders refuse its depth."""
    connection = http.client.HTTPSConnection(stage.api.host, stage.api.port, timeout=TIMEOUT, context=stage.api.context)
    try:
        connection.request(method, path.format(namespace=stage.namespace), body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def create_deep(stage: KindWorld, name: str, levels: int) -> None:
    """Create a job that nests objects in a container field that keeps unknown fields."""
    job = sane(stage, name)
    container(unknownField="held here")(job, stage.framework.replica_specs)
    inner = b'{"a":[' * (levels // 2) + b"1" + b"]}" * (levels // 2)
    text = json.dumps(job).encode()
    assert HELD in text
    status, answer = exchange(stage, "POST", stage.jobs, text.replace(HELD, inner))
    assert status == 201, answer[:500]


def status_of(stage: KindWorld, name: str) -> Json:
    """The status of a job that is too deep to be decoded, cut from the end of its text, where it is serialized last."""
    _, text = exchange(stage, "GET", f"{stage.jobs}/{name}")
    _, found, status = text.strip().rpartition('"status":{')
    decoded: Json = json.loads("{" + status[:-1]) if found else {}
    return decoded


def test_a_job_that_is_too_deep_does_not_affect_others(stage: KindWorld, operator: Operator):
    """The decoder stops at 1,000 levels, the API server at 10,000."""
    framework, process = stage.framework, operator.process
    names = {levels: f"deep{levels}" for levels in DEPTHS.values()}
    for levels, name in names.items():
        create_deep(stage, name, levels)
    stage.ask("POST", stage.jobs, sane(stage, "neighbour"))
    stage.wait(lambda: stage.pods_of("neighbour"), "pods of the job beside them")

    def judged() -> bool:
        return all(is_refused(stage, name) and stage.warnings_about(name) for name in names.values())

    stage.wait(judged, "an event about each of them")
    for again in ("", "after a restart"):
        if again:
            operator.end()
            operator.start()
            process = operator.process
            stage.ask("POST", stage.jobs, sane(stage, "late"))
            stage.wait(lambda: stage.pods_of("late"), "pods of a job that came later")
        wait_rest(operator, stage)
        assert judged()
        assert operator.process is process
        assert operator.running
    for name in names.values():
        assert stage.pods_of(name) == {}
        assert [event["reason"] for event in stage.warnings_about(name)] == [f"{framework.kind}FailedValidation"]
        (event,) = stage.warnings_about(name)
        assert f"spec.{framework.replica_specs}." in event["message"]
        assert "must not be nested more than 200 levels deep" in event["message"]


def is_refused(stage: KindWorld, name: str) -> bool:
    conditions = status_of(stage, name).get("conditions") or []
    shown = [(each["type"], each["reason"]) for each in conditions if each["status"] == "True"]
    return shown == [
        ("Created", f"{stage.framework.kind}Created"),
        ("Failed", f"{stage.framework.kind}FailedValidation"),
    ]
