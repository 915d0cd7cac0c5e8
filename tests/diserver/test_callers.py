"""Who may change the replicas of a job."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.diserver.world import SETTINGS, TEMPLATE, World, request, world
from trainop.diserver.callers import is_pod, normal, read_caller
from trainop.diserver.seen import by_caller, by_job, decode_job, decode_pod
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.metrics.authorize import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from trainop.runtime.objects.metadata import Json

STRANGER = "127.0.0.7"
REFUSED = f"caller {STRANGER} is not the coordinator or an aggregator of DIJob default/a"


async def refused(here: World, answer: Any, message: str = REFUSED) -> None:
    assert (answer.status, answer.message, answer.body["success"]) == (403, message, False)
    assert await here.names() == ["a-coordinator"]


async def test_a_stranger_is_refused_with_any_header():
    async with world() as here, here.di_server() as server:
        await here.job()
        headers = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Real-IP": "127.0.0.1"}
        await refused(here, await server.post(request(1), address=STRANGER, headers=headers))
        await refused(here, await server.delete(request(1), address=STRANGER))
        assert (await server.get("?namespace=default&coordinator=a-coordinator", address=STRANGER)).status == 200
        assert "trainop_di_server_callers_refused_total 2.0" in (await server.call("GET", "/metrics")).body


async def test_replacement_is_refused_too():
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        before = await here.names()
        answer = await server.failed({**request(), "collectors": [url]}, address=STRANGER)
        assert (answer.status, answer.message) == (403, REFUSED)
        assert await here.names() == before


async def test_a_coordinator_of_the_same_name_in_another_namespace_is_refused():
    async with world() as here, here.di_server() as server:
        await here.job()
        await here.job("a", "other", address=STRANGER)
        await here.until(lambda: len(server.server.caches.pods.store) == 2)
        await refused(here, await server.post(request(1), address=STRANGER))


async def test_a_coordinator_of_another_job_is_refused():
    async with world() as here, here.di_server() as server:
        await here.job()
        await here.job("b", address=STRANGER)
        answer = await server.post(request(1), address=STRANGER)
        assert (answer.status, answer.message) == (403, REFUSED)
        assert await here.names() == ["a-coordinator", "b-coordinator"]


async def test_a_collector_of_the_job_is_refused():
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        await here.set_status(url.partition(".")[0], podIP=STRANGER)
        answer = await server.post(request(1), address=STRANGER)
        assert (answer.status, answer.message) == (403, REFUSED)


async def test_the_address_of_a_finished_coordinator_is_not_its_own():
    async with world() as here, here.di_server() as server:
        await here.job()
        await here.set_status("a-coordinator", phase="Failed", podIP=STRANGER)
        await here.until(lambda: any(pod.phase == "Failed" for pod in server.server.caches.pods.store.list()))
        await refused(here, await server.post(request(1), address=STRANGER))


async def test_a_coordinator_on_the_network_of_its_node_must_send_a_token():
    async with world() as here, here.di_server() as server:
        spec = {**TEMPLATE["spec"], "hostNetwork": True}
        await here.job(coordinator={"template": {"spec": spec}})
        await here.until(lambda: len(server.server.caches.pods.store) == 1)
        message = "pod a-coordinator uses the network of its node and must send a bearer token"
        await refused(here, await server.post(request(1)), message)


async def test_a_new_address_is_read_before_a_caller_is_refused():
    async with world() as here, here.di_server() as server:
        await here.job(address="")
        await here.until(lambda: len(server.server.caches.pods.store) == 1)
        store = server.server.caches.pods.store
        store.put = lambda *_args, **_more: []  # type: ignore[method-assign]  # no event arrives any more
        await here.set_status("a-coordinator", podIP=STRANGER)
        assert (await server.post(request(1), address=STRANGER)).status == 200


@pytest.mark.parametrize(("reported", "status"), [(STRANGER, 200), ("127.0.0.8", 403)])
async def test_a_request_waits_for_the_address_of_a_coordinator_that_has_just_started(reported: str, status: int):
    async with world() as here, here.di_server() as server:
        await here.job(address="")
        await here.until(lambda: len(server.server.caches.pods.store) == 1)
        asked = []
        read = server.server.caches.pod

        async def pod(*args: Any, **more: Any) -> Any:
            found = await read(*args, **more)
            asked.append(found)
            return found

        server.server.caches.pod = pod  # type: ignore[method-assign]  # shows that the check has read the pod
        answer = asyncio.create_task(server.post(request(1), address=STRANGER))
        await here.until(lambda: bool(asked))
        await here.set_status("a-coordinator", podIP=reported)
        assert (await answer).status == status


async def test_without_the_check_everybody_may():
    async with world() as here, here.di_server(replace(SETTINGS, caller_check=False)) as server:
        await here.job()
        assert (await server.post(request(1), address=STRANGER)).status == 200


class Reviews:
    """Answers TokenReviews and SubjectAccessReviews: the tokens are the names of users."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed
        self.asked: list[Json] = []

    def answer(self, request: Request) -> Response | None:
        if request.path == TOKEN_REVIEWS.path():
            token = msgspec.json.decode(request.body)["spec"]["token"]
            status: Json = {"authenticated": token != "wrong", "user": {"username": token}}
        elif request.path == SUBJECT_ACCESS_REVIEWS.path():
            spec = msgspec.json.decode(request.body)["spec"]
            self.asked.append(spec["resourceAttributes"])
            status = {"allowed": spec["resourceAttributes"]["verb"] in self.allowed}
        else:
            return None
        return Response(201, {}, msgspec.json.encode({"status": status}))


@pytest.mark.parametrize(
    ("token", "allowed", "status"),
    [("someone", {"create"}, 200), ("someone", {"delete"}, 403), ("wrong", {"create"}, 403), ("someone", set(), 403)],
)
async def test_a_user_with_a_token_needs_the_permission(token: str, allowed: set[str], status: int):
    async with world() as here, here.di_server() as server:
        await here.job()
        reviews = Reviews(allowed)
        server.transport.answer = reviews.answer
        answer = await server.post(request(1), address=STRANGER, headers={"Authorization": f"Bearer {token}"})
        assert answer.status == status
        if status == 403:
            await refused(here, answer, "the token has no permission to change the pods of DIJob default/a")
        asked = {"namespace": "default", "verb": "create", "version": "v1", "resource": "pods"}
        assert reviews.asked == ([] if token == "wrong" else [asked])


async def test_replacement_needs_both_permissions():
    async with world() as here, here.di_server() as server:
        await here.job()
        (url,) = (await server.post(request(1))).data["collectors"]
        body, headers = {**request(), "collectors": [url]}, {"Authorization": "bearer someone"}
        server.transport.answer = Reviews({"create"}).answer
        assert (await server.failed(body, address=STRANGER, headers=headers)).status == 403


@pytest.mark.parametrize(
    ("given", "address"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1"), ("FD00::1", "fd00::1")],
)
def test_addresses_are_compared_in_one_form(given: str, address: str):
    assert normal(given) == address


def test_only_bearer_tokens_count():
    assert read_caller("10.0.0.1", "Basic abc").token == ""
    assert read_caller("10.0.0.1", "bearer  abc ").token == "abc"


def test_a_pod_of_another_namespace_is_not_the_jobs_whatever_owner_it_names():
    """Garbage collection deletes such a pod, but not at once."""
    owner = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "name": "a", "uid": "u"}
    metadata = {"name": "a-coordinator", "labels": {"replica-type": "coordinator"}, "ownerReferences": [owner]}
    status = {"phase": "Running", "podIP": STRANGER}
    job = decode_job(json.dumps({"metadata": {"name": "a", "namespace": "default", "uid": "u"}}).encode())
    for namespace, found in (("default", True), ("other", False)):
        raw = {"metadata": {**metadata, "namespace": namespace}, "status": status}
        pod = decode_pod(json.dumps(raw).encode())
        assert is_pod([pod], STRANGER, job) is found
        assert by_job(pod) == (f"{namespace}/u",)
        assert by_caller(pod) == (f"{namespace}/u",)
