"""A small job beside a large one: the requests of a large pass wait for small passes, and never for long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, make
from tests.controllers.shell import JOBS, Shell, pytorch_job
from tests.controllers.test_shell_operator import QUIET, Stage, Watched, running, stage
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.apply import MAX_GIVE_WAY, SMALL_PASS, RightOfWay
from trainop.engine.actions import Action, Ensure, Patch, Release, Remove
from trainop.engine.schema.crd import crd
from trainop.kinds.pytorch import PYTORCH
from trainop.programs.mpi_operator import DEFAULTS as MPI_OPERATOR
from trainop.programs.schemes import FRAMEWORKS
from trainop.programs.settings import Settings
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.objects.metadata import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PODS,
    SERVICES,
    Json,
    Resource,
    Unstructured,
)


def actions(count: int) -> list[Action]:
    return [Remove(PODS, f"p{number}", f"u{number}") for number in range(count)]


def now() -> float:
    return asyncio.get_running_loop().time()


async def waited(way: RightOfWay) -> float:
    """Seconds that one request of a large pass has to wait."""
    began = now()
    await way.give()
    return now() - began


@virtual_time
async def test_nobody_waits_without_a_small_pass() -> None:
    way = RightOfWay()
    with way.take(actions(SMALL_PASS + 1)), way.take([]):
        assert await waited(way) == 0
    with way.take(actions(1)):
        pass
    assert await waited(way) == 0


@pytest.mark.parametrize("count", [1, SMALL_PASS])
@virtual_time
async def test_a_small_pass_is_waited_for_until_it_ends(count: int) -> None:
    way = RightOfWay()

    async def small(seconds: float) -> None:
        with way.take(actions(count)):
            await asyncio.sleep(seconds)

    both = [asyncio.create_task(small(seconds)) for seconds in (0.01, 0.05)]
    await asyncio.sleep(0)
    assert await waited(way) == pytest.approx(0.05)
    await asyncio.gather(*both)


@pytest.mark.parametrize("end", [ValueError, asyncio.CancelledError])
@virtual_time
async def test_a_small_pass_that_fails_is_over(end: type[BaseException]) -> None:
    way = RightOfWay()
    with pytest.raises(end), way.take(actions(1)):
        raise end
    assert await waited(way) == 0


@virtual_time
async def test_a_pass_that_hangs_costs_the_others_one_wait() -> None:
    way = RightOfWay()
    with way.take(actions(1)):
        await asyncio.sleep(MAX_GIVE_WAY / 4)
        assert [await waited(way) for _ in range(3)] == pytest.approx([0.75 * MAX_GIVE_WAY, 0, 0])
        with way.take(actions(1)):
            assert await waited(way) == pytest.approx(MAX_GIVE_WAY), "another one has just begun"
        assert await waited(way) == 0


@virtual_time
async def test_no_wait_is_longer_than_its_limit_however_many_small_passes_follow_one_another() -> None:
    way = RightOfWay()

    async def small(delay: float) -> None:
        await asyncio.sleep(delay)
        with way.take(actions(8)):
            await asyncio.sleep(0.05)

    crowd = [asyncio.create_task(small(0.02 * number)) for number in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(5):
        assert await waited(way) == pytest.approx(MAX_GIVE_WAY)
    await asyncio.gather(*crowd)
    assert await waited(way) == 0


@virtual_time
async def test_a_pass_that_waits_can_be_cancelled() -> None:
    way = RightOfWay()
    with way.take(actions(1)):
        waiting = asyncio.create_task(way.give())
        await asyncio.sleep(0)
        waiting.cancel()
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)


def creations(count: int) -> list[Action]:
    def encode() -> bytes:
        return b'{"metadata":{"name":"x"}}'

    return [Ensure(resource, f"x{number}", encode) for number in range(count) for resource in (PODS, SERVICES)]


def patches(count: int) -> list[Action]:
    return [Patch(CONFIG_MAPS, f"x{number}", "", {}) for number in range(count)]


def releases(count: int) -> list[Action]:
    return [Release(PODS, f"x{number}", f"u{number}") for number in range(count)]


CLASSES: Sequence[Callable[[int], list[Action]]] = (actions, creations, patches, releases)


def shell_with_job() -> tuple[Shell, Any, Unstructured]:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    shell.show()
    return shell, shell.reconciler._applier, Unstructured(shell.job())


@pytest.mark.parametrize("of_class", CLASSES, ids=lambda each: each.__name__)
@virtual_time
async def test_a_large_pass_starts_no_request_while_a_small_one_runs(of_class: Callable[[int], list[Action]]) -> None:
    shell, applier, job = shell_with_job()
    with applier.right_of_way.take(actions(1)):
        large = asyncio.create_task(applier.carry_out(job, of_class(SMALL_PASS + 1)))
        await asyncio.sleep(0.9 * MAX_GIVE_WAY)
        assert shell.client.calls == []
    await large
    assert len(shell.client.calls) >= 1


@pytest.mark.parametrize("of_class", CLASSES, ids=lambda each: each.__name__)
@virtual_time
async def test_a_small_pass_waits_for_no_other(of_class: Callable[[int], list[Action]]) -> None:
    shell, applier, job = shell_with_job()
    began = now()
    with applier.right_of_way.take(actions(1)):
        await applier.carry_out(job, of_class(SMALL_PASS // 2))
    assert (now() - began, bool(shell.client.calls)) == (0, True)


@virtual_time
async def test_pods_that_save_together_are_deleted_without_a_wait() -> None:
    shell, applier, job = shell_with_job()
    began = now()
    with applier.right_of_way.take(actions(1)):
        together = [Remove(PODS, f"p{number}", f"u{number}", at_once=True) for number in range(2 * SMALL_PASS)]
        await applier.carry_out(job, together)
    assert (now() - began, len(shell.client.names("delete", PODS))) == (0, 2 * SMALL_PASS)


@virtual_time
async def test_a_large_pass_that_has_met_an_error_starts_nothing_after_its_wait() -> None:
    shell, applier, job = shell_with_job()

    async def fail(*_args: Any, **_how: Any) -> Json:
        calls.append(now())
        await asyncio.sleep(0.01)
        raise TimeoutError

    calls: list[float] = []
    shell.client.delete = fail  # type: ignore[assignment,method-assign]  # no answer
    large = asyncio.create_task(applier.carry_out(job, actions(100)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with applier.right_of_way.take(actions(1)):
        outcome = await large
    assert (len(calls), len(outcome.errors)) == (4, 4)


@pytest.mark.parametrize(("settings", "controllers"), [(QUIET, 9), (MPI_OPERATOR, 2)], ids=["operator", "mpi-operator"])
@virtual_time
async def test_all_controllers_of_a_program_share_one(settings: Settings, controllers: int) -> None:
    manager: Any = Stage().operator(settings)
    ways = [id(controller._reconciler._applier.right_of_way) for controller in manager._controllers]
    assert (len(ways), len(set(ways))) == (controllers, 1)


class Busy(Watched):
    """An API server that carries out one request after another, each of which takes 5 ms."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._turn = asyncio.Lock()

    async def send(self, request: Request) -> Response:
        self.writes.append(f"{request.method} {request.path} {_name_in(request)}")
        async with self._turn:
            await asyncio.sleep(0.005)
        return await self._transport.send(request)

    def created(self, resource: Resource, prefix: str) -> list[int]:
        """When pods or services whose names begin so were sent, as places in the order of all writes."""
        start = f"POST {resource.path('ns')} {prefix}"
        return [place for place, write in enumerate(self.writes) if write.startswith(start)]


def _name_in(request: Request) -> str:
    found = re.search(rb'"name":"([^"]*)"', request.body)
    return found[1].decode() if found else ""


@asynccontextmanager
async def busy_stage(kind: str) -> AsyncIterator[tuple[Stage, Busy]]:
    async with stage(crds=False, run=False) as here:
        for framework in {PYTORCH.kind: PYTORCH, kind: FRAMEWORKS[kind]}.values():
            await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(framework))
        here.transport = transport = Busy(here.server.transport())
        async with running(here.operator()):
            await asyncio.sleep(1)
            yield here, transport


async def submit(here: Stage, kind: str, name: str, roles: dict[str, int | None] | None = None) -> None:
    mode: dict[str, Any] = {"jobMode": "MXTrain"} if kind == "MXJob" else {}
    job = make(kind, roles, name=name, **mode)
    job["metadata"] = {"name": name, "namespace": "ns"}
    await here.client.create(FRAMEWORKS[kind].resource, job, namespace="ns")


async def all_created(transport: Busy, prefix: str, count: int) -> None:
    for _ in range(10_000):
        if len(transport.created(PODS, prefix)) >= count:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{prefix}: {len(transport.created(PODS, prefix))} of {count} pods")


@pytest.mark.parametrize("kind", KINDS)
@virtual_time
async def test_no_request_of_a_large_job_comes_between_those_of_a_small_one(kind: str) -> None:
    """Of every kind, also if the large job is of another."""
    async with busy_stage(kind) as (here, transport):
        await submit(here, PYTORCH.kind, "large", {"Worker": 200})
        await all_created(transport, "large", 50)
        await submit(here, kind, "small")
        await all_created(transport, "small", 3)
        await all_created(transport, "large", 200)
    small = sorted(transport.created(PODS, "small") + transport.created(SERVICES, "small"))
    large = transport.created(PODS, "large") + transport.created(SERVICES, "large")
    assert not [place for place in large if small[0] < place < small[-1]]
    assert any(place > small[-1] for place in large), "the small job came while the large one was created"


@virtual_time
async def test_two_large_jobs_go_on_beside_many_small_ones() -> None:
    async with busy_stage(PYTORCH.kind) as (here, transport):
        for name in ("large-a", "large-b"):
            await submit(here, PYTORCH.kind, name, {"Worker": 100})

        async def crowd() -> None:
            for number in range(10_000):
                await submit(here, PYTORCH.kind, f"small-{number}")
                await asyncio.sleep(0.04)

        crowding = asyncio.create_task(crowd())
        await asyncio.gather(*(all_created(transport, name, 100) for name in ("large-a", "large-b")))
        assert not crowding.done(), "the small jobs ended first"
        crowding.cancel()
        a, b = (transport.created(PODS, name) for name in ("large-a", "large-b"))
        assert a[0] < b[-1]
        assert b[0] < a[-1], "they take turns"
        assert len(transport.created(PODS, "small-")) > 100
