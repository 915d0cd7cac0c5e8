"""What a cluster lacks for a job: situations from the documentation of kube-scheduler, quotas and LimitRanges."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.seen import Options
from trainop.explain.nodes import describe_nodes
from trainop.explain.rehearsal import rehearse
from trainop.explain.requirements import (
    PRIORITY_CLASSES,
    ClusterFacts,
    Reference,
    describe_lacks,
    find_references,
    group_pods,
)
from trainop.programs.schemes import FRAMEWORKS, all_kinds

Json = dict[str, Any]
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def node(name: str = "a", taints: list[Json] | None = None, labels: Json | None = None, **room: str) -> Json:
    allocatable = {
        "cpu": "8",
        "memory": "32Gi",
        "pods": "110",
        **{k.replace("gpu", "nvidia.com/gpu"): v for k, v in room.items()},
    }
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": allocatable},
    }


def pod(**spec: Any) -> Json:
    return {"containers": [{"name": "c"}], **spec}


def asks(**requests: str) -> Json:
    return {
        "containers": [
            {"name": "c", "resources": {"limits": {k.replace("gpu", "nvidia.com/gpu"): v for k, v in requests.items()}}}
        ]
    }


def affinity(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod(affinity={"nodeAffinity": required})


def by(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


GPU_TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
TAINTED = [node(taints=[GPU_TAINT])]
ZONE = [node(labels={"zone": "x", "rack": "7"})]
NODES: list[tuple[Json, list[Json], str]] = [
    (pod(), [], ": the cluster has no nodes"),
    (pod(), [node()], ""),
    (pod(nodeSelector={"zone": "y"}), ZONE, ".nodeSelector: none of 1 nodes has the labels zone=y"),
    (pod(nodeSelector={"zone": "x"}), ZONE, ""),
    (pod(nodeSelector={"zone": "x", "rack": "8"}), ZONE, ".nodeSelector: none of 1 nodes"),
    (affinity(by("zone", "In", "x", "y")), ZONE, ""),
    (affinity(by("zone", "In", "y")), ZONE, ".affinity.nodeAffinity: none of 1 nodes matches"),
    (affinity(by("zone", "NotIn", "x")), ZONE, ".affinity.nodeAffinity"),
    (affinity(by("other", "NotIn", "x")), ZONE, ""),
    (affinity(by("zone", "Exists")), ZONE, ""),
    (affinity(by("other", "Exists")), ZONE, ".affinity.nodeAffinity"),
    (affinity(by("zone", "DoesNotExist")), ZONE, ".affinity.nodeAffinity"),
    (affinity(by("rack", "Gt", "6")), ZONE, ""),
    (affinity(by("rack", "Lt", "6")), ZONE, ".affinity.nodeAffinity"),
    (affinity(by("zone", "Gt", "6")), ZONE, ".affinity.nodeAffinity"),
    (affinity(by("zone", "In", "y"), by("zone", "In", "x")), ZONE, ""),
    (affinity({}), ZONE, ".affinity.nodeAffinity"),
    (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}), ZONE, ""),
    (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}), ZONE, ".affinity"),
    (pod(), TAINTED, ".tolerations: all 1 nodes that match have taints that are not tolerated: gpu=yes:NoSchedule"),
    (pod(tolerations=[{"key": "gpu", "operator": "Exists"}]), TAINTED, ""),
    (pod(tolerations=[{"key": "gpu", "value": "yes"}]), TAINTED, ""),
    (pod(tolerations=[{"key": "gpu", "value": "no"}]), TAINTED, ".tolerations"),
    (pod(tolerations=[{"operator": "Exists"}]), TAINTED, ""),
    (pod(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]), TAINTED, ".tolerations"),
    (pod(), [node(taints=[{**GPU_TAINT, "effect": "PreferNoSchedule"}])], ""),
    (pod(), [*TAINTED, node("b")], ""),
    (asks(gpu="1"), [node()], "asks for 1 nvidia.com/gpu; the most that a node which fits has is none"),
    (
        asks(gpu="16"),
        [node(gpu="8"), node("b", gpu="4")],
        "asks for 16 nvidia.com/gpu; the most that a node which fits has is 8",
    ),
    (asks(gpu="8"), [node(gpu="8")], ""),
    (asks(cpu="9"), [node()], "asks for 9 cpu; the most that a node which fits has is 8"),
    (asks(memory="33Gi"), [node()], "asks for 33Gi memory"),
    (asks(gpu="4", cpu="9"), [node(gpu="8"), node("b", cpu="64")], "nvidia.com/gpu"),
    (asks(gpu="8"), [node(gpu="lots")], "asks for 8 nvidia.com/gpu"),
    (pod(), [{}], ""),
]


@pytest.mark.parametrize(("spec", "nodes", "said"), NODES, ids=range(len(NODES)))
def test_whether_a_node_fits(spec: Json, nodes: list[Json], said: str):
    lines = list(describe_nodes(spec, nodes))
    assert len(lines) == bool(said), lines
    assert all(said in line for line in lines), lines


# Objects that pods name -----------------------------------------------------------------------------------------------


def pytorch(**spec: Any) -> Json:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i", **spec.pop("container", {})}], **spec}}
    worker = {"replicas": 3, "template": template}
    roles = {"Master": {"replicas": 1, "template": copy.deepcopy(template)}, "Worker": worker}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j"},
        "spec": {"pytorchReplicaSpecs": roles},
    }


def lacks(job: Json, options: Options | None = None, **facts: Any) -> list[str]:
    """The lines, if none of the referenced objects exists."""
    kinds = [each for each in all_kinds(options or Options()) if each.resource.kind == job["kind"]]
    found = rehearse(kinds, job, options or Options(), NOW)
    groups = group_pods(job, found)
    references = find_references(job, groups, found)
    return list(describe_lacks(references, groups, ClusterFacts(dict.fromkeys(references, ""), **facts)))


MASTER = "spec.pytorchReplicaSpecs.Master.template.spec"
REFERENCES: list[tuple[Json, str, str]] = [
    ({"priorityClassName": "p"}, "priorityClassName", "PriorityClass p"),
    ({"priorityClassName": "system-node-critical"}, "", ""),
    ({"runtimeClassName": "r"}, "runtimeClassName", "RuntimeClass r"),
    ({"serviceAccountName": "s"}, "serviceAccountName", "ServiceAccount s"),
    ({"serviceAccountName": "default"}, "", ""),
    ({"imagePullSecrets": [{"name": "x"}, {"name": "y"}]}, "imagePullSecrets[0].name", "Secret x"),
    (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        "volumes[0].persistentVolumeClaim.claimName",
        "PersistentVolumeClaim c",
    ),
    ({"volumes": [{"name": "v", "secret": {"secretName": "c"}}]}, "volumes[0].secret.secretName", "Secret c"),
    ({"volumes": [{"name": "v", "secret": {"secretName": "c", "optional": True}}]}, "", ""),
    ({"volumes": [{"name": "v", "configMap": {"name": "c"}}]}, "volumes[0].configMap.name", "ConfigMap c"),
    ({"volumes": [{"name": "v", "configMap": {"name": "c", "optional": True}}]}, "", ""),
    (
        {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "c"}}]}}]},
        "volumes[0].projected.sources[0].secret.name",
        "Secret c",
    ),
    (
        {"container": {"envFrom": [{"configMapRef": {"name": "c"}}]}},
        "containers[0].envFrom[0].configMapRef.name",
        "ConfigMap c",
    ),
    (
        {"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}]}},
        "containers[0].env",
        "Secret c",
    ),
    (
        {
            "container": {
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k", "optional": True}}}]
            }
        },
        "",
        "",
    ),
]


@pytest.mark.parametrize(("spec", "path", "said"), REFERENCES, ids=range(len(REFERENCES)))
def test_an_object_that_is_missing_is_named_once_at_its_field(spec: Json, path: str, said: str):
    lines = lacks(pytorch(**copy.deepcopy(spec)))
    if not said:
        assert lines == []
        return
    assert lines[0] == f"{MASTER}.{path}: {said} does not exist; create it, or correct the name"
    assert len(lines) == len(set(lines)) == (2 if "imagePullSecrets" in spec else 1)


def test_the_local_queue_is_that_of_the_label():
    job = pytorch()
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert lacks(job) == [
        "metadata.labels[kueue.x-k8s.io/queue-name]: LocalQueue q does not exist; create it, or correct the name"
    ]


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_the_queue_of_volcano_is_that_of_the_scheduling_policy(kind: str):
    """It is named once, however many pods there are, and only if Volcano is the gang scheduler."""
    framework = FRAMEWORKS[kind]
    spec = {"containers": [{"name": framework.container, "image": "i"}]}
    role = str(next(iter(framework.roles)))
    job = {
        "apiVersion": framework.resource.api_version,
        "kind": framework.resource.kind,
        "metadata": {"name": "j"},
        "spec": {
            framework.replica_specs: {role: {"replicas": 1, "template": {"spec": spec}}},
            "runPolicy": {"schedulingPolicy": {"queue": "q"}},
        },
    }
    assert lacks(job, Options(gang=choose_scheduler("volcano"))) == [
        "spec.runPolicy.schedulingPolicy.queue: Queue q does not exist; create it, or correct the name"
    ]
    assert lacks(job) == []


# Limits ---------------------------------------------------------------------------------------------------------------

GPUS = {"container": {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1", "memory": "1Gi"}}}}
LIMITS: list[tuple[Json, str]] = [
    ({"type": "Container", "max": {"cpu": "500m"}}, "1 cpu is more than LimitRange l allows a container: 500m"),
    (
        {"type": "Container", "min": {"memory": "2Gi"}},
        "1Gi memory is less than LimitRange l demands of a container: 2Gi",
    ),
    ({"type": "Pod", "max": {"cpu": "500m"}}, "1 cpu is more than LimitRange l allows a pod: 500m"),
    ({"type": "Container", "max": {"cpu": "1"}}, ""),
    ({"type": "PersistentVolumeClaim", "max": {"storage": "1"}}, ""),
]


@pytest.mark.parametrize(("limit", "said"), LIMITS, ids=range(len(LIMITS)))
def test_a_limit_range_is_about_each_role(limit: Json, said: str):
    lines = lacks(pytorch(**copy.deepcopy(GPUS)), limits=[{"metadata": {"name": "l"}, "spec": {"limits": [limit]}}])
    assert len(lines) == 2 * bool(said), lines
    assert all(said in line for line in lines), lines


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_every_kind_is_rehearsed(kind: str):
    """The pods of each kind are found, with the field path of their role."""
    framework = FRAMEWORKS[kind]
    role = str(next(iter(framework.roles)))
    spec = {"containers": [{"name": framework.container, "image": "i"}], "priorityClassName": "none"}
    roles = {role: {"replicas": 1, "template": {"spec": spec}}}
    job = {
        "apiVersion": framework.resource.api_version,
        "kind": framework.resource.kind,
        "metadata": {"name": "j"},
        "spec": {framework.replica_specs: roles},
    }
    (line,) = lacks(job)
    assert line.startswith(f"spec.{framework.replica_specs}.{role}.template.spec.priorityClassName: PriorityClass none")


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_pods_of_an_mpijob_over_ssh_are_found_also_those_of_its_batch_job(role: str):
    spec = {"containers": [{"name": "mpi", "image": "i"}]}
    roles: Json = {name: {"replicas": 1, "template": {"spec": spec}} for name in ("Launcher", "Worker")}
    roles[role] = {"replicas": 1, "template": {"spec": {**spec, "priorityClassName": "none"}}}
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "j"},
        "spec": {"mpiReplicaSpecs": roles},
    }
    (line,) = lacks(job)
    assert line.startswith(f"spec.mpiReplicaSpecs.{role}.template.spec.priorityClassName: PriorityClass none")


def test_the_coordinator_of_a_dijob_is_found():
    spec = {"containers": [{"name": "di-container", "image": "i"}], "priorityClassName": "none"}
    job = {
        "apiVersion": "diengine.opendilab.org/v1alpha1",
        "kind": "DIJob",
        "metadata": {"name": "j"},
        "spec": {"coordinator": {"template": {"spec": spec}}},
    }
    (line,) = lacks(job)
    assert line.startswith("spec.coordinator.template.spec.priorityClassName: PriorityClass none")


def test_references_are_values():
    """Two jobs that name the same object are one question."""
    assert len({Reference(PRIORITY_CLASSES, "a"), Reference(PRIORITY_CLASSES, "a")}) == 1
