"""What di-server does for whom: answers belong to their caller, deletions to a UID, and strangers cost no requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.diserver.test_faults import NEVER, leaving
from tests.diserver.test_hostile import STRANGER, forge, seen
from tests.diserver.world import SETTINGS, Running, World, request, world
from trainop.diserver.caches import READS_OF_CALLER
from trainop.kinds.dijob.names import CONTROLLER_NAME, DI_SERVER, JOURNAL, Role
from trainop.runtime.client.transport import Request
from trainop.runtime.objects.metadata import LEASES, PODS

AGGREGATOR = "127.0.0.9"


async def test_an_answer_that_was_not_delivered_is_given_to_its_caller_only():
    """Two pods of a job may send equal requests, and each means pods of its own."""
    async with world() as here, here.di_server(times=NEVER) as server:
        job = await here.job()
        await forge(here, job, Role.AGGREGATOR, "a-aggregator-bcdfg", address=AGGREGATOR)
        await seen(here, server, 2)
        await leaving(server, here, request(2))
        first = set(await here.names("collector"))
        answer = await server.post(request(2), address=AGGREGATOR)
        assert answer.status == 200
        assert not first & {url.partition(".")[0] for url in answer.data["collectors"]}
        assert len(await here.names("collector")) == 4
        again = await server.post(request(2))
        assert {url.partition(".")[0] for url in again.data["collectors"]} == first


async def replace_pod(here: World, name: str) -> None:
    """The name passes to a pod of another owner."""
    await here.client.delete(PODS, name, "default", grace_seconds=0)
    await here.client.create(PODS, foreign(name))


def foreign(name: str) -> Any:
    container = {"name": "x", "image": "foreign"}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


async def images(here: World) -> list[str]:
    found = (await here.client.list(PODS, "default")).items
    return sorted(pod["spec"]["containers"][0]["image"] for pod in found)


@pytest.mark.parametrize("method", ["DELETE", "failed"])
async def test_a_pod_that_got_the_name_of_a_victim_is_not_deleted(method: str):
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        name = url.partition(".")[0]
        done: list[str] = []

        async def race(sent: Request) -> None:
            if sent.method == "DELETE" and sent.path == PODS.path("default", name) and not done:
                done.append(name)
                await replace_pod(here, name)

        server.transport.before = race
        body = {**request(), "collectors": [name]}
        answer = await (server.delete(request(1)) if method == "DELETE" else server.failed(body))
        assert (answer.status, done) == (200, [name])
        assert "foreign" in await images(here)


@pytest.mark.parametrize("uids", [True, False], ids=["a record with UIDs", "of an older release"])
async def test_the_request_of_a_dead_server_deletes_only_its_pods(uids: bool):
    async with world() as here:
        job = await here.job()
        async with here.di_server(times=NEVER) as first:
            urls = (await first.post(request(2))).data["collectors"]
        kept, gone = (url.partition(".")[0] for url in urls)
        found = [(await here.client.get(PODS, name, "default"))["metadata"]["uid"] for name in (kept, gone)]
        await replace_pod(here, kept)
        uid = job["metadata"]["uid"]
        record = {"request": "r", "namespace": "default", "job": "a", "uid": uid, "state": "decided", "status": 200}
        record |= {"delete": [kept, gone], **({"uids": found} if uids else {})}
        metadata = {
            "name": f"{SETTINGS.lease_prefix}-{uid}",
            "namespace": "default",
            "labels": {CONTROLLER_NAME: DI_SERVER},
            "annotations": {JOURNAL: json.dumps(record)},
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
        await here.client.create(LEASES, body)
        async with here.di_server():
            await here.until_released()
        assert await here.names("collector") == []
        assert (await here.client.get(PODS, kept, "default"))["spec"]["containers"][0]["image"] == "foreign"


class Reads:
    """Counts what a server asks the API server about pods and jobs."""

    def __init__(self, server: Running) -> None:
        self.sent: list[str] = []
        server.transport.before = self._note

    def _note(self, sent: Request) -> None:
        if sent.method == "GET" and "/leases" not in sent.path:
            self.sent.append(sent.path)


async def test_get_of_what_does_not_exist_costs_the_api_server_nothing():
    async with world() as here, here.di_server() as server:
        job = await here.job()
        await here.client.create(PODS, foreign("plain"))
        orphan: Any = {"ownerReferences": [{**owner_of(job), "name": "nobody"}]}
        await forge(here, job, Role.COLLECTOR, "a-collector-bcdfg", **orphan)
        await seen(here, server, 2)
        reads = Reads(server)
        queries = [f"{by}={name}" for by in ("name", "coordinator", "aggregator") for name in ("x", "plain", "../x")]
        queries += ["name=a-collector-bcdfg"]
        answers = await asyncio.gather(*(server.get(f"?namespace=default&{query}") for query in queries * 3))
        assert {answer.status for answer in answers} == {404}
        assert reads.sent == []


def owner_of(job: Any) -> Any:
    metadata = job["metadata"]
    return {"apiVersion": job["apiVersion"], "kind": "DIJob", "name": metadata["name"], "uid": metadata["uid"]}


async def test_get_waits_for_a_pod_whose_event_is_on_its_way():
    async with world() as here, here.di_server() as server:
        answer = asyncio.create_task(server.get("?namespace=default&coordinator=a-coordinator"))
        await asyncio.sleep(0.1)
        await here.job()
        assert (await answer).status == 200


async def test_strangers_cause_few_requests_to_the_api_server():
    """Whatever they send: nobody knows them before it is looked up."""
    async with world() as here, here.di_server() as server:
        await here.job()
        await seen(here, server, 1)
        reads = Reads(server)
        named = [request(1, coordinator=name) for name in ("x", "y", "a-coordinator")]
        failed = [{**request(), "collectors": [f"x{number}" for number in range(100)]}]
        sent = [server.post(body, address=STRANGER) for body in named * 4]
        sent += [server.failed(body, address=STRANGER) for body in failed * 4]
        answers = await asyncio.gather(*sent)
        assert {answer.status for answer in answers} <= {403, 404}
        assert len(reads.sent) <= READS_OF_CALLER[1] + 3, "and one more per second"
