"""`trainop describe` as a process beside real pods, and how much it asks of the API server."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.commands.conftest import Shell, python_job
from tests.commands.test_plan import job
from tests.commands.test_why import Counting
from trainop.commands import evidence as evidence_module
from trainop.commands.connection import Connection
from trainop.commands.evidence import MAX_REQUESTS, Collector
from trainop.commands.target import find_job
from trainop.explain.story import tell
from trainop.explain.why import Evidence
from trainop.programs.schemes import crds
from trainop.runtime.client.client import Client
from trainop.runtime.client.paging import PAGE_SIZE
from trainop.runtime.client.transport import Request, Response, Transport
from trainop.runtime.objects.metadata import EVENTS, PODS, Resource
from trainop.testing.cluster import TestCluster

FAILS = "print('loading shard', flush=True); raise ValueError('bad shard')"
EVENTS_PATH = "/api/v1/namespaces/default/events"
PODS_PATH = "/api/v1/namespaces/default/pods"
JOB_PATH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train"


def test_the_story_of_a_job_that_failed(shell: Shell):
    shell.create(python_job("sad", {"Master": (1, "import time; time.sleep(600)"), "Worker": (2, FAILS)}))
    shell.wait_state("sad", "Failed")
    done = shell.run("describe", "sad")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"PyTorchJob sad in namespace default: Failed, \d+ s after its creation\n", done.stdout)
    story, _, account = done.stdout.partition("\nits time: ")
    told = [line[34:].split(":")[0].split(" ")[0] for line in story.splitlines()[3:] if ":" in line[:19]]
    steps = [each for each in told if each]
    assert (steps[0], steps[-1]) == ("created", "failed")
    assert account
    assert "starting" in steps
    assert "| ValueError: bad shard" in done.stdout
    said = json.loads(shell.run("describe", "pytorchjob/sad", "-o", "json").stdout)
    assert (said["kind"], said["namespace"], said["name"], said["state"]) == ("PyTorchJob", "default", "sad", "Failed")
    names = [each["step"] for each in said["steps"]]
    assert (names[0], names[-1]) == ("created", "failed")
    assert {"starting", "scheduled", "started", "ended"} <= set(names)
    assert said["unread"] == []


def test_a_job_that_does_not_exist(shell: Shell):
    done = shell.run("describe", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no job nothing in namespace default" in done.stderr


class Broken(Counting):
    """A transport whose requests for one path fail as `answer` says; None: the connection is lost."""

    def __init__(self, inner: Transport, path: str, answer: Response | None) -> None:
        super().__init__(inner)
        self._path = path
        self._answer = answer

    async def send(self, request: Request) -> Response:
        if request.path != self._path or not self.paths[JOB_PATH]:
            return await super().send(request)
        if self._answer is None:
            raise ConnectionError("connection reset by peer")
        return self._answer


@asynccontextmanager
async def cluster_with_job(*, queued: bool = True) -> AsyncIterator[TestCluster]:
    async with TestCluster(*crds()) as cluster:
        raw = job(0, suspend=queued)
        raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpu"}
        raw["spec"]["runPolicy"]["schedulingPolicy"] = {"minAvailable": 1}
        (made,) = await cluster.create(raw)
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train"}
        owner["uid"] = made["metadata"]["uid"]
        labels = {
            "training.kubeflow.org/job-name": "train",
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
        }
        for number in range(2 * PAGE_SIZE):
            metadata = {"name": f"train-worker-{number}", "labels": labels, "ownerReferences": [owner]}
            spec = {"containers": [{"name": "pytorch", "image": "i"}], "schedulerName": "volcano"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            await cluster.client.create(PODS, pod, namespace="default")
        yield cluster


async def read_story(transport: Transport) -> Evidence:
    connection = Connection(Client(transport, user_agent="test", field_manager="test"), "default", "test")
    target = await find_job(connection, "pytorchjob/train", "default")
    return await Collector(connection, target).collect_story()


async def test_few_requests():
    """Beyond the pages of pods and events, and the job."""
    async with cluster_with_job() as cluster:
        counting = Counting(cluster.transport)
        evidence = await read_story(counting)
        assert len(evidence.pods) == 2 * PAGE_SIZE
        others = Counter({path: n for path, n in counting.paths.items() if path not in (PODS_PATH, EVENTS_PATH)})
        assert others.total() <= 1 + MAX_REQUESTS <= 6, others
        assert (counting.paths[PODS_PATH], others[JOB_PATH]) == (2, 2)


async def test_more_events_than_are_read_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence_module, "MAX_EVENTS", 2)
    async with cluster_with_job() as cluster:
        for number in range(PAGE_SIZE + 1):
            about = {"kind": "Pod", "namespace": "default", "name": f"train-worker-{number}"}
            event = {"metadata": {"name": f"e{number}"}, "involvedObject": about, "reason": "Scheduled"}
            await cluster.client.create(EVENTS, {"apiVersion": "v1", "kind": "Event", **event}, namespace="default")
        evidence = await read_story(cluster.transport)
        assert evidence.unread == (f"events beyond the first {PAGE_SIZE} of the namespace",)


FORBIDDEN = Response(
    403,
    {"content-type": "application/json"},
    b'{"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "not for you"}',
)


@pytest.mark.parametrize("answer", [None, FORBIDDEN], ids=["connection lost", "forbidden"])
@pytest.mark.parametrize("what", ["pods", "events", "the job again"])
async def test_what_cannot_be_read_is_named_and_the_rest_is_told(what: str, answer: Response | None):
    """The API server is away in the middle, or the user may not read something."""
    path = {"pods": PODS_PATH, "events": EVENTS_PATH, "the job again": JOB_PATH}[what]
    async with cluster_with_job() as cluster:
        story = tell(await read_story(Broken(cluster.transport, path, answer)))
        reason = "connection reset by peer" if answer is None else "not for you"
        assert [text for text in story.unread if what in text and reason in text], story.unread
        assert story.steps[0].name == "created"
        assert story.state != "Deleted"


async def test_a_job_that_is_deleted_meanwhile():
    async with cluster_with_job() as cluster:
        connection = Connection(cluster.client, "default", "test")
        target = await find_job(connection, "pytorchjob/train", "default")
        resource: Resource = target.type.resource
        await cluster.client.delete(resource, "train", "default")
        story = tell(await Collector(connection, target).collect_story())
        assert story.state == "Deleted"
        assert story.steps[-1].name == "deleted"
