"""The pods and services of DIJobs, and how GPUs are divided, as in DI-orchestrator's tables."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from tests.upstream import KEEPS_LOG
from trainop.kinds.dijob.gpus import NodeGpus, counted_gpus, gpu_count, majority, pod_count, split
from trainop.kinds.dijob.names import LABELS, Role
from trainop.kinds.dijob.plan import encode_service
from trainop.kinds.dijob.pods import (
    JobFacts,
    PodOptions,
    Resources,
    aggregator_owner,
    build_pod,
    ddp_place,
    pod_url,
    read_job,
    template_of,
)
from trainop.kinds.dijob.seen import decode_di_pod
from trainop.kinds.dijob.services import service_ports
from trainop.runtime.objects.metadata import Json

JOB = JobFacts("default", "a", "uid-1")
OPTIONS = PodOptions("di-server.di-system:8080")
OWNER = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "name": "a", "uid": "uid-1"}
AGGREGATOR = aggregator_owner("a-aggregator-8zrnb", "uid-2")


def service_of(pod: Json) -> Json:
    """The service that the operator makes for a pod."""
    service: Json = msgspec.json.decode(encode_service(decode_di_pod(msgspec.json.encode(pod))))
    return service


def template(*containers: Json, **spec: Any) -> Json:
    return {"spec": {"containers": list(containers) or [{"name": "di-container", "image": "i"}], **spec}}


def build(role: Role, given: Json | None = None, job: JobFacts = JOB, **more: Any) -> Json:
    suffix = "" if role is Role.COORDINATOR else "x7k2p"
    return build_pod(job, role, template() if given is None else given, OPTIONS, suffix=suffix, **more)


def group(
    gpus: list[int], given: Json | None = None, options: PodOptions = OPTIONS, job: JobFacts = JOB, **more: Any
) -> list[Json]:
    pods: list[Json] = []
    for index, suffix in enumerate(["h5vtc", "q9sgl", "bbbbb"][: len(gpus)]):
        place = ddp_place(gpus, index, AGGREGATOR, pods[0]["metadata"]["name"] if pods else "")
        pods.append(build_pod(job, Role.DDP_LEARNER, given or template(), options, suffix=suffix, place=place, **more))
    return pods


def env(container: Json) -> list[str]:
    return [f"{entry['name']}={entry.get('value')}" for entry in container["env"]]


def test_a_coordinator():
    pod = build(Role.COORDINATOR)
    assert pod["metadata"] == {
        "name": "a-coordinator",
        "namespace": "default",
        "ownerReferences": [{**OWNER, "controller": True}],
        "labels": {
            "group-name": "diengine.opendilab.org",
            "dijob-name": "a",
            "controller-name": "di-operator",
            "replica-type": "coordinator",
            "pod-name": "a-coordinator",
        },
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    (main,) = pod["spec"]["containers"]
    assert main["ports"] == [{"name": "di-port", "containerPort": 22273}]
    assert env(main) == [
        "COORDINATOR_PORT=22273",
        "KUBERNETES_POD_NAMESPACE=default",
        "KUBERNETES_POD_NAME=a-coordinator",
        "KUBERNETES_SERVER_URL=di-server.di-system:8080",
        "KUBERNETES_COORDINATOR_URL=a-coordinator.default:22273",
    ]
    assert build(Role.COORDINATOR, template(restartPolicy="OnFailure"))["spec"]["restartPolicy"] == "OnFailure"
    service = service_of(pod)
    assert service["metadata"]["name"] == "a-coordinator"
    assert service["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"]
    assert service["spec"] == {
        "type": "ClusterIP",
        "clusterIP": "None",
        "selector": pod["metadata"]["labels"],
        "ports": [{"name": "di-port", "port": 22273}],
    }


def test_a_port_in_the_template():
    port = {"name": "di-port", "containerPort": 80, "protocol": "TCP"}
    pod = build(Role.COORDINATOR, template({"name": "di-container", "ports": [{"containerPort": 9}, port]}))
    (main,) = pod["spec"]["containers"]
    assert main["ports"] == [{"containerPort": 9}, port]
    assert env(main)[0] == "COORDINATOR_PORT=80"
    assert env(main)[-1] == "KUBERNETES_COORDINATOR_URL=a-coordinator.default:80"
    assert service_of(pod)["spec"]["ports"] == [{"name": "di-port", "port": 80}]
    assert pod_url(pod) == "a-coordinator.default:80"


def test_without_the_main_container():
    pod = build(Role.COORDINATOR, template({"name": "one"}, {"name": "two"}, initContainers=[{"name": "three"}]))
    one, two = pod["spec"]["containers"]
    assert "ports" not in one
    assert "ports" not in two
    assert env(one) == env(two) != []
    assert pod["spec"]["initContainers"] == [{"name": "three", **KEEPS_LOG}]
    assert service_of(pod)["spec"]["ports"] == [{"name": "di-port", "port": 22273}]


@pytest.mark.parametrize(
    ("role", "variable", "port"),
    [
        (Role.COLLECTOR, "COLLECTOR_PORT", 22270),
        (Role.LEARNER, "LEARNER_PORT", 22271),
        (Role.DDP_LEARNER, "LEARNER_PORT", 22271),
        (Role.AGGREGATOR, "AGGREGATOR_PORT", 22272),
    ],
)
def test_names_and_ports_of_the_other_roles(role: Role, variable: str, port: int):
    pod = group([1])[0] if role is Role.DDP_LEARNER else build(role)
    suffix = "h5vtc" if role is Role.DDP_LEARNER else "x7k2p"
    assert pod["metadata"]["name"] == f"a-{role.value}-{suffix}"
    assert env(pod["spec"]["containers"][0])[0] == f"{variable}={port}"
    assert not any("COORDINATOR_URL" in each for each in env(pod["spec"]["containers"][0]))
    assert "restartPolicy" not in pod["spec"]
    assert pod_url(pod) == f"a-{role.value}-{suffix}.default:{port}"


def test_variables_of_the_user_are_replaced_in_place():
    given = [
        {"name": "X", "value": "1"},
        {"name": "KUBERNETES_POD_NAME", "valueFrom": {"fieldRef": {}}},
        {"name": "Y", "value": "2"},
        {"name": "KUBERNETES_POD_NAME", "value": "mine"},
    ]
    pod = build(Role.COLLECTOR, template({"name": "di-container", "env": given}))
    assert env(pod["spec"]["containers"][0]) == [
        "X=1",
        "KUBERNETES_POD_NAME=a-collector-x7k2p",
        "Y=2",
        "COLLECTOR_PORT=22270",
        "KUBERNETES_POD_NAMESPACE=default",
        "KUBERNETES_SERVER_URL=di-server.di-system:8080",
    ]


def test_priority_class_volumes_and_owners():
    volumes = [{"name": "v", "emptyDir": {}}]
    job = JOB._replace(priority_class="high", volumes=volumes)
    for role in Role:
        given = template(volumes=[{"name": "own"}], priorityClassName="low")
        pod = group([1], given, job=job)[0] if role is Role.DDP_LEARNER else build(role, given, job=job)
        assert pod["spec"]["priorityClassName"] == "high"
        more = [] if role is Role.AGGREGATOR else volumes
        assert pod["spec"]["volumes"] == [{"name": "own"}, *more]
    owners = group([2])[0]["metadata"]["ownerReferences"]
    named = {"apiVersion": "v1", "kind": "Pod", "name": "a-aggregator-8zrnb", "uid": "uid-2", "controller": False}
    assert owners == [{**OWNER, "controller": True}, named]


def test_the_metadata_of_a_template_is_kept_below_ours():
    given = {
        "metadata": {
            "name": "other",
            "resourceVersion": "5",
            "creationTimestamp": None,
            "labels": {"team": "x", "replica-type": "mine"},
            "annotations": {"note": "n"},
        },
        **template(),
    }
    before = copy.deepcopy(given)
    pod = build(Role.COLLECTOR, given, annotations={"added": "1"})
    assert given == before
    metadata = pod["metadata"]
    assert metadata["annotations"] == {"note": "n", "added": "1"}
    assert metadata["labels"]["team"] == "x"
    assert metadata["labels"]["replica-type"] == "collector"
    assert metadata["name"] == "a-collector-x7k2p"
    assert not {"resourceVersion", "creationTimestamp"} & metadata.keys()
    assert set(service_of(pod)["spec"]["selector"]) <= set(LABELS)


def test_requested_resources_are_those_of_the_main_container():
    own = {"limits": {"cpu": "1", "example.com/x": "1"}}
    given = template({"name": "di-container", "resources": own}, {"name": "side"})
    pod = build(Role.LEARNER, given, resources=Resources(cpu="4", memory="1Gi"))
    main, side = pod["spec"]["containers"]
    assert main["resources"] == {
        "limits": {"cpu": "4", "example.com/x": "1", "memory": "1Gi"},
        "requests": {"cpu": "4", "memory": "1Gi"},
    }
    assert "resources" not in side
    assert build(Role.LEARNER, given)["spec"]["containers"][0]["resources"] == own


def ports(pod: Json) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}


def test_a_group_of_two_pods():
    master, worker = group([8, 2], resources=Resources(cpu="4", memory="16Gi", gpus="10"))
    assert env(master["spec"]["containers"][0])[-5:] == [
        "WORLD_SIZE=10",
        "LOCAL_WORLD_SIZE=8",
        "START_RANK=0",
        "MASTER_ADDR=localhost",
        "MASTER_PORT=10314",
    ]
    assert env(worker["spec"]["containers"][0])[-5:] == [
        "WORLD_SIZE=10",
        "LOCAL_WORLD_SIZE=2",
        "START_RANK=8",
        "MASTER_ADDR=a-ddp-learner-h5vtc",
        "MASTER_PORT=10314",
    ]
    assert ports(master) == {
        "di-port": 22271,
        **{f"gpu-port-{index}": 22271 + index for index in range(1, 8)},
        "master-port": 10314,
    }
    assert ports(worker) == {"di-port": 22271, "gpu-port-1": 22272}
    assert master["metadata"]["labels"]["ddp-learner-type"] == "ddp-learner-master"
    assert worker["metadata"]["labels"]["ddp-learner-type"] == "ddp-learner-worker"
    assert worker["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "4",
        "memory": "16Gi",
        "nvidia.com/gpu": "2",
    }


def test_a_group_of_one_pod():
    (only,) = group([2])
    assert "ddp-learner-type" not in only["metadata"]["labels"]
    assert ports(only) == {"di-port": 22271, "gpu-port-1": 22272}
    assert "START_RANK=0" in env(only["spec"]["containers"][0])


def test_ports_by_rank_are_those_on_which_the_processes_listen():
    master, worker = group([8, 2], options=OPTIONS._replace(ports_by_rank=True))
    assert ports(master)["di-port"] == 22271
    assert ports(worker) == {"di-port": 22279, "gpu-port-1": 22280}
    assert env(worker["spec"]["containers"][0])[0] == "LEARNER_PORT=22271"
    assert service_of(worker)["spec"]["ports"] == [
        {"name": "di-port", "port": 22279},
        {"name": "gpu-port-1", "port": 22280},
    ]


@pytest.mark.case("di-orchestrator-28", "a")
@pytest.mark.parametrize(("type_", "gpus", "count"), [("m", 4, 5), ("w", 6, 6), ("m", 1, 2), ("m", 0, 2), ("w", 0, 1)])
def test_ports_of_services(type_: str, gpus: int, count: int):
    kind = {"m": "ddp-learner-master", "w": "ddp-learner-worker"}[type_]
    labels = {"replica-type": "ddp-learner", "ddp-learner-type": kind}
    found = service_ports(labels, 22271, gpus)
    assert len(found) == count
    assert ({"name": "master-port", "port": 10314} in found) == (type_ == "m")
    (pod,) = group([gpus])
    pod["metadata"]["labels"] |= labels
    assert service_of(pod)["spec"]["ports"] == found


@pytest.mark.case("di-orchestrator-27", "a")
@pytest.mark.parametrize(
    ("nodes", "block", "gpus", "pods"),
    [
        ([8, 8, 0, 4], 8, 2, [2]),
        ([8, 8, 0, 4], 8, 8, [8]),
        ([8, 8, 0, 4], 8, 10, [8, 2]),
        ([0, 0, 0, 8], 8, 4, [4]),
        ([4, 4, 8, 8], 8, 10, [8, 2]),
        ([8] * 4 + [10] * 3 + [6] * 3, 8, 12, [8, 4]),
        ([8] * 4 + [10] * 3 + [6] * 3, 8, 16, [8, 8]),
        ([8] * 4 + [10] * 4 + [6] * 3, 10, 16, [10, 6]),
        ([8] * 4 + [10] * 4 + [6] * 3, 10, 8, [8]),
        ([0, 0], 0, 4, [4]),
        ([], 0, 4, [4]),
    ],
)
def test_majority_and_split(nodes: list[int], block: int, gpus: int, pods: list[int]):
    assert majority(nodes) == block
    assert split(gpus, block) == pods
    assert pod_count(gpus, block) == len(pods)


@pytest.mark.case("di-orchestrator-27", "b")
@pytest.mark.parametrize(("text", "gpus"), [("1500m", 2), ("1", 1), ("500m", 1), ("0", 0), (10, 10), ("abc", 0)])
def test_fractions_of_gpus_are_rounded_up(text: object, gpus: int):
    assert gpu_count(text) == gpus


def test_nodes_that_cannot_run_pods_do_not_count():
    nodes = [NodeGpus(8, usable=True), NodeGpus(4, usable=False), NodeGpus(4, usable=False)]
    assert counted_gpus(nodes) == [8]
    assert counted_gpus(nodes[1:]) == [4, 4]


WRONG = [None, 1, "x", [], [1], {"spec": 1}, {"spec": {"containers": 1}}, {"spec": {"containers": [1, None]}}]
WRONG += [template({"name": "di-container", field: 1}) for field in ("env", "ports", "resources")]
WRONG += [template({"name": "di-container", field: [1, None, {"name": []}]}) for field in ("env", "ports")]
WRONG += [template(volumes=1), {"metadata": 1}, {"metadata": {"labels": 1, "annotations": 1}}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_malformed_template_raises_nothing(wrong: Any):
    raw = {"metadata": {"name": "a"}, "spec": {"collector": {"template": wrong}, "volumes": wrong}}
    read_job(raw)
    found = template_of(raw, Role.COLLECTOR)
    job = JOB._replace(volumes=[{"name": "v"}])
    pod = build(Role.COLLECTOR, found or {}, job=job, resources=Resources("1", "1", "1"), annotations={"a": "b"})
    service_of(pod)
    group([8, 2], found or template())


def test_an_absurd_number_of_gpus_costs_no_memory():
    assert len(ports(group([10**15])[0])) < 2000
    assert pod_count(10**15, 8) == 125 * 10**12


@pytest.mark.parametrize("policy", ["FallbackToLogsOnError", "File"])
def test_containers_leave_the_end_of_their_log(policy: str):
    containers = [{"name": "di-container"}, {"name": "own", "terminationMessagePolicy": "File"}, 7]
    given = {"spec": {"containers": containers, "initContainers": [{"name": "init"}]}}
    for role in Role:
        options = OPTIONS._replace(termination_message_policy=policy)
        spec = build_pod(JOB, role, given, options, suffix="x")["spec"]
        expected = None if policy == "File" else policy
        assert [each.get("terminationMessagePolicy") for each in spec["containers"][:2]] == [expected, "File"]
        assert spec["containers"][2] == 7
        assert spec["initContainers"][0].get("terminationMessagePolicy") == expected


METADATA = (
    *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"),
    *("managedFields", "clusterName"),
)
"""The fields of ObjectMeta, of all releases (k8s.io/apimachinery `pkg/apis/meta/v1/types.go`)."""


@pytest.mark.parametrize("role", Role)
def test_of_the_metadata_of_a_template_only_labels_and_annotations_reach_a_pod(role: Role):
    """A finalizer would keep the deleted pods of the job for ever."""
    kept = {"labels": {"mine": "x"}, "annotations": {"a": "b"}}
    given = {**template(), "metadata": {**{field: ["example.com/x"] for field in METADATA}, **kept}}
    place = ddp_place([1], 0, AGGREGATOR) if role is Role.DDP_LEARNER else None
    metadata = build(role, given, place=place)["metadata"]
    assert set(metadata) == {"name", "namespace", "ownerReferences", *kept}
    assert metadata["annotations"] == kept["annotations"]
    assert metadata["labels"]["mine"] == "x"
    assert ["example.com/x"] not in metadata.values()
