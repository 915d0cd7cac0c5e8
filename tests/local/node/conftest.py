"""One node per network mode, shared by all tests that run pods, because starting one takes a third of a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.local.node.world import World
from tests.needs import lack
from trainop.local.node.sandbox.sandbox import SandboxError


async def serve(world: World) -> AsyncIterator[World]:
    """Run a node for the duration of a fixture; skip if the machine does not support its mode."""
    serving = asyncio.create_task(world.run())
    ready = asyncio.create_task(world.node.wait_ready())
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        ready.cancel()
        try:
            await serving
        except SandboxError as error:
            lack(str(error))
    yield world
    serving.cancel()
    await asyncio.wait({serving})


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def isolated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A node whose pods have separate network namespaces."""
    async for world in serve(World(tmp_path_factory.mktemp("isolated"), "namespaces")):
        yield world


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sharing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A node whose pods share the host's network."""
    async for world in serve(World(tmp_path_factory.mktemp("sharing"), "addresses")):
        yield world


@pytest.fixture(scope="session", params=["isolated", "sharing"])
def world(request: pytest.FixtureRequest) -> World:
    """A node in each of the two modes."""
    found: World = request.getfixturevalue(request.param)
    return found
