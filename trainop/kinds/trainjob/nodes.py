"""The jobs that run TrainJobs, one maker for each framework of `mlPolicy`: their specs and the pods of their nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainop.engine.framework import COMPLETION_INDEX, variable
from trainop.kinds.jax import JAX
from trainop.kinds.mpi.transport import MPI_V2
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.trainjob.names import ANCESTOR, JOBSET_NAME, LAUNCHER, NODE, REPLICATED_JOB, TRAINER
from trainop.kinds.trainjob.patches import merge_by_name
from trainop.kinds.trainjob.runtime import NodeJob, Runtime
from trainop.kinds.trainjob.trainer import Trainer, count_processes
from trainop.runtime import Json, Resource

MASTER_PORT = 29500
"""Where torchrun of node 0 listens, as with Kubeflow Trainer."""


class Made(NamedTuple):
    resource: Resource
    spec: Json


def _torch(name: str, runtime: Runtime, trainer: Trainer) -> Made:
    """Workers only, so that the job ends when all nodes have, and torchrun's own variables."""
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
    variables = [
        variable("PET_MASTER_ADDR", f"{name}-worker-0"),
        variable("PET_MASTER_PORT", MASTER_PORT),
        {"name": "PET_NODE_RANK", "valueFrom": rank},
    ]
    given = trainer.processes or str(runtime.policy.get("numProcPerNode") or "auto")
    processes = count_processes(given, trainer.resources)
    made = _workers(PYTORCH.replica_specs, name, runtime, trainer, variables)
    return Made(PYTORCH.resource, {**made, "nprocPerNode": processes})


def _jax(name: str, runtime: Runtime, trainer: Trainer) -> Made:
    return Made(JAX.resource, _workers(JAX.replica_specs, name, runtime, trainer, []))


def _mpi(name: str, runtime: Runtime, trainer: Trainer) -> Made:
    """An MPIJob over ssh, whose launcher is node 0 with `runLauncherAsNode`."""
    policy, limit = runtime.policy, runtime.jobs[LAUNCHER].backoff_limit
    works = policy.get("runLauncherAsNode") is True
    workers = (trainer.nodes or runtime.nodes) - (1 if works else 0)
    counts = {LAUNCHER: 1, NODE: workers}
    roles = {
        role: {
            "replicas": counts[step],
            "restartPolicy": restart_policy(runtime.jobs[step]),
            "template": pod_template(name, step, runtime.jobs[step], trainer, []),
        }
        for role, step in (("Launcher", LAUNCHER), ("Worker", NODE))
        if counts[step]
    }
    given = trainer.processes or policy.get("numProcPerNode") or 1
    spec = {
        "mpiReplicaSpecs": roles,
        "slotsPerWorker": int(given),
        "runLauncherAsWorker": works,
        "sshAuthMountPath": policy.get("sshAuthMountPath") or "/root/.ssh",
        "mpiImplementation": policy.get("mpiImplementation") or "OpenMPI",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": limit},
    }
    return Made(MPI_V2, spec)


MAKERS: dict[str, Callable[[str, Runtime, Trainer], Made]] = {"torch": _torch, "jax": _jax, "mpi": _mpi}


def _workers(replica_specs: str, name: str, runtime: Runtime, trainer: Trainer, variables: list[Json]) -> Json:
    node = runtime.jobs[NODE]
    template = pod_template(name, NODE, node, trainer, variables)
    policy = restart_policy(node)
    workers = {"replicas": trainer.nodes or runtime.nodes, "restartPolicy": policy, "template": template}
    run_policy = {"cleanPodPolicy": "Running", "backoffLimit": node.backoff_limit}
    return {replica_specs: {"Worker": workers}, "runPolicy": run_policy}


def restart_policy(job: NodeJob) -> str:
    """A batch Job restarts what fails up to its limit, with the policy `Never` too."""
    given = (job.template.get("spec") or {}).get("restartPolicy")
    return "Never" if given == "Never" and not job.backoff_limit else "OnFailure"


def pod_template(name: str, step: str, job: NodeJob, trainer: Trainer, variables: list[Json]) -> Json:
    """The pods of one of `replicatedJobs`, with the labels of the SDK and, if it trains, what the TrainJob says."""
    metadata, spec = job.template.get("metadata") or {}, dict(job.template["spec"])
    labels = {**(metadata.get("labels") or {}), JOBSET_NAME: name, REPLICATED_JOB: step}
    if job.trains:
        labels[ANCESTOR] = TRAINER
    spec.pop("restartPolicy", None)
    spec["containers"] = [
        _container(each, job, trainer, variables) if each.get("name") == NODE else each for each in spec["containers"]
    ]
    return {"metadata": {**metadata, "labels": labels}, "spec": spec}


def _container(container: Json, job: NodeJob, trainer: Trainer, variables: list[Json]) -> Json:
    """The workers of mpi get all but the command, which is that of their sshd."""
    command = {"command", "args"} if not job.trains else set()
    changed = container | {key: value for key, value in trainer.container.items() if key not in command}
    if trainer.resources:
        changed["resources"] = trainer.resources
    changed["env"] = merge_by_name(container.get("env"), trainer.env)
    return {**changed, "env": merge_by_name(changed.get("env"), variables)}
