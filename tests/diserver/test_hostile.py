"""Users who may create pods, and clients that send anything, against the jobs of others."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.diserver.world import SETTINGS, TEMPLATE, Answered, Running, World, request, world
from trainop.kinds.dijob.names import CONTROLLER_NAME, DI_SERVER, Role
from trainop.kinds.dijob.pods import build_pod, read_job
from trainop.runtime.objects.metadata import LEASES, PODS, Json

STRANGER = "127.0.0.7"


async def forge(
    here: World, job: Json, role: Role, name: str, namespace: str = "default", *, address: str = STRANGER, **more: Any
) -> Json:
    """A pod that a user creates as if it were the job's."""
    pod = build_pod(read_job(job), role, TEMPLATE, here.options, suffix="bcdfg")
    pod["metadata"] |= {"name": name, "namespace": namespace, **more}
    made = await here.client.create(PODS, pod)
    await here.set_status(name, namespace, podIP=address)
    return made


async def seen(here: World, server: Running, count: int) -> None:
    await here.until(lambda: sum(bool(pod.addresses) for pod in server.server.caches.pods.store.list()) == count)


@pytest.mark.parametrize(("role", "name"), [(Role.COORDINATOR, "mine"), (Role.AGGREGATOR, "mine-aggregator-bcdfg")])
async def test_a_pod_whose_name_the_job_does_not_give_does_not_act_for_it(role: Role, name: str):
    async with world() as here, here.di_server() as server:
        job = await here.job()
        await forge(here, job, role, name)
        await seen(here, server, 2)
        for coordinator in ("a-coordinator", name):
            answer = await server.post(request(1, coordinator=coordinator), address=STRANGER)
            assert answer.status == 403
        assert len(await here.names()) == 2


async def test_a_job_is_listed_once_however_many_pods_have_the_role_of_its_coordinator():
    async with world() as here, here.di_server() as server:
        job = await here.job()
        for number in range(3):
            await forge(here, job, Role.COORDINATOR, f"mine-{number}")
        await seen(here, server, 4)
        listed = [each["coordinator"] for each in (await server.get("?namespace=default")).data]
        assert listed == ["a-coordinator"]


@pytest.mark.parametrize("gpus", ["1000000000000000000", "8001"])
async def test_the_group_of_a_failed_aggregator_is_limited(gpus: str):
    async with world() as here:
        await here.nodes(8)
        async with here.di_server() as server:
            job = await here.job()
            asked = json.dumps({"gpus": gpus})
            await forge(
                here,
                job,
                Role.AGGREGATOR,
                "a-aggregator-bcdfg",
                annotations={"trainop.kubeflow.org/di-resources": asked},
            )
            await seen(here, server, 2)
            answer = await server.failed({**request(), "learners": ["a-aggregator-bcdfg"]})
            assert answer.status == 400
            assert "at most 1000 are allowed" in answer.message
            assert await here.names() == ["a-aggregator-bcdfg", "a-coordinator"]


async def test_a_failed_pod_is_left_alone_if_its_name_has_passed_to_another_owner():
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        name = url.partition(".")[0]
        await seen_pod(here, server, name)
        store = server.server.caches.pods.store
        store.put = lambda *_args, **_more: []  # type: ignore[method-assign]  # no event arrives any more
        store.remove = lambda *_args, **_more: []  # type: ignore[attr-defined,method-assign,unused-ignore]  # a fault
        await here.client.delete(PODS, name, "default", grace_seconds=0)
        await here.client.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"containers": [{"name": "x", "image": "i"}]},
            },
        )
        answer = await server.failed({**request(), "collectors": [name]})
        assert (answer.status, answer.message) == (404, f"module {name} is not owned by DIJob default/a")
        assert (await here.client.get(PODS, name, "default"))["spec"]["containers"][0]["name"] == "x"


async def seen_pod(here: World, server: Running, name: str) -> None:
    await here.until(lambda: any(pod.metadata.name == name for pod in server.server.caches.pods.store.list()))


async def test_a_foreign_lease_stops_neither_the_server_nor_the_search():
    async with world() as here, here.di_server() as server:
        await here.job()
        metadata = {"namespace": "default", "labels": {CONTROLLER_NAME: DI_SERVER}}
        for name, spec in (("aaa", None), ("bbb", {})):
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {**metadata, "name": name}}
            await here.client.create(LEASES, body if spec is None else {**body, "spec": spec})
        await here.until(lambda: _none(here))
        assert (await server.post(request(1))).status == 200


async def _none(here: World) -> bool:
    return not await here.leases()


# Clients --------------------------------------------------------------------------------------------------------------


async def raw(server: Running, sent: bytes) -> Answered:
    """Sends bytes; the answer, up to the end of the connection or of the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.http.port)
    writer.write(sent)
    async with asyncio.timeout(15):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        body = await reader.readexactly(length)
    writer.close()
    is_json = b"application/json" in head
    return Answered(int(head.split()[1]), json.loads(body) if is_json else body.decode())


HEAD = b"POST /v1alpha1/replicas HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"Content-Encoding: br\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400),
        (b"Content-Length: 4\r\n\r\n\xff\xfe\x00\x80", 400),
    ],
)
async def test_a_broken_body_is_a_bad_request(sent: bytes, status: int, caplog: pytest.LogCaptureFixture):
    async with world() as here, here.di_server() as server:
        await here.job()
        answer = await raw(server, HEAD + sent)
        assert answer.status == status, answer
        assert "Unhandled exception" not in caplog.text


async def test_a_compressed_body_is_limited_by_its_decoded_length():
    async with world() as here, here.di_server() as server:
        await here.job()
        bomb = gzip.compress(b" " * 200_000_000)
        sent = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
        answer = await raw(server, sent)
        assert (answer.status, answer.message) == (413, "the request body is longer than 131072 bytes")


async def test_slow_bodies_do_not_keep_others_out():
    async with world() as here, here.di_server(replace(SETTINGS, connections=8)) as server:
        await here.job()
        slow: list[asyncio.StreamWriter] = []
        for _ in range(8):
            _, writer = await asyncio.open_connection("127.0.0.1", server.server.http.port, local_addr=(STRANGER, 0))
            writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
            slow.append(writer)
        listener = server.server.http._listener
        await here.until(lambda: listener is not None and len(listener.open) == 8)
        assert (await server.post(request(1))).status == 200
        for each in slow:
            each.close()
