"""`trainop why` as a process beside real pods, and how much it asks of the API server."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.commands.conftest import Shell, python_job
from tests.commands.test_plan import job
from tests.controllers.test_embedded_queue import kueue_crd
from trainop.commands.connection import Connection
from trainop.commands.evidence import MAX_REQUESTS, Collector
from trainop.commands.target import find_job
from trainop.engine.kueue import LOCAL_QUEUES, WORKLOADS
from trainop.explain.why import diagnose
from trainop.programs.schemes import crds
from trainop.runtime.client.client import Client
from trainop.runtime.client.paging import PAGE_SIZE
from trainop.runtime.client.transport import Request, Response, Stream, Transport
from trainop.runtime.objects.metadata import PODS, Json, Resource
from trainop.testing.cluster import TestCluster

FAILS = "raise ValueError('bad shard')"


def test_the_cause_of_a_failed_job_is_named(shell: Shell):
    shell.create(python_job("dead", {"Master": (1, "import time; time.sleep(600)"), "Worker": (2, FAILS)}))
    shell.wait_state("dead", "Failed")
    done = shell.run("why", "dead")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(
        "PyTorchJob dead in namespace default: Failed\n  The job failed. First failure: Worker "
    )
    assert "exited with code 1" in done.stdout
    assert "bad shard" in done.stdout
    said = json.loads(shell.run("why", "pytorchjob/dead", "-o", "json").stdout)
    assert (said["kind"], said["name"], said["state"], said["causes"][0]["code"]) == (
        "PyTorchJob",
        "dead",
        "Failed",
        "Failed",
    )


def test_a_job_that_does_not_exist_or_cannot_be_read(shell: Shell):
    done = shell.run("why", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no job nothing in namespace default" in done.stderr


class Counting:
    """A transport that counts requests by path."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.paths: Counter[str] = Counter()

    async def send(self, request: Request) -> Response:
        self.paths[request.path] += 1
        return await self._inner.send(request)

    async def open(self, request: Request) -> Stream:
        self.paths[request.path] += 1
        return await self._inner.open(request)

    async def close(self) -> None:
        await self._inner.close()


async def create(cluster: TestCluster, resource: Resource, metadata: Json) -> None:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": {}}
    await cluster.client.create(resource, body, namespace="default")


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_objects_of_kueue_are_read_in_the_version_that_is_served(version: str):
    """Before 0.15, Kueue has no `v1beta2`."""
    resources = [replace(each, version=version) for each in (WORKLOADS, LOCAL_QUEUES)]
    async with TestCluster(*crds(), *map(kueue_crd, resources)) as cluster:
        raw = job(0, suspend=True)
        raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpu"}
        (made,) = await cluster.create(raw)
        labels = {"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]}
        connection = Connection(cluster.client, "default", "test")
        target = await find_job(connection, "pytorchjob/train", "default")
        await create(cluster, resources[1], {"name": "gpu"})
        assert (await Collector(connection, target).collect()).queues == ("gpu",)
        await create(cluster, resources[0], {"name": "w", "labels": labels})
        seen = await Collector(connection, target).collect()
        assert [each["metadata"]["name"] for each in seen.workloads] == ["w"]


@pytest.mark.parametrize("kind", ["queued", "untouched", "unscheduled"])
async def test_few_requests_whatever_is_the_matter(kind: str):
    """Beyond the pages of pods and events, and the job."""
    async with TestCluster(*crds()) as cluster:
        raw = job(0, suspend=kind == "queued")
        raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpu"}
        (made,) = await cluster.create(raw)
        if kind == "unscheduled":
            count = 2 * PAGE_SIZE
            owner = {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "name": "train",
                "uid": made["metadata"]["uid"],
            }
            labels = {
                "training.kubeflow.org/job-name": "train",
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
            }
            for number in range(count):
                metadata = {"name": f"train-worker-{number}", "labels": labels, "ownerReferences": [owner]}
                spec = {"containers": [{"name": "pytorch", "image": "i"}], "schedulerName": "volcano"}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
                await cluster.client.create(PODS, pod, namespace="default")
        counting = Counting(cluster.transport)
        connection = Connection(Client(counting, user_agent="test", field_manager="test"), "default", "test")
        target = await find_job(connection, "pytorchjob/train", "default")
        found = diagnose(await Collector(connection, target).collect())
        assert found.causes
        lists = ("/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/events")
        others = {path: number for path, number in counting.paths.items() if path not in lists}
        assert sum(others.values()) <= 1 + MAX_REQUESTS <= 6, others
        assert counting.paths[lists[0]] == (2 if kind == "unscheduled" else 1)
