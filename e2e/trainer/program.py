"""Every call of `TrainerClient` about jobs and runtimes, and what each promises. Runs in the environment of the SDK.

The first part is the script of its documentation (https://sdk.kubeflow.org, "Getting started"), with a training that
downloads nothing. The functions are sent as source text: they import what they need.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any

SDK = importlib.import_module("kubeflow.trainer")
PATIENCE = 120
"""Seconds."""


def train_pytorch(rate: str = "0.1") -> None:
    import os  # noqa: PLC0415  # it runs elsewhere

    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    print(f"node {os.environ['PET_NODE_RANK']} of {os.environ['PET_NNODES']}: rank {rank} of {size}, rate {rate}")


def wait_for_a_file() -> None:
    import pathlib  # noqa: PLC0415  # it runs elsewhere
    import time  # noqa: PLC0415  # the same

    print("waits", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.1)


def fail() -> None:
    print("about to fail", flush=True)
    raise SystemExit(3)


def train_jax() -> None:
    import os  # noqa: PLC0415  # it runs elsewhere

    names = ("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS")
    print(" ".join(os.environ[name] for name in names))


def train_mpi() -> None:
    import os  # noqa: PLC0415  # it runs elsewhere
    import sys  # noqa: PLC0415  # the same

    rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
    sys.stdout.write(f"rank {rank} of {size}\n")  # at once, as mpirun mixes the outputs of all ranks


def gone(client: Any, name: str) -> bool:
    try:
        client.get_job(name)
    except RuntimeError:
        return True
    return False


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"timeout while waiting for {what}"
        time.sleep(0.2)
    return value


def documented(client: Any, cpu: str) -> None:
    runtimes = {each.name: each for each in client.list_runtimes()}
    assert {"torch-distributed", "jax-distributed"} <= set(runtimes), runtimes
    torch = client.get_runtime("torch-distributed")
    assert (torch.trainer.framework, torch.trainer.num_nodes) == ("torch", 1), torch
    trainer = SDK.CustomTrainer(
        func=train_pytorch, func_args={"rate": "0.2"}, num_nodes=2, resources_per_node={"cpu": cpu, "memory": "1Gi"}
    )
    name = client.train(trainer=trainer, runtime=torch)
    job = client.wait_for_job_status(name, timeout=PATIENCE)
    assert (job.status, job.num_nodes) == ("Complete", 2), job
    steps = {each.name: each for each in job.steps}
    assert set(steps) == {"node-0", "node-1"}, steps
    assert all((each.status, each.device, each.device_count) == ("Succeeded", "cpu", "1") for each in job.steps), steps
    for index in range(2):
        (line,) = list(client.get_job_logs(name, step=f"node-{index}"))
        assert line == f"node {index} of 2: rank {index} of 2, rate 0.2", line
    assert list(client.get_job_logs(name, follow=True)) == ["node 0 of 2: rank 0 of 2, rate 0.2"]
    assert name in {each.name for each in client.list_jobs(runtime=torch)}
    found = {(each.involved_object_kind, each.reason) for each in client.get_job_events(name)}
    assert ("TrainJob", "SuccessfulCreate") in found, found
    client.delete_job(name)
    until(lambda: gone(client, name), "the deletion")


def running(client: Any) -> None:
    """The SDK asks the pods for this state. The default runtime is torch-distributed."""
    name = client.train(trainer=SDK.CustomTrainer(func=wait_for_a_file, num_nodes=2))
    seen: list[str] = []
    job = client.wait_for_job_status(name, {"Running"}, PATIENCE, 1, [lambda each: seen.append(each.status)])
    assert (job.status, seen[-1]) == ("Running", "Running"), (job, seen)
    client.delete_job(name)
    until(lambda: gone(client, name), "the deletion of a job that runs")


def failing(client: Any) -> None:
    make_runtime(client, "once", {}, {"restartPolicy": "Never"}, backoffLimit=0)
    name = client.train(trainer=SDK.CustomTrainer(func=fail), runtime="once")
    until(lambda: client.get_job(name).status == "Failed", "the failure")
    # torchrun may say something before, and its processes can write into the same line
    assert "about to fail" in "\n".join(client.get_job_logs(name))
    message = ""
    try:
        client.wait_for_job_status(name, timeout=PATIENCE)
    except RuntimeError as error:
        message = str(error)
    assert message == f"TrainJob {name} is Failed", message
    client.delete_job(name)


def refused(client: Any) -> None:
    kinds = sdk_types()
    dataset = kinds.Initializer(dataset=kinds.HuggingFaceDatasetInitializer(storage_uri="hf://a/b"))
    name = client.train(trainer=SDK.CustomTrainer(func=train_pytorch), initializer=dataset)
    until(lambda: client.get_job(name).status == "Failed", "the refusal")
    until(
        lambda: any("spec.initializer: Forbidden" in each.message for each in client.get_job_events(name)),
        "the event about the refusal",
    )
    client.delete_job(name)


def sdk_types() -> types.ModuleType:
    return importlib.import_module("kubeflow.trainer.types.types")


def make_runtime(client: Any, name: str, container: Any, pod: Any, **job: Any) -> None:
    """A TrainingRuntime like torch-distributed, with these changes."""
    api, group = client.backend.custom_api, ("trainer.kubeflow.org", "v1alpha1")
    torch = api.get_cluster_custom_object(*group, "clustertrainingruntimes", "torch-distributed")
    template = torch["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    template |= job
    template["template"]["spec"] |= pod
    template["template"]["spec"]["containers"][0] |= container
    made = {**torch, "kind": "TrainingRuntime", "metadata": {"name": name, "labels": torch["metadata"]["labels"]}}
    api.create_namespaced_custom_object(*group, client.backend.namespace, "trainingruntimes", made)


def container_of_a_namespace(client: Any, image: str) -> None:
    """CustomTrainerContainer, with the command of a runtime of the namespace."""
    make_runtime(client, "mine", {"command": ["sh", "-c", "echo $A $PET_NODE_RANK"]}, {})
    trainer = SDK.CustomTrainerContainer(image=image, num_nodes=2, env={"A": "hello"})
    name = client.train(trainer=trainer, runtime="mine")
    client.wait_for_job_status(name, timeout=PATIENCE)
    assert list(client.get_job_logs(name, step="node-1")) == ["hello 1"]
    client.delete_job(name)


def jax(client: Any) -> None:
    name = client.train(trainer=SDK.CustomTrainer(func=train_jax, num_nodes=2), runtime="jax-distributed")
    client.wait_for_job_status(name, timeout=PATIENCE)
    (line,) = list(client.get_job_logs(name, step="node-1"))
    assert line.split()[:2] == ["1", "2"], line
    client.delete_job(name)


def mpi(client: Any, runtime: str) -> None:
    """The launcher is node 0; its log has the output of all ranks."""
    name = client.train(trainer=SDK.CustomTrainer(func=train_mpi, num_nodes=2), runtime=runtime)
    client.wait_for_job_status(name, timeout=PATIENCE)
    lines = sorted(client.get_job_logs(name))
    assert lines == ["rank 0 of 2", "rank 1 of 2"], lines
    client.delete_job(name)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--image", default="any", help="with a shell; on the embedded cluster images are not used")
    parser.add_argument("--cpu", default="1", help="of a node")
    parser.add_argument("--mpi", help="a runtime; without it, this part is left out")
    given = parser.parse_args()
    client = SDK.TrainerClient(SDK.KubernetesBackendConfig(namespace=given.namespace))
    checks: list[partial[None]] = [
        partial(documented, client, given.cpu),
        partial(running, client),
        partial(failing, client),
        partial(refused, client),
        partial(container_of_a_namespace, client, given.image),
        partial(jax, client),
    ]
    if given.mpi:
        checks.append(partial(mpi, client, given.mpi))
    for check in checks:
        started = time.monotonic()
        check()
        print(f"ok {check.func.__name__} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
