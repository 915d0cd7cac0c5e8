"""What a program built with `Operator` does beside its controllers: discovery, denied permissions, metrics over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from e2e.cluster.daemons import free_ports
from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer
from trainop.runtime import CONFIG_MAPS, SECRETS, Context, ForbiddenError, Operator, OperatorParts, Unstructured
from trainop.runtime.lowlevel import Permission, Request, Response, Stream, Transport
from trainop.testing import TestCluster

ROOT = Path(__file__).parent.parent.parent


class Denying:
    """A transport that keeps the requests, and denies those for Secrets as an API server does."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.seen: list[Request] = []

    async def send(self, request: Request) -> Response:
        self.seen.append(request)
        if request.path.endswith("/secrets"):
            message = (
                'secrets is forbidden: User "me" cannot list resource "secrets" in API group "" at the cluster scope'
            )
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message}
            return Response(403, {"content-type": "application/json"}, json.dumps(status).encode())
        return await self._transport.send(request)

    async def open(self, request: Request) -> Stream:
        self.seen.append(request)
        return await self._transport.open(request)

    async def close(self) -> None:
        await self._transport.close()


def reader(**options: Any) -> Operator:
    operator = Operator("reader", metrics="0", health="0", leader_election=False, **options)

    @operator.for_(CONFIG_MAPS).reads(SECRETS).reconcile
    async def look(_ctx: Context, _obj: Unstructured) -> None: ...

    return operator


@pytest.mark.parametrize("optional", [False, True], ids=["needed", "optional"])
async def test_a_denied_permission_is_reported_by_every_program(optional: bool):
    operator, denied, built = reader(optional=[SECRETS] if optional else []), list[Permission](), list[OperatorParts]()
    operator.setup(built.append)
    operator.build(Denying(ApiServer().transport()), signals=False)
    built[0].permissions.announce = lambda permission, _message: denied.append(permission)
    for client in (built[0].client, built[0].unfenced, built[0].urgent):
        with pytest.raises(ForbiddenError):
            await client.list(SECRETS)
    assert denied == ([] if optional else [Permission("list", "", "secrets")]), "once for all clients"


async def test_requests_name_the_program_and_its_version():
    transport = Denying(ApiServer().transport())
    manager = reader(version="1.2").build(transport, signals=False)
    running = asyncio.create_task(manager.run())
    async with asyncio.timeout(PATIENCE):
        while not transport.seen:  # noqa: ASYNC110  # the transport notifies nobody
            await asyncio.sleep(0.01)
    manager.stop()
    await running
    agents = {
        value for request in transport.seen for key, value in request.headers.items() if key.lower() == "user-agent"
    }
    assert [agent.split(" (")[0] for agent in agents] == ["reader/1.2"]


async def test_secured_metrics_are_for_callers_with_a_token_that_may_read_them():
    (port,) = free_ports(1)
    operator = Operator("secret", metrics=f"127.0.0.1:{port}", secure_metrics=True, health="0", leader_election=False)
    async with TestCluster() as cluster, aiohttp.ClientSession() as session:
        cluster._api._backend.tokens.add("known")
        cluster.start(operator, serve=True)

        async def scrape(**headers: str) -> int:
            try:
                async with session.get(f"https://127.0.0.1:{port}/metrics", ssl=False, headers=headers) as answer:
                    return answer.status
            except aiohttp.ClientConnectionError:
                return 0

        assert await cluster.wait_until(scrape) == 401
        assert await scrape(Authorization="Bearer known") == 200
        assert await scrape(Authorization="Bearer unknown") == 401
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{port}/metrics")


PROGRAM = """
import sys
from trainop.runtime import CONFIG_MAPS, ConfigError, Operator, load_config

operator = Operator("asking", metrics="0", health="0", leader_election=False)

@operator.discover
async def ask(client):
    print("found", len((await client.list(CONFIG_MAPS, "default")).items))

class Ending:
    async def run(self):
        operator.manager.stop()

@operator.setup
def end(parts):
    print("built")
    operator.manager = parts.manager
    parts.manager.add(Ending(), "ending")

try:
    sys.exit(operator.run_on(load_config(sys.argv[1])))
except ConfigError as error:
    sys.exit(f"raised: {error}")
"""


async def _run(kubeconfig: Path) -> tuple[int | None, list[str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        kubeconfig,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    said = err.decode() if b"raised" in err else out.decode()
    return process.returncode, [line for line in said.splitlines() if line.startswith(("found", "built", "raised"))]


async def test_a_program_asks_what_is_served_before_it_is_built(tmp_path: Path):
    api, kubeconfig = ApiServer(), tmp_path / "kubeconfig"
    await api.serve(token="secret")
    kubeconfig.write_text(json.dumps(api.kubeconfig("secret")))
    try:
        assert await _run(kubeconfig) == (0, ["found 0", "built"])
    finally:
        await api.close()


async def test_a_program_that_is_given_no_usable_cluster_may_say_so_itself(tmp_path: Path):
    code, said = await _run(tmp_path / "missing")
    assert (code, len(said)) == (1, 1)
    assert "no such file" in said[0]
