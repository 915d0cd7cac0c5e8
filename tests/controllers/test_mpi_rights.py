"""MPIJobs under an operator whose installation lacks the component of their transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from tests.controllers.mpi import MpiStage, mpi_job, operated
from tests.controllers.test_shell_operator import Watched
from tests.runtime.virtual_time import virtual_time
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.manifests.rbac import transport_roles
from trainop.runtime import PODS
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.objects.resource import Resource

VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
HEADERS = {"content-type": "application/json"}


class Denied:
    """The response to a watch that RBAC denies."""

    status = 403
    headers: Mapping[str, str] = HEADERS

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def close(self) -> None:
        pass


class Rbac:
    """Denies requests for the resources that a component grants rights for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, component: str) -> None:
        rules = transport_roles()[component][0]["rules"]
        self.missing = {plural.split("/")[0] for rule in rules for plural in rule["resources"]} - {"pods"}
        send, open_ = Watched.send, Watched.open

        async def answer(transport: Watched, request: Request) -> Response:
            denial = self._deny(request)
            return await send(transport, request) if denial is None else Response(403, HEADERS, denial)

        async def watch(transport: Watched, request: Request) -> Stream:
            denial = self._deny(request)
            return await open_(transport, request) if denial is None else Denied(denial)

        monkeypatch.setattr(Watched, "send", answer)
        monkeypatch.setattr(Watched, "open", watch)

    def _deny(self, request: Request) -> bytes | None:
        *parent, last = request.path.split("/")
        plural = next((part for part in (last, *parent[-1:]) if part in self.missing), None)
        if plural is None:
            return None
        verb = VERBS.get(request.method, "list" if last == plural else "get")
        message = (
            f'{plural} is forbidden: User "operator" cannot {verb} resource "{plural}" in API group "" at the scope'
        )
        status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message}
        return msgspec.json.encode(status)


async def _warnings(here: MpiStage) -> list[str]:
    found = await here.stage.client.list(Resource("", "v1", "events", "Event"), "ns")
    return [event["message"] for event in found.items if event["type"] == "Warning"]


@pytest.mark.parametrize(
    ("version", "component", "first"),
    [(MPI_V1, "mpi-exec", "ServiceAccount foo-launcher"), (MPI_V2, "mpi-ssh", "Secret foo-ssh")],
)
@virtual_time
async def test_a_job_waits_for_the_component_of_its_transport_and_names_it(
    monkeypatch: pytest.MonkeyPatch, version: Resource, component: str, first: str
) -> None:
    rbac = Rbac(monkeypatch, component)
    async with operated() as here:
        await here.submit(mpi_job(version=version))
        await asyncio.sleep(300)
        assert await here.names(PODS) == []
        assert ("Failed", "True") not in await here.conditions()
        (warning,) = await _warnings(here)
        assert warning == f"The operator lacks the rights for {first}, which its component {component} grants"
        rbac.missing.clear()
        await asyncio.sleep(1200)
        assert {"foo-worker-0", "foo-worker-1"} <= set(await here.names(PODS))
        assert await _warnings(here) == [warning]


@virtual_time
async def test_the_component_of_the_other_transport_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    Rbac(monkeypatch, "mpi-exec")
    async with operated() as here:
        await here.submit(mpi_job(version=MPI_V2))
        assert await here.names(PODS) == ["foo-worker-0", "foo-worker-1"]
        assert await _warnings(here) == []
