"""di-server and a job with a queue: it creates what the queue has admitted, as the admission says, and nothing more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.diserver.world import Running, World, request, world
from trainop.engine.kueue import QUEUE
from trainop.engine.queueing.placement import Placement
from trainop.kinds.dijob.names import ADMISSION, DIJOBS
from trainop.runtime.objects.metadata import PODS, Json

SELECTOR = {"pool": "spot"}
TOLERATION: Json = {"key": "spot", "operator": "Exists"}
CONTAINER: Json = {"name": "di-container", "image": "i", "resources": {"requests": {"cpu": "1"}}}
SIZED: Json = {"template": {"spec": {"containers": [CONTAINER]}}}
PLACED = Placement(2, {"kueue.x-k8s.io/podset": "collector"}, {}, SELECTOR, (TOLERATION,))


@asynccontextmanager
async def admitted(text: str | None) -> AsyncIterator[tuple[World, Running]]:
    """A server, and a job in a queue, on whose coordinator the operator has written that."""
    async with world() as here:
        await here.job(collector=SIZED, learner=SIZED)
        await here.client.patch(DIJOBS, "a", "default", {"metadata": {"labels": {QUEUE: "q"}}})
        if text is not None:
            body = {"metadata": {"annotations": {ADMISSION: text}}}
            await here.client.patch(PODS, "a-coordinator", "default", body)
        async with here.di_server() as server:
            yield here, server


def written(**placements: Placement) -> str:
    return msgspec.json.encode(placements).decode()


async def test_pods_are_placed_as_the_queue_says_and_never_more_than_it_admitted():
    async with admitted(written(collector=PLACED)) as (here, server):
        first = await server.post(request(2))
        assert first.status == 200
        for pod in await here.pods("collector"):
            assert pod["spec"]["nodeSelector"] == SELECTOR
            assert TOLERATION in pod["spec"]["tolerations"]
            assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "collector"
        third = await server.post(request(1))
        assert (third.status, third.message) == (
            400,
            "the queue has admitted 2 pods of role collector, 2 exist, and the request asks for 1 more",
        )
        learner = await server.post(request(None, 1))
        assert learner.status == 400
        assert learner.message.startswith("the queue has admitted 0 pods of role learner, 0 exist")
        assert len(await here.names()) == 3
        await here.set_status((await here.names("collector"))[0], phase="Failed")
        again = await server.post({**request(1), "learners": {"replicas": 0}})
        assert again.status == 200, "a pod that has ended needs no quota"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"replicas": 1, "cpus": "2"}, "cpu 2 for pods of role learner, and the queue has admitted 1"),
        ({"replicas": 1, "memory": "1Gi"}, "memory 1Gi for pods of role learner, and the queue has admitted none"),
        ({"replicas": 1, "gpus": "1"}, "gpus 1 for pods of role learner, and the queue has admitted none"),
        ({"replicas": 1, "gpus": "2"}, "cannot have learners with more than one GPU"),
    ],
)
async def test_a_request_for_larger_pods_than_admitted_is_refused(wanted: Json, message: str):
    async with admitted(written(learner=Placement(4))) as (here, server):
        await here.aggregator_config()
        answer = await server.post(request(None, wanted))
        assert answer.status == 400
        assert message in answer.message
        assert await here.names() == ["a-coordinator"]
        smaller = await server.post(request(None, {"replicas": 1, "cpus": "500m"}))
        assert smaller.status == 200


async def test_nothing_is_created_while_the_coordinator_ends():
    """Its job is evicted, or deleted."""
    async with admitted(written(collector=PLACED)) as (here, server):
        name = (await server.post(request(1))).data["collectors"][0].partition(".")[0]
        body = {"metadata": {"finalizers": ["test/stays"]}}
        await here.client.patch(PODS, "a-coordinator", "default", body)
        await here.client.delete(PODS, "a-coordinator", "default")
        assert "a-coordinator is being deleted" in (await server.post(request(1))).message
        failed = {"namespace": "default", "coordinator": "a-coordinator", "collectors": [name], "learners": []}
        assert "a-coordinator is being deleted" in (await server.failed(failed)).message
        assert await here.names("collector") == [name]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"collector": {"count": "x"}}', "[" * 5000])
async def test_an_overwritten_annotation_is_refused(text: str):
    async with admitted(text) as (here, server):
        answer = await server.post(request(1))
        assert answer.status == 400
        assert "di-admission of a-coordinator cannot be read" in answer.message
        assert await here.names() == ["a-coordinator"]


async def test_a_job_that_the_operator_does_not_queue_is_not_limited():
    async with admitted(None) as (here, server):
        assert (await server.post(request(3, {"replicas": 1, "cpus": "9"}))).status == 200
        assert len(await here.names()) == 5
