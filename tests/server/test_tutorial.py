"""Helpers of the runtime on a real kube-apiserver: races of `create_or_patch` and `finalizing`, and an operator of the
tutorial. The tests on the embedded API server are in `tests/runtime`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.patience import PATIENCE
from tests.runtime.racing import Racing
from tests.runtime.test_tutorial import load, password_of, user
from tests.server.world import World
from trainop.runtime import (
    CONFIG_MAPS,
    DONE,
    SECRETS,
    ApiError,
    Client,
    HttpTransport,
    Json,
    NotFoundError,
    OperationResult,
    Resource,
    Unstructured,
    create_or_patch,
    finalizing,
    load_config,
)
from trainop.runtime.lowlevel import Transport
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "runtime"
USERS = Resource("example.com", "v1", "databaseusers", "DatabaseUser")
OURS, THEIRS = "example.com/ours", "example.com/theirs"


@contextlib.asynccontextmanager
async def connected(control_plane: ControlPlane) -> AsyncIterator[Transport]:
    transport = HttpTransport(load_config(str(control_plane.kubeconfig)))
    try:
        async with asyncio.timeout(PATIENCE):
            yield transport
    finally:
        await transport.close()


def config_map(namespace: str, **data: str) -> Json:
    return {"metadata": {"name": "raced", "namespace": namespace}, "data": data}


async def test_races_of_create_or_patch(control_plane: ControlPlane, quiet_world: World):
    namespace = quiet_world.namespace
    async with connected(control_plane) as transport:
        racing, other = Racing(transport), Client(transport)
        client = Client(racing)

        def add_zero(obj: Json) -> None:
            obj["data"]["n"] += "0"

        racing.before["POST"] = lambda: other.create(CONFIG_MAPS, config_map(namespace, n="1", theirs="1"))
        result, after = await create_or_patch(client, CONFIG_MAPS, config_map(namespace, n="2"))
        assert (result, after["data"]) == (OperationResult.UPDATED, {"n": "2", "theirs": "1"})

        racing.before["PATCH"] = lambda: other.patch(CONFIG_MAPS, "raced", namespace, {"data": {"n": "3"}})
        result, after = await create_or_patch(client, CONFIG_MAPS, config_map(namespace), add_zero)
        assert (result, after["data"]["n"]) == (OperationResult.UPDATED, "30")

        async def replace() -> None:
            await other.delete(CONFIG_MAPS, "raced", namespace)
            await other.create(CONFIG_MAPS, config_map(namespace, n="7"))

        racing.before["PATCH"] = replace
        result, after = await create_or_patch(client, CONFIG_MAPS, config_map(namespace), add_zero)
        assert (result, after["data"]) == (OperationResult.UPDATED, {"n": "70"})

        racing.before["PATCH"] = lambda: other.delete(CONFIG_MAPS, "raced", namespace)
        result, after = await create_or_patch(client, CONFIG_MAPS, config_map(namespace, n="8"))
        assert (result, after["data"]) == (OperationResult.CREATED, {"n": "8"})
        assert (await create_or_patch(client, CONFIG_MAPS, config_map(namespace, n="8"))) == (
            OperationResult.UNCHANGED,
            after,
        )
        racing.verbs.clear()
        with pytest.raises(NotFoundError):
            await create_or_patch(client, CONFIG_MAPS, config_map("no-such-namespace"))
        assert racing.verbs == ["GET", "POST"], "a missing namespace is no race"


async def test_races_of_finalizing(control_plane: ControlPlane, quiet_world: World):
    namespace = quiet_world.namespace
    cleaned: list[str] = []

    async def clean_up() -> None:
        cleaned.append("once")

    async with connected(control_plane) as transport:
        racing, other = Racing(transport), Client(transport)
        client = Client(racing)

        async def read() -> Unstructured:
            return Unstructured(await other.get(CONFIG_MAPS, "raced", namespace))

        def set_finalizers(*finalizers: str) -> Callable[[], Awaitable[object]]:
            patch = {"metadata": {"finalizers": list(finalizers)}}
            return lambda: other.patch(CONFIG_MAPS, "raced", namespace, patch)

        obj = Unstructured(await other.create(CONFIG_MAPS, config_map(namespace)))
        racing.before["PATCH"] = set_finalizers(THEIRS)
        assert (await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) or DONE).requeue, "a conflict"
        assert (await read()).metadata.finalizers == (THEIRS,)
        assert (await finalizing(client, CONFIG_MAPS, await read(), OURS, clean_up) or DONE).requeue, "added"
        assert (await read()).metadata.finalizers == (THEIRS, OURS)
        assert await finalizing(client, CONFIG_MAPS, await read(), OURS, clean_up) is None

        await other.delete(CONFIG_MAPS, "raced", namespace)
        obj = await read()
        racing.before["PATCH"] = set_finalizers(OURS)
        assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == DONE
        with pytest.raises(NotFoundError):
            await read()

        async def replace() -> None:
            await other.patch(CONFIG_MAPS, "raced", namespace, {"metadata": {"finalizers": []}})
            await other.create(CONFIG_MAPS, successor)

        successor = config_map(namespace)
        successor["metadata"]["finalizers"] = [OURS]
        await other.create(CONFIG_MAPS, successor)
        await other.delete(CONFIG_MAPS, "raced", namespace)
        racing.before["PATCH"] = replace
        assert await finalizing(client, CONFIG_MAPS, await read(), OURS, clean_up) == DONE
        assert (await read()).metadata.finalizers == (OURS,), "the successor is not touched"
    assert cleaned == ["once", "once"]


async def seen(client: Client, name: str, namespace: str, phase: str) -> Json:
    """Wait until the DatabaseUser is in this phase; returns it."""
    while True:
        found = await client.get(USERS, name, namespace)
        if found.get("status") == {"phase": phase}:
            return found
        await asyncio.sleep(0.05)


async def gone(client: Client, name: str, namespace: str) -> None:
    with contextlib.suppress(NotFoundError):
        while await client.get(USERS, name, namespace):  # noqa: ASYNC110  # the cluster is asked
            await asyncio.sleep(0.05)


async def test_the_ported_kopf_operator(control_plane: ControlPlane, quiet_world: World):
    namespace, module = quiet_world.namespace, load("database_users")
    async with connected(control_plane) as transport:
        client = Client(transport)
        crd = yaml.safe_load((EXAMPLES / "database-user-crd.yaml").read_text())
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        manager = module.operator.build(transport, namespace=namespace, signals=False, serve=False)
        running = asyncio.create_task(manager.run())
        wanted = user()
        wanted["metadata"]["namespace"] = namespace
        while True:
            with contextlib.suppress(ApiError):  # the CRD is not served yet
                await client.create(USERS, wanted)
                break
            await asyncio.sleep(0.05)
        made = await seen(client, "ann", namespace, "Ready")
        assert made["metadata"]["finalizers"] == ["example.com/database-user"]
        password = password_of(await client.get(SECRETS, "ann", namespace))
        assert module.database.accounts == {"ann": ("reader", password)}
        await client.patch(USERS, "ann", namespace, {"spec": {"role": "king"}})
        await seen(client, "ann", namespace, "Failed")
        await client.patch(USERS, "ann", namespace, {"spec": {"role": "writer"}})
        await seen(client, "ann", namespace, "Ready")
        assert module.database.accounts == {"ann": ("writer", password)}
        await client.delete(USERS, "ann", namespace)
        await gone(client, "ann", namespace)
        assert module.database.accounts == {}
        manager.stop()
        assert await running == 0
