"""Restarts of a node, and outages of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.local.node.conftest import serve
from tests.local.node.world import World, terminated
from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.transport import Request, Response, Stream, Transport
from trainop.runtime.objects.metadata import NODES, PODS


@asynccontextmanager
async def up(world: World) -> AsyncIterator[World]:
    async for one in serve(world):
        yield one


async def test_pods_of_an_earlier_run_have_failed(tmp_path: Path) -> None:
    api = ApiServer()
    async with up(World(tmp_path, "addresses", api)) as world:
        finished = await world.start("echo", "kept")
        await world.finish(finished)
        ran = await world.start("sleep", "1000")
        await world.running(ran)
        leaving = await world.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done")
        await world.log_with(leaving, "up\n")
        await world.delete(leaving)
    waiting = "pod-waiting"
    async with up(World(tmp_path, "addresses", api)) as world:
        pod = await world.finish(ran)
        assert pod["status"]["reason"] == "NodeLost"
        assert "the node stopped while the pod ran" in pod["status"]["message"]
        ended = terminated(pod)
        assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
        assert (await world.events(ran, "NodeLost"))[0]["type"] == "Warning"
        await world.gone(leaving)
        assert await world.log(finished) == "kept\n"
        assert (await world.finish(finished))["status"]["phase"] == "Succeeded"
        await world.start("true", name=waiting)
        assert (await world.finish(waiting))["status"]["phase"] == "Succeeded"
        names = {pod["metadata"]["name"] for pod in (await world.client.list(PODS, "team")).items}
        assert names == {finished, ran, waiting}
        assert len((await world.client.list(NODES)).items) == 1


class Flaky:
    """A transport that refuses writes of pod statuses while `down` is set."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.down = False
        self.enough = asyncio.Event()
        """Four writes were refused."""
        self._refused = 0

    async def send(self, request: Request) -> Response:
        if self.down and request.path.endswith("/status"):
            self._refused += 1
            if self._refused == 4:
                self.enough.set()
            return Response(500, {}, b'{"kind":"Status","status":"Failure","code":500,"message":"out of order"}')
        return await self._inner.send(request)

    async def open(self, request: Request) -> Stream:
        return await self._inner.open(request)

    async def close(self) -> None:
        await self._inner.close()


class FlakyServer(ApiServer):
    """The embedded API server behind such a transport."""

    def __init__(self) -> None:
        super().__init__()
        self.flaky = Flaky(super().transport())

    def transport(self) -> Transport:
        return self.flaky


async def test_a_status_that_cannot_be_written_is_written_later_without_haste(tmp_path: Path) -> None:
    api = FlakyServer()
    with capture_logs() as logs:
        async with up(World(tmp_path, "addresses", api)) as world:
            api.flaky.down = True
            name = await world.start("sh", "-c", "exit 4")
            await asyncio.wait_for(api.flaky.enough.wait(), PATIENCE)
            api.flaky.down = False
            pod = await world.finish(name)
            assert terminated(pod)["exitCode"] == 4
    waits = [line["retry_in"] for line in logs if line["event"] == "write failed"]
    assert waits[:3] == sorted(waits[:3])
    assert waits[2] > waits[0]


async def test_a_pod_that_vanishes_takes_its_processes_along(tmp_path: Path) -> None:
    async with up(World(tmp_path, "addresses")) as world:
        name = await world.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done")
        await world.log_with(name, "up\n")
        follow = asyncio.ensure_future(world.log(name, follow=True))
        await asyncio.sleep(0)
        await world.delete(name, grace=0)
        await world.gone(name)
        assert await asyncio.wait_for(follow, PATIENCE) == "up\n"


async def test_another_pod_of_the_same_name_is_another_pod(tmp_path: Path) -> None:
    async with up(World(tmp_path, "addresses")) as world:
        for text in ("one", "two"):
            await world.start("sh", "-c", f"echo {text}; sleep 1000", name="again")
            await world.until("again", lambda pod: pod.get("status", {}).get("phase") == "Running")
            assert await world.log_with("again", f"{text}\n") == f"{text}\n"
            await world.delete("again", grace=0)
            await world.gone("again")


async def test_a_mode_that_cannot_be_had_is_said_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(OSError, match="no namespaces on this machine: only Linux has network namespaces"):
        await World(tmp_path, "namespaces").run()
