"""Specifics of PyTorchJob: its environment, init container and rules of progress."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.builders import (
    CREATED,
    RUNNING,
    conditions_of,
    make_job,
    make_pod,
    manifest_of,
    plan_for,
    pod_created,
    see,
    service_created,
    status_of,
    template,
    written,
)
from tests.engine.world import World
from tests.upstream import KEEPS_LOG
from trainop.engine.fields import Fields
from trainop.engine.framework import JOB_ROLE, Progress
from trainop.engine.job import Job
from trainop.engine.parse import parse
from trainop.engine.plan import plan
from trainop.engine.seen import Options
from trainop.kinds.elastic import read_elastic
from trainop.kinds.init_container import TemplateError, render
from trainop.kinds.pytorch import PYTORCH, init_containers
from trainop.runtime.objects.metadata import Json, Unstructured


def pods(job: Json, **options: Any) -> dict[str, Json]:
    made = plan(PYTORCH, see(job, options=Options(**options)))
    return {a.name: manifest_of(a) for a in made.actions if pod_created(a)}


def env(pod: Json, container: int = 0) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][container].get("env", [])}


def line(pod: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in env(pod).items())


def pt(*args: Any, **fields: Any) -> Json:
    return make_job(*args, name="pt", **fields)


@pytest.mark.case("frameworks-v1-13", "abcd")
def test_environment_of_a_job_with_a_master():
    tmpl = template(
        containers=[
            {"name": "pytorch", "image": "i", "ports": [{"name": "pytorchjob-port", "containerPort": 8080}]},
        ]
    )
    made = plan_for(pt(1, 2, tmpl=tmpl))
    found = {a.name: manifest_of(a) for a in made.actions if pod_created(a)}
    services = [manifest_of(a)["spec"]["ports"] for a in made.actions if service_created(a)]
    assert list(found) == ["pt-master-0", "pt-worker-0", "pt-worker-1"]
    assert services == [[{"name": "pytorchjob-port", "port": 8080}]] * 3
    shared = "MASTER_PORT=8080 PET_MASTER_PORT=8080 MASTER_ADDR=pt-master-0 PET_MASTER_ADDR=pt-master-0 WORLD_SIZE=3"
    assert [line(pod) for pod in found.values()] == [
        f"PYTHONUNBUFFERED=1 {shared} RANK={rank} PET_NODE_RANK={rank} PET_NPROC_PER_NODE=auto PET_NNODES=3"
        for rank in (0, 1, 2)
    ]
    assert "initContainers" not in found["pt-master-0"]["spec"]
    for name in ("pt-worker-0", "pt-worker-1"):
        (init,) = found[name]["spec"]["initContainers"]
        assert init["name"] == "init-pytorch"


@pytest.mark.case("frameworks-v1-14", "ab")
@pytest.mark.parametrize(
    ("processes", "size", "shown"),
    [("4", 12, "4"), ("gpu", 3, "gpu"), ("cpu", 3, "cpu"), ("auto", 3, "auto"), ("", 3, "auto"), (None, 3, "auto")],
)
def test_processes_per_node(processes: str | None, size: int, shown: str):
    found = env(pods(pt(1, 2, spec={"nprocPerNode": processes}))["pt-worker-0"])
    assert (found["WORLD_SIZE"], found["PET_NPROC_PER_NODE"]) == (str(size), shown)


def test_the_example_of_the_specification():
    assert line(pods(pt(1, 2, spec={"nprocPerNode": "4"}))["pt-worker-0"]) == (
        "PYTHONUNBUFFERED=1 MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=pt-master-0 "
        "PET_MASTER_ADDR=pt-master-0 WORLD_SIZE=12 RANK=1 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 PET_NNODES=3"
    )


@pytest.mark.case("frameworks-v1-15", "abcde")
def test_a_job_of_workers_only():
    found = pods(pt(None, 2))
    assert [line(pod) for pod in found.values()] == ["PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto PET_NNODES=2"] * 2
    assert [pod["metadata"]["labels"].get(JOB_ROLE) for pod in found.values()] == ["master", None]
    assert all("initContainers" not in pod["spec"] for pod in found.values())

    world = World(pt(None, 2))
    world.settle()
    world.run()
    world.end("pt-worker-0", 0)
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "PyTorchJobRunning")
    assert world.status["conditions"][-1]["message"] == "PyTorchJob ns/pt is running."
    world.end("pt-worker-1", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")
    assert world.status["conditions"][-1]["message"] == "PyTorchJob ns/pt successfully completed."


@pytest.mark.case("frameworks-v1-16", "a")
def test_elastic_environment():
    policy = {
        "rdzvHost": "localhost",
        "rdzvPort": 1234,
        "rdzvId": "rdzv-id",
        "rdzvConf": [{"key": "k1", "value": "v1"}, {"key": "k2", "value": "v2"}],
        "minReplicas": 1,
        "maxReplicas": 3,
        "maxRestarts": 3,
    }
    assert line(pods(pt(None, 1, spec={"elasticPolicy": policy}))["pt-worker-0"]) == (
        "PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT=localhost:1234 PET_RDZV_BACKEND=c10d "
        "PET_NNODES=1:3 PET_MAX_RESTARTS=3 PET_RDZV_ID=rdzv-id PET_RDZV_CONF=k1=v1,k2=v2"
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 3},
            (
                "PET_NPROC_PER_NODE=auto PET_RDZV_ENDPOINT=el-worker-0:23456 PET_RDZV_BACKEND=c10d PET_NNODES=1:3 "
                "PET_MAX_RESTARTS=3"
            ),
        ),
        (
            {"nProcPerNode": 2, "standalone": True, "rdzvBackend": "etcd", "rdzvConf": [], "rdzvId": ""},
            (
                "PET_RDZV_ENDPOINT=el-worker-0:23456 PET_RDZV_BACKEND=etcd PET_NNODES=2:2 PET_NPROC_PER_NODE=2 "
                "PET_STANDALONE=1"
            ),
        ),
    ],
)
def test_elastic_defaults_and_options(policy: Json, expected: str):
    found = pods(make_job(None, 2, name="el", spec={"elasticPolicy": policy}))["el-worker-0"]
    assert line(found) == f"PYTHONUNBUFFERED=1 {expected}"


def test_elastic_with_a_master_has_both_blocks():
    found = env(pods(pt(1, 2, spec={"elasticPolicy": {}}))["pt-worker-1"])
    assert (found["RANK"], found["MASTER_ADDR"], found["PET_NNODES"]) == ("2", "pt-master-0", "2:2")


@pytest.mark.case("frameworks-v1-18", "a")
@pytest.mark.parametrize("other", ["Running", "Succeeded"])
def test_of_elastic_workers_one_success_is_enough(other: str):
    made = plan_for(
        make_job(None, 2, spec={"elasticPolicy": {}}, status=status_of(CREATED, RUNNING)),
        [make_pod(phase=other), make_pod(index=1, phase="Succeeded")],
    )
    assert conditions_of(made.status)[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")
    assert written(made)["replicaStatuses"]["Worker"]["succeeded"] == 2


@pytest.mark.case("frameworks-v1-19", "abc")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, (4, 4)),
        ({"maxReplicas": 1}, (1, 1)),
        ({"minReplicas": 1}, (1, 1)),
        ({"minReplicas": 1, "maxReplicas": 3}, (1, 3)),
    ],
)
def test_elastic_replica_defaults(policy: Json, expected: tuple[int, int]):
    job = parse(PYTORCH, Unstructured(make_job(None, 4, spec={"elasticPolicy": policy})))
    elastic = read_elastic(job, Fields())
    assert elastic is not None
    assert (elastic.min_replicas, elastic.max_replicas) == expected


def test_variables_go_to_every_container_after_the_users_own_and_not_to_init_containers():
    containers = [
        {"name": "side", "image": "i"},
        {"name": "pytorch", "image": "i", "env": [{"name": "MINE", "value": "1"}]},
    ]
    tmpl = template(containers=containers, initContainers=[{"name": "mine", "image": "i"}])
    found = pods(pt(1, 1, tmpl=tmpl))["pt-worker-0"]
    assert next(iter(env(found, 0))) == "PYTHONUNBUFFERED"
    assert list(env(found, 1))[:2] == ["MINE", "PYTHONUNBUFFERED"]
    assert [c.get("ports") for c in found["spec"]["containers"]] == [
        None,
        [{"name": "pytorchjob-port", "containerPort": 23456}],
    ]
    assert [c["name"] for c in found["spec"]["initContainers"]] == ["mine", "init-pytorch"]
    assert "env" not in found["spec"]["initContainers"][0]


# Init container -------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-28", "a")
def test_a_template_of_ones_own():
    text = Path(__file__).with_name("init_container.yaml").read_text()
    found = pods(pt(1, 1), pytorch_init_template=text, pytorch_init_image="busybox:1", pytorch_init_max_tries=7)[
        "pt-worker-0"
    ]
    assert found["spec"]["initContainers"] == [
        {"name": "first", "image": "busybox:1", "command": ["wait", "pt-master-0", "7"], **KEEPS_LOG},
        {"name": "second", "image": "other", **KEEPS_LOG},
    ]


@pytest.mark.case("frameworks-v1-28", "b")
def test_the_built_in_template():
    (init,) = pods(pt(1, 1))["pt-worker-0"]["spec"]["initContainers"]
    assert (init["name"], init["image"], init["imagePullPolicy"]) == ("init-pytorch", "alpine:3.10", "IfNotPresent")
    assert init["resources"] == {
        "limits": {"cpu": "100m", "memory": "20Mi"},
        "requests": {"cpu": "50m", "memory": "10Mi"},
    }
    shell, flag, script = init["command"]
    assert (shell, flag) == ("sh", "-c")
    assert "seq 100" in script
    assert "nslookup pt-master-0" in script
    assert "waiting for master" in script
    assert init["securityContext"]["allowPrivilegeEscalation"] is False


def test_a_template_is_text_in_which_no_letter_means_anything():
    (made,) = render(
        "- name: x\n  image: {{ .InitContainerImage }}\n  command: [{{-.MasterAddr-}}]\n", "m&<'\"", "a&b<c>:1", 1
    )
    assert (made["image"], made["command"]) == ("a&b<c>:1", ["m&<'\""])


@pytest.mark.parametrize("text", ["a: [", "a: 1", "- 1", "", "- image: {{.Unknown}}"])
def test_a_bad_template_is_the_operators_error(text: str):
    with pytest.raises(TemplateError, match="init container template: "):
        render(text, "m", "i", 1)


# Progress -------------------------------------------------------------------------------------------------------------


def test_only_the_master_decides_if_there_is_one():
    world = World(pt(1, 2))
    world.settle()
    world.run("pt-worker-0", "pt-worker-1")
    world.settle()
    assert not world.is_true("Running")
    world.end("pt-worker-0", 0)
    world.end("pt-worker-1", 0)
    world.settle()
    assert [type_ for type_, _, _ in world.conditions] == ["Created"]
    world.run("pt-master-0")
    world.settle()
    assert world.status["conditions"][-1]["message"] == "PyTorchJob pt is running."
    world.end("pt-master-0", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")
    text = "PyTorchJob pt is successfully completed."
    assert world.event_messages("PyTorchJobSucceeded") == [text]
    assert world.status["conditions"][-1]["message"] == text
    assert world.counts == {"created": 1, "successful": 1}


def test_a_job_without_roles_makes_no_progress():
    job = Job(Unstructured({"metadata": {}}).metadata, {})
    assert PYTORCH.progress(job, {}) == Progress(running=False, succeeded=False)


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-22", "abcdh")
@pytest.mark.parametrize(
    ("job", "reported"),
    [
        (pt(2, 1), ["spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"]),
        (pt(1, 0), ["spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1"]),
        (
            pt(1, None, spec={"elasticPolicy": {}}),
            ["spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used"],
        ),
        (
            pt(None, 1, spec={"nprocPerNode": "2", "elasticPolicy": {"nProcPerNode": 2}}),
            ["spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode"],
        ),
        (
            pt(None, 1, tmpl=template(containers=[])),
            [
                "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must be specified",
                (
                    "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: "
                    "must have at least one container with name pytorch"
                ),
            ],
        ),
    ],
)
def test_rules(job: Json, reported: list[str]):
    assert [str(error) for error in parse(PYTORCH, Unstructured(job)).errors] == reported


@pytest.mark.parametrize("processes", ["0", "-1", "+0", "-" + "9" * 5000])
def test_there_is_at_least_one_process_in_a_pod(processes: str):
    (error,) = parse(PYTORCH, Unstructured(pt(1, 1, spec={"nprocPerNode": processes}))).errors
    assert str(error).startswith("spec.nprocPerNode: Invalid value: ")
    assert error.detail == "must be auto, cpu, gpu or a number from 1"


@pytest.mark.parametrize("processes", ["1", "+8", "auto", "gpu", "xpu", "9" * 5000])
def test_words_and_numbers_of_processes_are_as_upstream_reads_them(processes: str):
    assert parse(PYTORCH, Unstructured(pt(1, 1, spec={"nprocPerNode": processes}))).errors == ()


def test_the_deprecated_number_of_processes_is_one_at_least():
    policy = {"elasticPolicy": {"nProcPerNode": 0}}
    (error,) = parse(PYTORCH, Unstructured(pt(None, 1, spec=policy))).errors
    assert str(error) == "spec.elasticPolicy.nProcPerNode: Invalid value: 0: must be greater than or equal to 1"


# The user of the init container ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "main", "image", "user"),
    [
        ({}, {}, "alpine:3.10", {}),
        ({"runAsUser": 1000}, {}, "alpine:3.10", {}),
        ({"runAsNonRoot": True, "runAsUser": 1000}, {}, "alpine:3.10", {}),
        ({}, {"runAsUser": 5, "runAsGroup": 6}, "alpine:3.10", {"runAsUser": 5, "runAsGroup": 6}),
        ({"runAsUser": 1}, {"runAsUser": 5}, "alpine:3.10", {"runAsUser": 5}),
        ({"runAsNonRoot": True}, {}, "alpine:3.10", {"runAsUser": 65532}),
        ({}, {"runAsNonRoot": True}, "alpine:3.10", {"runAsNonRoot": True, "runAsUser": 65532}),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, "alpine:3.10", {"runAsNonRoot": False}),
        ({"runAsNonRoot": True}, {}, "of-a-user:1", {}),
        (7, "x", "alpine:3.10", {}),
    ],
)
def test_the_init_container_runs_as_the_job_does(pod: Any, main: Any, image: str, user: Json) -> None:
    """A namespace may enforce a range of users, and refuses any other; so none is chosen without need."""
    container = {"name": "pytorch", "image": "i", "securityContext": main}
    specs = {
        role: {"replicas": 1, "template": {"spec": {"securityContext": pod, "containers": [container]}}}
        for role in ("Master", "Worker")
    }
    job = parse(PYTORCH, Unstructured({"metadata": {"name": "j"}, "spec": {"pytorchReplicaSpecs": specs}}))
    (found,) = init_containers(job, job.roles[1], Options(pytorch_init_image=image))
    context = found["securityContext"]
    assert {name: each for name, each in context.items() if name.startswith("runAs")} == user
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
