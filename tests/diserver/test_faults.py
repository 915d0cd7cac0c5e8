"""Requests that fail half-way, compete, are repeated, or whose server is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import aiohttp
import pytest

from tests.diserver.world import FAST, Running, World, request, world
from tests.patience import PATIENCE
from trainop.diserver import application, retries
from trainop.diserver.journal import Journal, Times
from trainop.diserver.records import JobKey
from trainop.kinds.dijob.names import REQUEST
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.objects.metadata import LEASES, PODS

NEVER = Times(lease=1.0, renew=0.3, wait=20.0, sweep=3600.0)
"""Without a search for dead servers."""


def is_create(sent: Request) -> bool:
    return sent.method == "POST" and sent.path == PODS.path("default")


def refusing(number: int, status: int, message: str) -> Any:
    """The transport's answer to the create of this number."""
    seen = 0

    def answer(sent: Request) -> Response | None:
        nonlocal seen
        seen += is_create(sent)
        if is_create(sent) and seen == number:
            text = {"kind": "Status", "code": status, "message": message, "reason": "Forbidden"}
            return Response(status, {}, json.dumps(text).encode())
        return None

    return answer


async def test_a_refused_pod_undoes_the_whole_request():
    async with world() as here, here.di_server() as server:
        await here.job()
        server.transport.answer = refusing(3, 403, 'exceeded quota: "None" is left, limited: True')
        answer = await server.post(request(4))
        assert answer.status == 500
        assert answer.message == "exceeded quota: `none` is left, limited: true"
        assert answer.data == {
            "namespace": "default",
            "coordinator": "a-coordinator",
            "collectors": [],
            "learners": [],
        }
        assert await here.names() == ["a-coordinator"]
        await here.until_released()


async def test_a_refused_ddp_learner_undoes_its_aggregator():
    async with world() as here:
        await here.nodes(8, 8, 0, 4)
        await here.aggregator_config()
        await here.job()
        async with here.di_server() as server:
            server.transport.answer = refusing(3, 403, "exceeded quota")
            assert (await server.post(request(None, {"replicas": 1, "gpus": 10}))).status == 500
            assert await here.names() == ["a-coordinator"]


async def test_a_failed_replacement_keeps_the_old_pods():
    async with world() as here, here.di_server() as server:
        await here.job()
        urls = (await server.post(request(2))).data["collectors"]
        before = await here.names()
        server.transport.answer = refusing(2, 403, "exceeded quota")
        assert (await server.failed({**request(), "collectors": urls})).status == 500
        assert await here.names() == before


async def test_the_api_server_is_away_for_a_moment():
    async with world() as here, here.di_server() as server:
        await here.job()
        failures = iter((True, False, True, True))

        def fail(sent: Request) -> None:
            if is_create(sent) and next(failures, False):
                raise ConnectionResetError("reset")

        server.transport.before = fail
        assert (await server.post(request(3))).status == 200
        assert len(await here.names("collector")) == 3


async def test_a_create_whose_answer_was_lost_makes_one_pod():
    async with world() as here, here.di_server() as server:
        await here.job()
        failures = iter((True, False, True))

        def fail(sent: Request) -> None:
            if is_create(sent) and next(failures, False):
                raise ConnectionResetError("reset")

        server.transport.after = fail
        answer = await server.post(request(3))
        assert answer.status == 200
        assert sorted(url.partition(".")[0] for url in answer.data["collectors"]) == await here.names("collector")


async def test_a_name_that_is_taken_is_drawn_again():
    async with world() as here, here.di_server(seed=1) as one:
        await here.job()
        first = (await one.post(request(2))).data["collectors"]
        async with here.di_server(seed=1) as two:  # draws the same names
            second = (await two.post(request(2))).data["collectors"]
        assert not set(first) & set(second)
        assert len(await here.names("collector")) == 4


async def test_the_api_server_goes_away_in_the_middle_of_a_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retries, "PATIENCE", 1.0)
    async with world() as here, here.di_server() as server:
        await here.job()
        away = asyncio.Event()

        def fail(sent: Request) -> None:
            if len(created) >= 2:
                away.set()
            if away.is_set():
                raise ConnectionRefusedError("refused")
            if is_create(sent):
                created.append(sent)

        created: list[Request] = []
        server.transport.before = fail
        posting = asyncio.create_task(server.post(request(40)))
        await away.wait()
        async with asyncio.timeout(PATIENCE):
            answer = await posting
        assert answer.status == 500
        assert answer.data["collectors"] == []
        server.transport.before = lambda _sent: None
        await here.until(lambda: _only_coordinator(here))
        assert (await server.post(request(1))).status == 200


async def _only_coordinator(here: World) -> bool:
    return await here.names() == ["a-coordinator"] and await here.leases() == []


async def stopped_in_the_middle(here: World, server: Running, body: Any, creates: int) -> None:
    """Kills the server after some creates of a request."""
    reached = asyncio.Event()
    count, before = 0, len(await here.names())

    async def wait(sent: Request) -> None:
        nonlocal count
        if is_create(sent):
            if count >= creates:
                reached.set()
                await asyncio.Event().wait()
            count += 1

    server.transport.before = wait
    posting = asyncio.create_task(server.post(body))
    await reached.wait()
    await here.until(lambda: _count_is(here, creates + before))
    await server.kill()
    posting.cancel()
    await asyncio.wait([posting])


async def _count_is(here: World, count: int) -> bool:
    return len(await here.names()) == count


async def test_a_killed_server_leaves_nothing_half_made():
    async with world() as here, here.di_server() as server:
        await here.job()
        async with here.di_server(seed=2) as other:
            await stopped_in_the_middle(here, server, request(5), 2)
            assert len(await here.names()) == 3
            await here.until(lambda: _only_coordinator(here))
            assert (
                'trainop_di_server_requests_recovered_total{state="open"} 1.0'
                in (await other.call("GET", "/metrics")).body
            )


async def test_a_killed_server_leaves_nothing_after_its_restart():
    async with world() as here:
        await here.job()
        async with here.di_server() as server:
            await stopped_in_the_middle(here, server, request(5), 2)
        async with here.di_server(seed=2):
            await here.until(lambda: _only_coordinator(here))


async def test_the_repetition_after_a_kill_gets_its_pods_once():
    async with world() as here, here.di_server(times=NEVER) as server:
        await here.job()
        async with here.di_server(seed=2, times=NEVER) as other:
            await stopped_in_the_middle(here, server, request(5), 2)
            answer = await other.post(request(5))
            assert answer.status == 200
            assert sorted(url.partition(".")[0] for url in answer.data["collectors"]) == await here.names("collector")
            await here.until_released()


async def killed_before_the_answer(here: World, server: Running, body: Any, method: str = "POST") -> None:
    """Kills the server when the outcome is recorded: the answer is not sent, and nothing is deleted."""
    decided = asyncio.Event()

    async def wait(sent: Request) -> None:
        if sent.method == "PUT" and b"decided" in sent.body:
            decided.set()
            await asyncio.Event().wait()

    server.transport.after = wait
    posting = asyncio.create_task(server.call(method, body=body))
    await decided.wait()
    await server.kill()
    posting.cancel()
    await asyncio.wait([posting])


async def test_the_repetition_of_a_decided_request_gets_the_same_answer():
    async with world() as here, here.di_server(times=NEVER) as server:
        await here.job()
        async with here.di_server(seed=2, times=NEVER) as other:
            await killed_before_the_answer(here, server, request(3))
            before = await here.names()
            assert len(before) == 4
            answer = await other.post(request(3))
            assert answer.status == 200
            assert await here.names() == before
            assert sorted(url.partition(".")[0] for url in answer.data["collectors"]) == before[:3]
            again = await other.post(request(3))
            assert again.data != answer.data
            assert len(await here.names()) == 7


async def test_a_pod_that_has_the_name_of_a_deleted_one_outlives_the_end_of_a_dead_servers_request():
    """The record names pods by their UIDs: a pod that somebody has made anew in the meantime is another."""
    times = FAST._replace(lease=1.0)
    async with world() as here:
        await here.job()
        async with here.di_server(times=times) as server:
            await server.post(request(2))
            await here.until_released()
            await killed_before_the_answer(here, server, request(2), "DELETE")
        victim, other = await here.pods("collector")
        await here.client.delete(PODS, victim["metadata"]["name"], "default", grace_seconds=0)
        kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
        metadata = {name: victim["metadata"][name] for name in kept if name in victim["metadata"]}
        again = await here.client.create(PODS, {**victim, "metadata": metadata})
        async with here.di_server(seed=2, times=times):
            await here.until_released()
        assert [pod["metadata"]["uid"] for pod in await here.pods("collector")] == [again["metadata"]["uid"]]
        assert again["metadata"]["uid"] != victim["metadata"]["uid"] != other["metadata"]["uid"]


async def test_another_request_after_a_decided_one_is_carried_out():
    async with world() as here, here.di_server(times=NEVER) as server:
        await here.job()
        async with here.di_server(seed=2, times=NEVER) as other:
            await killed_before_the_answer(here, server, request(3))
            assert (await other.post(request(1))).status == 200
            assert len(await here.names("collector")) == 4


async def leaving(
    server: Running, here: World, body: Any, method: str = "POST", path: str = "/v1alpha1/replicas"
) -> None:
    """A client that closes its connection while its request is carried out."""
    reached, left = asyncio.Event(), asyncio.Event()

    async def wait(sent: Request) -> None:
        if sent.method in {"POST", "DELETE"} and sent.path.startswith(PODS.path("default")):
            reached.set()
            await left.wait()

    server.transport.before = wait
    _, writer = await asyncio.open_connection("127.0.0.1", server.server.http.port)
    raw = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await reached.wait()
    listener = server.server.http._listener
    assert listener is not None
    connections = len(listener.open)
    writer.transport.abort()
    await here.until(lambda: len(listener.open) < connections)  # the requests to the API server still wait
    left.set()
    server.transport.before = lambda _sent: None
    await here.until(lambda: _unsent(here))


async def _unsent(here: World) -> bool:
    found = await here.leases()
    return bool(found) and '"unsent"' in json.dumps(found[0]).replace("\\", "")


async def test_a_client_that_left_gets_the_same_answer_from_any_server():
    async with world() as here, here.di_server() as server, here.di_server(seed=2) as other:
        await here.job()
        await leaving(server, here, request(3))
        before = await here.names()
        assert len(before) == 4
        answer = await other.post(request(3))
        assert sorted(url.partition(".")[0] for url in answer.data["collectors"]) == before[:3]
        assert await here.names() == before
        await here.until_released()


async def test_an_answer_is_kept_over_other_requests():
    async with world() as here, here.di_server(times=NEVER) as server:
        await here.job()
        await leaving(server, here, request(3))
        before = await here.names("collector")
        assert (await server.post(request(1))).status == 200
        await leaving(server, here, request(2))
        answer = await server.post(request(3))
        assert sorted(url.partition(".")[0] for url in answer.data["collectors"]) == before
        assert len((await server.post(request(2))).data["collectors"]) == 2
        assert len(await here.names("collector")) == 6
        assert await here.leases() == []


async def test_the_repetition_of_a_replacement_gets_the_same_answer():
    async with world() as here, here.di_server(times=NEVER) as server:
        await here.job()
        await server.post(request(2))
        first = (await here.names("collector"))[0]
        body = {"namespace": "default", "coordinator": "a-coordinator", "collectors": [first]}
        await leaving(server, here, body, path="/v1alpha1/replicas/failed")
        before = await here.names("collector")
        answer = await server.failed(body)
        assert answer.status == 200
        assert answer.data["collectors"][0].partition(".")[0] in before
        assert await here.names("collector") == before
        assert (await server.failed(body)).status == 404
        assert await here.leases() == []


async def test_the_repetition_of_a_delete_deletes_nothing_more():
    async with world() as here, here.di_server() as server:
        await here.job()
        await server.post(request(5))
        await leaving(server, here, request(2), "DELETE")
        assert len(await here.names("collector")) == 3
        assert len((await server.delete(request(2))).data["collectors"]) == 2
        assert len(await here.names("collector")) == 3
        await server.delete(request(2))
        assert len(await here.names("collector")) == 1


async def test_an_answer_that_nobody_asks_for_is_forgotten():
    async with world() as here, here.di_server(times=FAST._replace(remembered=0.0)) as server:
        await here.job()
        await leaving(server, here, request(1))
        await here.until_released()
        assert len(await here.names("collector")) == 1


@pytest.mark.parametrize("servers", [1, 2])
async def test_concurrent_requests_for_one_job_act_one_after_the_other(servers: int):
    async with world() as here, here.di_server() as one, here.di_server(seed=2) as two:
        await here.job()
        pair = (one, two if servers == 2 else one)
        answers = await asyncio.gather(*(each.post(request(4)) for each in pair))
        assert len({url for answer in answers for url in answer.data["collectors"]}) == 8
        answers = await asyncio.gather(*(each.delete(request(3)) for each in pair))
        deleted = [url for answer in answers for url in answer.data["collectors"]]
        assert len(set(deleted)) == 6
        posted, removed = await asyncio.gather(pair[0].post(request(2)), pair[1].delete(request(4)))
        assert posted.status == removed.status == 200
        gone = set(removed.data["collectors"])
        assert len(await here.names("collector")) == 2 + 2 - len(gone)
        await here.until_released()


async def test_requests_wait_in_their_server_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch):
    """Not by asking for the lease again and again, which would also let them in by chance."""
    hold, arrived = Journal.hold, list[JobKey]()

    def noted(self: Journal, job: JobKey, digest: str) -> Any:
        arrived.append(job)
        return hold(self, job, digest)

    monkeypatch.setattr(Journal, "hold", noted)
    async with world() as here, here.di_server() as server:
        await here.job()
        reached, released = asyncio.Event(), asyncio.Event()
        leases: list[str] = []
        order: list[str] = []

        async def wait(sent: Request) -> None:
            if sent.path.startswith(LEASES.path("default")):
                leases.append(sent.method)
            if is_create(sent):
                order.append(json.loads(sent.body)["metadata"]["annotations"][REQUEST])
                reached.set()
                await released.wait()

        server.transport.before = wait
        posting = [asyncio.create_task(server.post(request(1)))]
        await reached.wait()
        for count in range(2, 6):
            posting.append(asyncio.create_task(server.post(request(count))))
            await here.until(lambda: len(arrived) == len(posting))
        renewals = leases.count("PUT")
        await here.until(lambda: leases.count("PUT") >= renewals + 2)
        assert leases.count("POST") == 1
        released.set()
        assert [(await each).status for each in posting] == [200] * 5
        assert [len(list(group)) for _, group in itertools.groupby(order)] == [1, 2, 3, 4, 5]


async def test_requests_for_different_jobs_do_not_wait_for_each_other():
    async with world() as here, here.di_server() as server:
        await here.job("a")
        await here.job("b")
        released = asyncio.Event()

        async def wait(sent: Request) -> None:
            if is_create(sent) and b'"a-collector' in sent.body:
                await released.wait()

        server.transport.before = wait
        waiting = asyncio.create_task(server.post(request(1)))
        assert (await server.post(request(1, coordinator="b-coordinator"))).status == 200
        released.set()
        assert (await waiting).status == 200


@pytest.mark.case("di-orchestrator-40", "a")
async def test_a_coordinator_that_is_not_in_the_cache_yet():
    async with world() as here, here.di_server() as server:
        caches = server.server.caches
        for store in (caches.pods.store, caches.jobs.store):
            store.put = lambda *_args, **_more: []  # type: ignore[method-assign]  # no event arrives
        await here.job()
        answer = await server.post(request(2))
        assert answer.status == 200
        assert len(await here.names("collector")) == 2


async def test_a_deleted_coordinator():
    async with world() as here, here.di_server() as server:
        await here.job()
        await here.client.delete(PODS, "a-coordinator", "default", grace_seconds=0)
        await here.until(lambda: not len(server.server.caches.pods.store))
        answer = await server.post(request(1))
        assert (answer.status, answer.message) == (404, "pod: default/a-coordinator not exists in cache")


async def test_a_stopping_server_finishes_its_requests():
    async with world() as here, here.di_server() as server:
        await here.job()
        reached, released = asyncio.Event(), asyncio.Event()

        async def wait(sent: Request) -> None:
            if is_create(sent):
                reached.set()
                await released.wait()

        server.transport.before = wait
        posting = asyncio.create_task(server.post(request(2)))
        await reached.wait()
        server.server.manager.stop()
        await here.until(lambda: server.server.inflight.stopping)
        with pytest.raises(aiohttp.ClientError):
            await server.post(request(1))
        released.set()
        assert len((await posting).data["collectors"]) == 2
        assert await asyncio.wait_for(server.task, PATIENCE) == 0
        assert len(await here.names("collector")) == 2


async def test_a_server_that_was_suspended_leaves_the_lease_to_its_successor():
    async with world() as here, here.di_server() as server, here.di_server(seed=2) as other:
        await here.job()
        reached, released = asyncio.Event(), asyncio.Event()

        async def wait(sent: Request) -> None:
            if is_create(sent):
                reached.set()
            if reached.is_set():  # as if the process did not run: no renewal either
                await released.wait()

        server.transport.before = wait
        posting = asyncio.create_task(server.post(request(2)))
        await reached.wait()
        holding, let_go = asyncio.Event(), asyncio.Event()

        async def hold(sent: Request) -> None:
            if is_create(sent):
                holding.set()
                await let_go.wait()

        other.transport.before = hold
        second = asyncio.create_task(other.post(request(3)))
        await holding.wait()
        released.set()
        assert (await posting).status == 500
        assert len(await here.leases()) == 1
        let_go.set()
        answer = await second
        assert answer.status == 200
        assert sorted(url.partition(".")[0] for url in answer.data["collectors"]) == await here.names("collector")


async def test_a_request_that_cannot_be_ended_does_not_keep_others_from_it():
    async with world() as here:
        await here.job("a")
        await here.job("b")
        for name in ("a", "b"):
            async with here.di_server(times=NEVER) as server:
                await stopped_in_the_middle(here, server, request(2, coordinator=f"{name}-coordinator"), 1)
        assert len(await here.leases()) == 2
        async with here.di_server(seed=2) as other:

            def refuse(sent: Request) -> Response | None:
                if sent.method == "DELETE" and "/a-collector" in sent.path:
                    return Response(403, {}, b"{}")
                return None

            other.transport.answer = refuse
            await here.until(lambda: _count_is(here, 3))
            assert [name for name in await here.names("collector") if name.startswith("b-")] == []


async def test_a_pod_without_labels_is_replaced_or_refused():
    async with world() as here, here.di_server() as server:
        job = await here.job()
        owner = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "name": "a"}
        metadata = {"name": "bare", "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}]}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        await here.client.create(PODS, body, namespace="default")
        answer = await server.failed({**request(), "collectors": ["bare"]})
        assert answer.body["success"] in {True, False}


async def test_texts_that_cannot_be_encoded_are_replaced():
    async with world() as here, here.di_server() as server:
        answer = await server.failed(b'{"namespace": "\\ud800", "coordinator": "\\udfff"}')
        assert answer.data["namespace"] == "?"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ("Content-Encoding: deflate\r\nContent-Length: 6", b"garbag", 400),
        ("Content-Length: 10000000", b'{"namespace": "' + b"x" * 200_000, 413),
    ],
)
async def test_bodies_that_break_off_get_one_answer(headers: str, body: bytes, status: int):
    async with world() as here, here.di_server() as server:
        head = f"POST /v1alpha1/replicas HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode()
        answer = await exchange(server, head + body, b"\r\n\r\n")
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer


async def exchange(server: Running, sent: bytes, until: bytes) -> bytes:
    """What the server answers to these bytes, up to a separator."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.http.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(PATIENCE):
            return await reader.readuntil(until)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_a_body_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(application, "BODY_TIMEOUT", 0.1)
    async with world() as here, here.di_server() as server:
        sent = b"POST /v1alpha1/replicas HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        answer = await exchange(server, sent, b"}")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the request body was not received in time" in answer


async def test_a_client_that_leaves_while_it_waits_gets_nothing():
    async with world() as here, here.di_server() as server:
        await here.job()
        reached, released = asyncio.Event(), asyncio.Event()

        async def wait(sent: Request) -> None:
            if is_create(sent):
                reached.set()
                await released.wait()

        server.transport.before = wait
        first = asyncio.create_task(server.post(request(1)))
        await reached.wait()
        _, writer = await asyncio.open_connection("127.0.0.1", server.server.http.port)
        raw = json.dumps(request(5)).encode()
        writer.write(b"POST /v1alpha1/replicas HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
        await here.until(lambda: server.server.inflight.count == 2)
        writer.transport.abort()
        await here.until(lambda: _connections(server) == 1)
        released.set()
        assert (await first).status == 200
        await here.until(lambda: server.server.inflight.count == 0)
        assert len(await here.names("collector")) == 1


def _connections(server: Running) -> int:
    listener = server.server.http._listener
    return len(listener.open) if listener else 0
