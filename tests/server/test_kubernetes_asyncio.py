"""kubernetes_asyncio beside `trainop.runtime` on a real kube-apiserver: connections, models, and the operator of the
page. The tests on the embedded API server are in `tests/runtime`."""

from __future__ import annotations

import json

from e2e.cluster.controlplane import ControlPlane
from tests.runtime.test_kubernetes_asyncio import check_connections, run_example
from tests.server.test_tutorial import connected
from tests.server.world import World
from trainop.runtime import Client
from trainop.runtime.lowlevel import Request
from trainop.runtime.objects.models import MICRO_TIMES


async def test_a_configuration_and_a_client_connect(control_plane: ControlPlane, quiet_world: World):
    await check_connections(control_plane.kubeconfig, quiet_world.namespace)


async def test_the_file_of_the_page(control_plane: ControlPlane, quiet_world: World):
    async with connected(control_plane) as transport:
        await run_example(control_plane.kubeconfig, Client(transport), quiet_world.namespace)


async def test_fields_with_microseconds_are_those_of_the_api(control_plane: ControlPlane):
    """A field of this type is nowhere one with whole seconds, so that its name says how to write it."""
    async with connected(control_plane) as transport:
        answer = await Client(transport).request(Request("GET", "/openapi/v2"))
    micro, whole = set[str](), set[str]()
    for definition in json.loads(answer.body)["definitions"].values():
        for name, field in definition.get("properties", {}).items():
            kind = str(field.get("$ref", "")).rpartition(".")[2]
            (micro if kind == "MicroTime" else whole if kind == "Time" else set[str]()).add(name)
    assert {"acquireTime", "eventTime", "renewTime"} <= micro <= MICRO_TIMES
    assert whole.isdisjoint(MICRO_TIMES)
