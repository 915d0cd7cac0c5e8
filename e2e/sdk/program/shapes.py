"""The jobs of each kind, made of the SDK's models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubeflow import training
from kubernetes.client import V1Container, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec

LINES = 5
_STOP = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
_PRINT = f"for n in range({LINES}):\n    print('line', n, flush=True)\n    time.sleep(0.3)\n"
_REPORT = "try:\n    from trainop.progress import report\n    report(1, 10)\nexcept ImportError:\n    pass\n"
"""Reports once, and never again: a job that runs on stalls."""
SCRIPTS = {
    "runs": f"{_STOP}{_REPORT}print('line 0', flush=True)\nwhile True:\n    time.sleep(60)",
    "ends": f"{_STOP}{_PRINT}",
    "fails": f"{_STOP}print('line 0', flush=True)\nsys.exit(1)",
    "restarts": f"{_STOP}print('line 0', flush=True)\nsys.exit(137)",
}
"""What the containers of a job run, by the purpose of the job; else that of `ends`."""


WATCHED = {
    "trainop.kubeflow.org/startup-deadline": "1h",
    "trainop.kubeflow.org/progress": "true",
    "trainop.kubeflow.org/stalled-after": "1m",
}
"""Annotations of every job: its status has conditions that training-operator does not know."""


@dataclass(frozen=True)
class Shape:
    """A kind of job: its default container, its replicas, and the pod with the label `job-role: master`."""

    container: str
    model: str
    replica_specs: str
    roles: Mapping[str, int]
    master: str
    endless: str = ""
    """A type of replicas that runs until the job has ended."""


_MASTER = {"Master": 1, "Worker": 2}
SHAPES = {
    "TFJob": Shape("tensorflow", "TFJob", "tf_replica_specs", {"Chief": 1, "PS": 1, "Worker": 2}, "chief-0"),
    "PyTorchJob": Shape("pytorch", "PyTorchJob", "pytorch_replica_specs", _MASTER, "master-0"),
    "XGBoostJob": Shape("xgboost", "XGBoostJob", "xgb_replica_specs", _MASTER, "master-0"),
    "MPIJob": Shape("mpi", "MPIJob", "mpi_replica_specs", {"Launcher": 1, "Worker": 2}, "launcher", "Worker"),
    "PaddleJob": Shape("paddle", "PaddleJob", "paddle_replica_specs", _MASTER, "master-0"),
    "JAXJob": Shape("jax", "JAXJob", "jax_replica_specs", {"Worker": 2}, "worker-0"),
    "MXJob": Shape("mxnet", "MXJob", "mx_replica_specs", {"Scheduler": 1, "Server": 1, "Worker": 1}, "server-0"),
}
"""All kinds that a version of the SDK knows. The labels are those of training-operator (`IsMasterRole`)."""


def known_shapes() -> dict[str, Shape]:
    """The kinds that the installed version knows."""
    return {kind: shape for kind, shape in SHAPES.items() if hasattr(training, f"KubeflowOrgV1{shape.model}")}


def model(shape: Shape, suffix: str = "") -> Any:
    """The SDK's class for a job of this kind or for its spec."""
    return getattr(training, f"KubeflowOrgV1{shape.model}{suffix}")


def make_job(kind: str, purpose: str, name: str, namespace: str, image: str, **replaced: Any) -> Any:
    """A job of the SDK's models; `replaced` replaces fields of each replica spec."""
    shape = SHAPES[kind]

    def replicas(role: str, count: int) -> Any:
        script = SCRIPTS["runs"] if role == shape.endless else SCRIPTS.get(purpose, SCRIPTS["ends"])
        container = V1Container(
            name=shape.container, image=image, image_pull_policy="IfNotPresent", command=["python", "-c", script]
        )
        template = V1PodTemplateSpec(
            metadata=V1ObjectMeta(annotations={"sidecar.istio.io/inject": "false"}),
            spec=V1PodSpec(containers=[container], termination_grace_period_seconds=1),
        )
        policy = "ExitCode" if purpose == "restarts" else "Never"
        fields = {"replicas": count, "restart_policy": policy, "template": template, **replaced}
        return training.KubeflowOrgV1ReplicaSpec(**fields)

    specs = {role: replicas(role, count) for role, count in shape.roles.items()}
    extra = {"job_mode": "MXTrain"} if kind == "MXJob" else {}
    policy = training.KubeflowOrgV1RunPolicy(clean_pod_policy="None")
    return model(shape)(
        api_version="kubeflow.org/v1",
        kind=kind,
        metadata=V1ObjectMeta(name=name, namespace=namespace, annotations=WATCHED),
        spec=model(shape, "Spec")(run_policy=policy, **{shape.replica_specs: specs}, **extra),
    )
