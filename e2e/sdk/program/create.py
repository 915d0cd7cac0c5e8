"""Calls that create jobs."""

from __future__ import annotations

import logging

from kubeflow.training import TrainingClient
from kubernetes.client import (
    V1ConfigMap,
    V1ConfigMapVolumeSource,
    V1ObjectMeta,
    V1Volume,
    V1VolumeMount,
)

from e2e.sdk.program.table import Scene, eventually, expect, raised, same

GENERATED = ("TFJob", "PyTorchJob")
"""The kinds that the SDK makes from a function or an image."""
RANKS = 3
FOLDER = "/mnt"
"""A folder that exists in every image, where the files of a ConfigMap are mounted."""


def train(parameters: dict[str, float]) -> None:
    """A user's training function; the SDK takes its source."""
    print("learning rate", parameters["lr"], flush=True)


def show_surroundings() -> None:
    import os  # noqa: PLC0415 - the SDK sends this function without its module
    from pathlib import Path  # noqa: PLC0415 - as above

    print("variable", os.environ["GREETING"], flush=True)
    print("file", Path("/mnt/greeting").read_text(), flush=True)


def show_rank() -> None:
    import os  # noqa: PLC0415 - the SDK sends this function without its module

    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)


@expect("TrainingClient", "uses the kubeconfig that it is given; raises for a context that it does not contain")
def _context(scene: Scene) -> None:
    raised(Exception, lambda: TrainingClient(config_file=scene.kubeconfig, context="missing"), "missing")


@expect("TrainingClient", "raises ValueError for an unknown kind", since=(1, 8))
def _unknown_kind(scene: Scene) -> None:
    raised(ValueError, lambda: TrainingClient(config_file=scene.kubeconfig, job_kind="SparkJob"), "Job kind")


@expect("create_job(job)", "creates the object, and returns nothing")
def _create(scene: Scene) -> None:
    for purpose in ("runs", "fails"):
        same(scene.client.create_job(job=scene.job(purpose)), None)


@expect("create_job(job)", "raises RuntimeError for a name that exists")
def _exists(scene: Scene) -> None:
    raised(RuntimeError, lambda: scene.client.create_job(job=scene.job("runs")), "Failed to create")


@expect("create_job(job)", "raises RuntimeError for an object that the API server rejects")
def _rejected(scene: Scene) -> None:
    job = scene.job("rejected", replicas="two")
    raised(RuntimeError, lambda: scene.client.create_job(job=job), f"Failed to create {scene.kind}")
    raised(RuntimeError, lambda: scene.client.get_job(scene.name("rejected")), "Failed to get")


@expect("create_job(job)", "rejects a controller in `managedBy` that does not exist", since=(1, 9), webhook=True)
def _managed_by(scene: Scene) -> None:
    job = scene.job("managed")
    job.spec.run_policy.managed_by = "kueue.x-k8s.io/other-controller"
    raised(RuntimeError, lambda: scene.client.create_job(job=job), f"Failed to create {scene.kind}")


@expect("create_job", "raises ValueError for a job beside a name", since=(1, 8))
def _too_much(scene: Scene) -> None:
    raised(ValueError, lambda: scene.client.create_job(job=scene.job("extra"), name="extra"), "must be None")


@expect("create_job(base_image)", "refuses a kind for which it has no template", since=(1, 8))
def _no_template(scene: Scene) -> None:
    if scene.kind in GENERATED:
        return
    call = {"name": "image", "base_image": scene.image, "num_workers": 1}
    raised(ValueError, lambda: scene.client.create_job(**call), "can't be created using function or image")


@expect("create_job(train_func)", "runs the function with its parameters", since=(1, 8), kinds=GENERATED)
def _function(scene: Scene) -> None:
    client, name = scene.client, scene.name("function")
    more = {"num_chief_replicas": 1, "num_ps_replicas": 1} if scene.kind == "TFJob" else {}
    call = {"train_func": train, "parameters": {"lr": 0.25}, "num_workers": 1, **more}
    client.create_job(name=name, base_image=scene.image, **call)
    scene.wait("function")
    pods = sorted(client.get_job_pod_names(name))
    roles = ("chief-0", "ps-0", "worker-0") if scene.kind == "TFJob" else ("master-0",)
    same(pods, [f"{name}-{role}" for role in roles])
    logs, _events = client.get_job_logs(name)
    same({pod: "learning rate 0.25" in text for pod, text in logs.items()}, {f"{name}-{scene.shape.master}": True})
    client.delete_job(name)


@expect("create_job(train_func)", "passes variables, volumes and resources on", since=(1, 9), kinds=GENERATED)
def _surroundings(scene: Scene) -> None:
    name, config = scene.name("files"), scene.name("config")
    scene.core.create_namespaced_config_map(
        scene.namespace, V1ConfigMap(metadata=V1ObjectMeta(name=config), data={"greeting": "hello from a file"})
    )
    scene.client.create_job(
        name=name,
        base_image=scene.image,
        train_func=show_surroundings,
        env_vars={"GREETING": "hello"},
        resources_per_worker={"cpu": "50m", "memory": "64Mi"},
        volumes=[V1Volume(name="files", config_map=V1ConfigMapVolumeSource(name=config))],
        volume_mounts=[V1VolumeMount(name="files", mount_path=FOLDER)],
        labels={"team": "sdk"},
        annotations={"note": "made by the SDK"},
    )
    job = scene.wait("files")
    same((job.metadata.labels["team"], job.metadata.annotations["note"]), ("sdk", "made by the SDK"))
    (pod,) = scene.client.get_job_pods(name)
    same(pod.spec.containers[0].resources.limits, {"cpu": "50m", "memory": "64Mi"})
    logs, _events = scene.client.get_job_logs(name)
    text = logs[pod.metadata.name]
    if "variable hello\n" not in text or "file hello from a file" not in text:
        raise AssertionError(text)
    scene.client.delete_job(name)


@expect("create_job(train_func)", "starts several workers with torchrun", since=(1, 9), kinds=("PyTorchJob",))
def _torchrun(scene: Scene) -> None:
    client, name = scene.client, scene.name("ranks")
    client.create_job(
        name=name, base_image=scene.torch_image, train_func=show_rank, num_workers=RANKS, num_procs_per_worker=1
    )
    scene.wait("ranks")

    def ranks() -> list[str]:
        logs, _events = client.get_job_logs(name, is_master=False)
        return [line for text in logs.values() for line in text.splitlines() if line.startswith("rank ")]

    eventually(lambda: sorted(ranks()) == [f"rank {rank} of {RANKS}" for rank in range(RANKS)], "the line of each rank")
    pods = [f"{name}-{replica}" for replica in ("master-0", "worker-0", "worker-1")]
    same(sorted(client.get_job_pod_names(name)), pods)
    client.delete_job(name)


@expect("create_job(base_image)", "creates the replicas that were asked for", since=(1, 9), kinds=GENERATED)
def _image(scene: Scene) -> None:
    client, name = scene.client, scene.name("image")
    more = {"num_chief_replicas": 1, "num_ps_replicas": 2} if scene.kind == "TFJob" else {"num_procs_per_worker": 4}
    client.create_job(name=name, base_image="registry.invalid/train:1", num_workers=3, **more)
    eventually(lambda: client.is_job_created(name), "the job is Created")
    spec = client.get_job(name).spec
    roles = {role: one.replicas for role, one in getattr(spec, scene.shape.replica_specs).items()}
    same(roles, {"Chief": 1, "PS": 2, "Worker": 3} if scene.kind == "TFJob" else {"Master": 1, "Worker": 2})
    if scene.kind == "PyTorchJob":
        same(spec.nproc_per_node, "4")
    eventually(lambda: len(client.get_job_pods(name)) == sum(roles.values()), "all pods exist")
    images = {pod.spec.containers[0].image for pod in client.get_job_pods(name)}
    same(images, {"registry.invalid/train:1"})
    client.delete_job(name)


@expect("create_job(queue_name)", "asks for the queue, warns if it is missing, and labels the job", since=(1, 9, 4))
def _queue(scene: Scene) -> None:
    class Warnings(logging.Handler):
        found: tuple[str, ...] = ()

        def emit(self, record: logging.LogRecord) -> None:
            self.found = (*self.found, record.getMessage())

    warnings, logger = Warnings(logging.WARNING), logging.getLogger("kubeflow.training.api.training_client")
    logger.addHandler(warnings)
    try:
        scene.client.create_job(job=scene.job("queue"), queue_name="missing")
    finally:
        logger.removeHandler(warnings)
    if not any("Queue 'missing' does not exist" in one for one in warnings.found):
        raise AssertionError(warnings.found)
    labels = scene.client.get_job(scene.name("queue")).metadata.labels
    same(labels["kueue.x-k8s.io/queue-name"], "missing")
    scene.client.delete_job(scene.name("queue"))
