"""What `trainop why` and `trainop describe` cost on a large job beside a real kube-apiserver.

python -m e2e.bench.why [--pods 1000] [--rounds 5]        two minutes; exit code 1 if a limit is exceeded

No operator runs: the pods of both jobs are written here, each job in a namespace of its own. `why` explains one whose
pods are all unschedulable, with two events each; `describe` tells the story of one whose pods all run, with the four
events of a regular start. Time and peak memory are those of the whole process, the median of the rounds; beside it,
`kubectl get pods,events -o json` reads the same objects.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from e2e.bench.cluster import BenchCluster, open_cluster
from e2e.bench.node import NODE
from e2e.bench.processes import exit_on_sigterm
from e2e.cluster.places import binary
from trainop.engine.schema.crd import crd
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.clock import timestamp
from trainop.runtime.objects.metadata import EVENTS, NAMESPACES, PODS, Json

MOST_SECONDS, MOST_MEBIBYTES = 2.0, 100.0
CONCURRENCY = 16
LABELS = {"training.kubeflow.org/job-name": "large", "training.kubeflow.org/operator-name": "pytorchjob-controller"}
MESSAGE = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."
TEMPLATE: Json = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}


class Written(NamedTuple):
    """What is written about one pod."""

    status: Json
    events: list[Json]


class Case(NamedTuple):
    command: str
    """It is also the name of the namespace of the job that it explains."""
    node: str
    """The node to which all pods are bound; empty for none."""
    write: Callable[[str], Written]
    """From the present time, as Kubernetes writes it."""
    says: str
    """What the output contains, with the number of pods."""


def unschedulable(_now: str) -> Written:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": MESSAGE}
    event: Json = {"type": "Warning", "reason": "FailedScheduling", "message": MESSAGE}
    return Written({"phase": "Pending", "conditions": [condition]}, [event, event])


def running(now: str) -> Written:
    held = ("PodScheduled", "Initialized", "Ready")
    container = {"name": "pytorch", "image": "i", "imageID": "sha256:0", "restartCount": 0, "ready": True}
    container["state"] = {"running": {"startedAt": now}}
    status: Json = {"phase": "Running", "startTime": now, "containerStatuses": [container]}
    status["conditions"] = [{"type": each, "status": "True", "lastTransitionTime": now} for each in held]
    told = {
        "Scheduled": f"Successfully assigned describe/large to {NODE}",
        "Pulled": 'Container image "i" already present on machine',
        "Created": "Created container: pytorch",
        "Started": "Started container pytorch",
    }
    at: Json = {"type": "Normal", "firstTimestamp": now, "lastTimestamp": now, "count": 1}
    return Written(status, [{**at, "reason": reason, "message": text} for reason, text in told.items()])


CASES = (
    Case("why", "", unschedulable, "{count} of {count} pods fit on no node"),
    Case("describe", NODE, running, "all {count:,} pods: containers started"),
)


async def fill(cluster: BenchCluster, case: Case, count: int) -> None:
    """The job, its pods, and their events."""
    namespace = case.command
    await cluster.client.create(NAMESPACES, {"metadata": {"name": namespace}})
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "large"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": count, "template": TEMPLATE}}},
    }
    made = await cluster.client.create(PYTORCH.resource, job, namespace=namespace)
    owner: Json = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "large", "controller": True}
    owner["uid"] = made["metadata"]["uid"]
    turns = asyncio.Semaphore(CONCURRENCY)

    async def one(index: int) -> None:
        name = f"large-worker-{index}"
        labels = {**LABELS, "training.kubeflow.org/replica-type": "worker"}
        labels["training.kubeflow.org/replica-index"] = str(index)
        pod: Json = {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}}
        pod["spec"] = {**TEMPLATE["spec"], "nodeName": case.node}
        async with turns:
            stored = await cluster.client.create(PODS, pod, namespace=namespace)
            written = case.write(timestamp(datetime.now(UTC)))
            await cluster.client.patch(PODS, name, namespace, {"status": written.status}, subresource="status")
            about = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace}
            about["uid"] = stored["metadata"]["uid"]
            for number, event in enumerate(written.events):
                body: Json = {"metadata": {"name": f"{name}.{number}"}, "involvedObject": about, **event}
                await cluster.client.create(EVENTS, body, namespace=namespace)

    async with asyncio.TaskGroup() as tasks:
        for index in range(count):
            tasks.create_task(one(index))


class Cost(NamedTuple):
    seconds: float
    cpu: float
    """Seconds of processor time, which other programs on the machine change little."""
    memory: float
    """Peak, MiB."""


ACCOUNTANT = """
import os, sys, time
begin = time.monotonic()
_, status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
"""
"""Starts a command and prints its `Cost`. A process of its own, as `ru_maxrss` is at least the memory of the process
that starts the command."""


def measure(command: list[str]) -> tuple[Cost, str]:
    """The cost of a command, and its output."""
    accountant = [sys.executable, "-S", "-E", "-c", ACCOUNTANT, *command]
    done = subprocess.run(accountant, capture_output=True, text=True, check=True)
    *errors, figures = done.stderr.splitlines()
    assert not errors, errors
    return Cost(*map(float, figures.split())), done.stdout


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


async def compare(cluster: BenchCluster, case: Case, count: int, rounds: int) -> bool:
    """Prints the cost of a command beside kubectl's. Returns whether it is within the limits."""
    config = f"--kubeconfig={cluster.plane.kubeconfig}"
    command = [str(Path(sys.executable).with_name("trainop")), case.command, "large", "-n", case.command, config]
    kubectl = [str(binary("kubectl")), "get", "pods,events", "-n", case.command, "-o", "json", config]
    ours: list[Cost] = []
    theirs: list[Cost] = []
    for _ in range(rounds):  # in turns, so that both meet the same machine
        cost, output = await asyncio.to_thread(measure, command)
        assert case.says.format(count=count) in output, output
        ours.append(cost)
        theirs.append((await asyncio.to_thread(measure, kubectl))[0])
    own = median(ours)
    for name, cost in ((f"trainop {case.command}", own), ("kubectl get, the same", median(theirs))):
        print(f"{name}, {count} pods: {cost.seconds:.2f} s, of the CPU {cost.cpu:.2f} s, {cost.memory:.0f} MiB")
    return own.seconds <= MOST_SECONDS and own.memory <= MOST_MEBIBYTES


async def main(count: int, rounds: int) -> int:
    async with open_cluster([crd(PYTORCH)]) as cluster:
        for case in CASES:
            await fill(cluster, case, count)
        kept = [await compare(cluster, case, count, rounds) for case in CASES]
    return int(not all(kept))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    exit_on_sigterm()
    sys.exit(asyncio.run(main(arguments.pods, arguments.rounds)))
