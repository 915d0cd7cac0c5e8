"""di-server on the real API server: the acceptance cases and some faults of `tests/diserver`, and the services."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports
from tests.diserver import world as worlds
from tests.diserver.test_faults import (
    test_a_client_that_left_gets_the_same_answer_from_any_server,
    test_a_coordinator_that_is_not_in_the_cache_yet,
    test_a_killed_server_leaves_nothing_half_made,
    test_a_refused_pod_undoes_the_whole_request,
    test_concurrent_requests_for_one_job_act_one_after_the_other,
    test_the_repetition_after_a_kill_gets_its_pods_once,
)
from tests.diserver.test_replicas import *  # noqa: F403  # each of them
from tests.diserver.test_replicas import DROPPED, until_told
from tests.diserver.world import BACKEND, World, request
from tests.patience import PATIENCE
from tests.server.process import Operator, fetch
from trainop.kinds.dijob.names import AGGREGATOR_CONFIGS, DIJOBS, LEASES_OF_REQUESTS, OUR_PODS
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.objects.metadata import LEASES, NODES, PODS, SERVICES

__all__ = [
    "test_a_client_that_left_gets_the_same_answer_from_any_server",
    "test_a_coordinator_that_is_not_in_the_cache_yet",
    "test_a_killed_server_leaves_nothing_half_made",
    "test_a_refused_pod_undoes_the_whole_request",
    "test_concurrent_requests_for_one_job_act_one_after_the_other",
    "test_the_repetition_after_a_kill_gets_its_pods_once",
]
"""The faults that depend on what a real API server does."""

NAMESPACES = ("default", "other", "di-system")


@pytest.fixture(autouse=True)
def on_the_real_server(alone: None, control_plane: ControlPlane) -> Iterator[None]:
    """The worlds of this module are those of the control plane, emptied after each test."""

    @asynccontextmanager
    async def real() -> AsyncIterator[World]:
        config = load_config(str(control_plane.kubeconfig))
        here = World(lambda: HttpTransport(config))
        try:
            yield here
        finally:
            await empty(here)
            await here.transport.close()

    token = BACKEND.set(real)
    yield
    BACKEND.reset(token)


async def empty(here: World) -> None:
    for namespace in NAMESPACES:
        for resource in (DIJOBS, AGGREGATOR_CONFIGS):
            await here.client.delete_collection(resource, namespace)
        for resource in (PODS, SERVICES):
            for each in (await here.client.list(resource, namespace, label_selector=OUR_PODS)).items:
                await here.client.delete(resource, each["metadata"]["name"], namespace, grace_seconds=0)
        await here.client.delete_collection(LEASES, namespace, label_selector=LEASES_OF_REQUESTS)
    await here.client.delete_collection(NODES)


@pytest.mark.case("di-orchestrator-20", "ab")
@pytest.mark.case("di-orchestrator-31", "a")
async def test_the_operator_makes_the_services(make_operator: Callable[..., Operator], control_plane: ControlPlane):
    operator = make_operator(control_plane.kubeconfig, "--enable-scheme=DIJob")
    await asyncio.to_thread(operator.start)
    async with worlds.world() as here, here.di_server() as server:

        async def services() -> set[str]:
            found = (await here.client.list(SERVICES, "default", label_selector=OUR_PODS)).items
            return {each["metadata"]["name"] for each in found}

        async def all_have_one() -> bool:
            return await services() == set(await here.names())

        await here.job(coordinator_pod=False)
        await here.until(lambda: _exists(here, "a-coordinator"))
        await here.set_status("a-coordinator", podIP=worlds.COORDINATOR_ADDRESS)
        answer = await server.post(request(2, 3))
        assert answer.status == 200
        assert len(await here.names()) == 6
        await here.until(all_have_one)
        listed = await server.get("?namespace=default&coordinator=a-coordinator")
        assert sorted(listed.data["learners"]) == sorted(answer.data["learners"])
        assert (await server.delete(request(1, 1))).status == 200
        await here.until(all_have_one)
        assert len(await services()) == 4


async def _exists(here: World, name: str) -> bool:
    return name in await here.names()


async def test_the_program_serves_and_stops(control_plane: ControlPlane, tmp_path: Path):
    (port,) = free_ports(1)
    flags = [f"--kubeconfig={control_plane.kubeconfig}", f"--server-bind-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log:
        command = (sys.executable, "-m", "trainop", "di-server", *flags, "--leader-elect", "--zap-devel=false")
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with worlds.world() as here:
            url = f"http://127.0.0.1:{port}"
            await here.until(lambda: asyncio.to_thread(lambda: fetch(f"{url}/readyz")[0] == 200))
            await here.job()
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{url}/v1alpha1/replicas", json=request(2)) as response:
                    assert (response.status, len((await response.json())["data"]["collectors"])) == (200, 2)
                await here.until_released("di-system")
                process.terminate()
                assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_refused_pod_may_lack_a_misspelt_field():
    """Its warnings come with the refusal, which the embedded API server answers without them."""
    async with worlds.world() as here, here.di_server() as server:
        template = {"spec": {"containers": [{"name": "di-container", "images": "none", "imagePullPolicy": "never"}]}}
        job = await here.job(collector={"template": template})
        assert (await server.post(request(1))).status != 200
        field = 'spec.collector.template.spec.containers[0].images: unknown field, did you mean "image"?'
        await until_told(here, job, {f"{DROPPED}{field}": ("Warning", 1)})
