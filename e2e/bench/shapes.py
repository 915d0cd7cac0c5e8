"""Maximum-size jobs, each large in one respect, for `e2e.bench.hostile` and tests.

A shape is built from a number of entries (or bytes) and a number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.nesting import share_of_limits

Json: TypeAlias = dict[str, Any]

ROOM = 1_400_000
"""Bytes of a job: etcd's request limit is 1.5 MiB, and the API server adds metadata."""

REPLICAS = 500

Make: TypeAlias = Callable[[int, int], Json]
"""Builds a job from a size and a number of replicas."""


class Shape(NamedTuple):
    make: Make
    size: int
    """The largest size that etcd accepts."""
    replicas: int = REPLICAS

    def job(self) -> Json:
        return self.make(self.size, self.replicas)

    def readable_job(self) -> Json:
        """The largest job that etcd accepts and that is within the operator's limits on lists, objects and strings,
        with room for the metadata that an API server adds."""
        size, job = self.size, self.job()
        while (share := share_of_limits(msgspec.json.encode(job))) > 0.999:
            size = min(size - 1, int(size / share))
            job = self.make(size, self.replicas)
        return job


def pytorch(worker: Json | None = None, replicas: int = REPLICAS, **spec: Any) -> Json:
    """A PyTorchJob; `worker` is merged into the pod spec of the workers."""
    container = {"name": "pytorch", "image": "none"}
    pod = {"containers": [container], **(worker or {})}
    roles = {"Worker": {"replicas": replicas, "restartPolicy": "Never", "template": {"spec": pod}}}
    return _job("PyTorchJob", {"pytorchReplicaSpecs": roles, **spec})


def with_container(replicas: int, **fields: Any) -> Json:
    return pytorch({"containers": [{"name": "pytorch", "image": "none", **fields}]}, replicas)


def with_metadata(replicas: int, **fields: Any) -> Json:
    """Sets metadata of the pod template."""
    job = pytorch(replicas=replicas)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"] = fields
    return job


def annotated(replicas: int, annotations: dict[str, str]) -> Json:
    """Sets annotations of the job."""
    job = pytorch(replicas=replicas)
    job["metadata"]["annotations"] = annotations
    return job


def with_roles(roles: Json) -> Json:
    return _job("PyTorchJob", {"pytorchReplicaSpecs": roles})


def of_kind(kind: str, replicas: dict[str, int], pod: Json | None = None, **spec: Any) -> Json:
    framework = FRAMEWORKS[kind]
    template = {"spec": pod or {"containers": [{"name": framework.container, "image": "none"}]}}
    roles = {role: {"replicas": count, "template": template} for role, count in replicas.items()}
    return _job(kind, {framework.replica_specs: roles, **spec})


def _job(kind: str, spec: Json) -> Json:
    metadata: Json = {"name": "hostile", "namespace": "default"}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _ports(count: int) -> list[Json]:
    return [{"containerPort": 1 + number} for number in range(count)]


def _terms(count: int) -> Json:
    term = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * count}}}


def _metrics(count: int) -> Json:
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 1}},
    }
    return {"minReplicas": 1, "maxReplicas": 2, "metrics": [metric] * count}


def _with_status(job: Json, **fields: Any) -> Json:
    return job | {"status": fields}


def _suspended(job: Json) -> Json:
    job["spec"]["runPolicy"] = {"suspend": True}
    return job


def _many_roles(count: int, replicas: int) -> Json:
    return of_kind("MXJob", dict.fromkeys(ALL_ROLES[:count], replicas), jobMode="MXTrain")


def _wide(count: int, replicas: int) -> Json:
    """Variables that contain the names of all replicas, in each of many containers."""
    pod = {"containers": [{"name": "mxnet", "image": "i"}, *_containers(count)[1:]]}
    return of_kind("MXJob", {"Worker": replicas}, pod, jobMode="X")


def _containers(count: int) -> list[Json]:
    return [{"name": "pytorch", "image": "none"}, *({"name": f"c{n}", "image": "i"} for n in range(count))]


ALL_ROLES = ("Scheduler", "Server", "Worker", "TunerTracker", "TunerServer", "Tuner")
CONDITION = {"type": "X", "status": "True", "reason": "Y", "message": "z"}

RESTART_HISTORY = "trainop.kubeflow.org/restarts"


def _variables(count: int) -> list[Json]:
    return [{"name": f"V{number}", "value": "x"} for number in range(count)]


def _pairs(count: int) -> list[Json]:
    return [{"key": "a", "value": "b"}] * count


def _failed_with_counts(count: int) -> Json:
    counts = {f"r{number}": {"active": 1} for number in range(count)}
    return {"conditions": [CONDITION | {"type": "Failed"}], "replicaStatuses": counts}


SHAPES: dict[str, Shape] = {
    "many ports": Shape(lambda n, r: with_container(r, ports=_ports(n)), 50_000),
    "many bad ports": Shape(lambda n, r: with_container(r, ports=[{"containerPort": 0}] * n), 60_000),
    "one bad port": Shape(lambda n, r: with_container(r, ports=[*_ports(n), {"containerPort": 0}]), 50_000),
    "many containers": Shape(lambda n, r: pytorch({"containers": _containers(n)}, r), 20_000),
    "too many containers": Shape(lambda n, r: pytorch({"containers": _containers(n)}, r), 30_000),
    "many nameless containers": Shape(lambda n, r: pytorch({"containers": [{}] * n}, r), 400_000),
    "many init containers": Shape(lambda n, r: pytorch({"initContainers": _containers(n)}, r), 30_000),
    "many variables": Shape(lambda n, r: with_container(r, env=_variables(n)), 35_000),
    "huge variable": Shape(lambda n, r: with_container(r, env=[{"name": "V", "value": "x" * n}]), ROOM),
    "many volumes": Shape(lambda n, r: pytorch({"volumes": [{"name": f"v{i}"} for i in range(n)]}, r), 75_000),
    "many tolerations": Shape(lambda n, r: pytorch({"tolerations": [{"key": f"k{i}"} for i in range(n)]}, r), 75_000),
    "large affinity": Shape(lambda n, r: pytorch({"affinity": _terms(n)}, r), 18_000),
    "many annotations": Shape(lambda n, r: with_metadata(r, annotations={f"a{i}": "x" for i in range(n)}), 90_000),
    "huge annotation": Shape(lambda n, r: with_metadata(r, annotations={"a": "x" * n}), ROOM),
    "many labels": Shape(lambda n, r: with_metadata(r, labels={f"l{i}": "x" for i in range(n)}), 90_000),
    "many finalizers": Shape(lambda n, r: with_metadata(r, finalizers=[f"a.b/{i}" for i in range(n)]), 100_000),
    "long command": Shape(lambda n, r: with_container(r, command=["x" * n]), ROOM),
    "many arguments": Shape(lambda n, r: with_container(r, args=["x"] * n), 340_000),
    "escapes": Shape(lambda n, r: with_container(r, args=["\u0001" * n]), ROOM // 6),
    "unknown fields": Shape(lambda n, r: pytorch({f"f{i}": i for i in range(n)}, r), 90_000),
    "many empty lists": Shape(lambda n, r: pytorch({"x": [[]] * n}, r), 400_000),
    "unknown roles": Shape(lambda n, _: with_roles({f"Role{i}": {} for i in range(n)}), 90_000),
    "long role": Shape(lambda n, _: with_roles({"x" * n: {}}), 700_000),
    "long name of a port": Shape(lambda n, r: with_container(r, ports=[{"containerPort": 1, "name": "x" * n}]), ROOM),
    "elastic metrics": Shape(lambda n, r: pytorch(replicas=r, elasticPolicy=_metrics(n)), 12_000),
    "bad elastic metrics": Shape(lambda n, r: pytorch(replicas=r, elasticPolicy={"metrics": [1] * n}), 650_000),
    "elastic configuration": Shape(lambda n, r: pytorch(replicas=r, elasticPolicy={"rdzvConf": _pairs(n)}), 50_000),
    "annotations of the job": Shape(lambda n, r: annotated(r, {f"a{i}": "x" for i in range(n)}), 25_000),
    "forged history": Shape(lambda n, r: annotated(r, {RESTART_HISTORY: '{"job":"u","rounds":{' + "1" * n}), 250_000),
    "forged conditions": Shape(lambda n, r: _with_status(pytorch(replicas=r), conditions=[CONDITION] * n), 20_000),
    "forged counts": Shape(lambda n, r: _with_status(pytorch(replicas=r), **_failed_with_counts(n)), 55_000),
    "suspended, many ports": Shape(lambda n, r: _suspended(with_container(r, ports=_ports(n))), 50_000),
    "many replicas": Shape(lambda _, r: pytorch(replicas=r), 0, 100_000),
    "many replicas of all roles": Shape(_many_roles, 6, 100_000),
    "MXNet's environment": Shape(_many_roles, 1, 2_000),
    "TensorFlow's environment": Shape(lambda _, r: of_kind("TFJob", {"Worker": r}), 0, 1_500),
    "TensorFlow's file": Shape(lambda _, r: of_kind("TFJob", {"Worker": r}), 0, 100_000),
    "dynamic TensorFlow": Shape(
        lambda _, r: of_kind("TFJob", {"Worker": 1, "PS": r}, enableDynamicWorker=True), 0, 99_999
    ),
    "XGBoost's environment": Shape(lambda _, r: of_kind("XGBoostJob", {"Master": 1, "Worker": r}), 0, 99_999),
    "environment times containers": Shape(_wide, 30_000, 2_000),
}
