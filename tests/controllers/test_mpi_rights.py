"""The rights of the operator (an installation may lack the component of a transport), and those that it grants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from tests.controllers.mpi import MpiStage, mpi_job, operated
from tests.controllers.test_shell_operator import Watched
from tests.kustomize import PAIRS
from tests.runtime.virtual_time import virtual_time
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME
from trainop.engine.seen import Options
from trainop.engine.status import RIGHTS_GRANTED
from trainop.engine.steps.rights import BINDING, ROLE
from trainop.kinds.mpi.kinds import COMPONENTS
from trainop.kinds.mpi.ssh.keys import are_usable, make_keys
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.manifests.pairs import YES
from trainop.manifests.rbac import component_roles
from trainop.runtime import PODS
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import SECRETS, Json, Resource, owner_reference

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
        rules = component_roles()[component][0]["rules"]
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


@pytest.mark.parametrize("installation", COMPONENTS)
@pytest.mark.parametrize(
    ("version", "transport", "first"),
    [(MPI_V1, "mpi-exec", "ServiceAccount foo-launcher"), (MPI_V2, "mpi-ssh", "Secret foo-ssh")],
)
@virtual_time
async def test_a_job_waits_for_the_component_of_its_transport_and_names_that_of_the_installation(
    monkeypatch: pytest.MonkeyPatch, version: Resource, transport: str, first: str, installation: str
) -> None:
    """That of all namespaces is none for an operator in one namespace."""
    component = COMPONENTS[installation][transport == "mpi-ssh"]
    if not component:
        return  # its role has the rights
    folder = component if "/" in component else f"components/{component}"
    overlay = {"": "standalone"}.get(installation, installation)
    assert PAIRS[folder][overlay] == YES
    rbac = Rbac(monkeypatch, transport)
    async with operated(Options(installation=installation)) as here:
        await here.submit(mpi_job(version=version))
        await asyncio.sleep(300)
        assert await here.names(PODS) == []
        assert ("Failed", "True") not in await here.conditions()
        (warning,) = await _warnings(here)
        assert warning == f"The operator lacks the rights for {first}, which its component {component} grants"
        rbac.missing.clear()
        await asyncio.sleep(1200)
        assert {"foo-worker-0", "foo-worker-1"} <= set(await here.names(PODS))
        assert [each for each in await _warnings(here) if "are pending" not in each] == [warning]


@virtual_time
async def test_the_component_of_the_other_transport_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    Rbac(monkeypatch, "mpi-exec")
    async with operated() as here:
        await here.submit(mpi_job(version=MPI_V2))
        assert await here.names(PODS) == ["foo-worker-0", "foo-worker-1"]
        assert await _warnings(here) == []


# The rights of launchers ----------------------------------------------------------------------------------------------


async def allowed(here: MpiStage) -> list[str]:
    """Where the account of the launcher may execute commands."""
    try:
        rules = (await here.get(ROLE.resource, "foo-launcher")).get("rules") or []
    except NotFoundError:
        return []
    return sorted(name for rule in rules if "pods/exec" in rule["resources"] for name in rule["resourceNames"])


async def taken(here: MpiStage) -> str:
    conditions = (await here.job())["status"]["conditions"]
    return next((each["message"] for each in conditions if each["type"] == RIGHTS_GRANTED), "")


async def plant(here: MpiStage, name: str) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    await here.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="ns")


@virtual_time
async def test_a_pod_of_others_gives_no_right_and_the_condition_names_it_until_it_is_gone() -> None:
    async with operated() as here:
        await plant(here, "foo-worker-1")
        await here.submit(mpi_job(version=MPI_V1))
        assert await allowed(here) == []
        assert "foo-worker-1" in await taken(here)
        (warning,) = await _warnings(here)
        assert warning == 'Resource "foo-worker-1" of MPIJobKind "Pod" already exists and is not managed by MPIJob'
        writes = len(here.writes)
        await asyncio.sleep(25)
        assert len(here.writes) <= writes + 1, "it is tried again after half a minute"
        await here.client.delete(PODS, "foo-worker-1", "ns")
        await asyncio.sleep(60)
        assert await taken(here) == ""
        assert await allowed(here) == ["foo-worker-0", "foo-worker-1"]


@virtual_time
async def test_an_account_is_never_bound_to_the_role_of_somebody_else() -> None:
    """Its rights may be any that the operator has, too."""
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]

    async def before(here: MpiStage) -> None:
        await here.client.create(ROLE.resource, {"metadata": {"name": "foo-launcher"}, "rules": rules}, namespace="ns")

    async with operated(before=before) as here:
        await here.submit(mpi_job(version=MPI_V1))
        await asyncio.sleep(120)
        assert await here.names(PODS) == ["foo-launcher", "foo-worker-0", "foo-worker-1"]
        assert await here.names(BINDING.resource) == []
        assert (await here.get(ROLE.resource, "foo-launcher"))["rules"] == rules
        assert "Role foo-launcher" in await taken(here)
        await here.client.delete(ROLE.resource, "foo-launcher", "ns")
        await asyncio.sleep(60)
        assert await taken(here) == ""
        assert await allowed(here) == ["foo-worker-0", "foo-worker-1"]
        assert await here.names(BINDING.resource) == ["foo-launcher"]


@virtual_time
async def test_the_name_of_a_lost_worker_is_withdrawn_before_others_can_use_it_for_long() -> None:
    async with operated() as here:
        job = mpi_job(version=MPI_V1)
        job["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
        await here.submit(job)
        assert await allowed(here) == ["foo-worker-0", "foo-worker-1"]
        await here.client.delete(PODS, "foo-worker-1", "ns", grace_seconds=0)
        await plant(here, "foo-worker-1")
        await here.settle(1)
        assert await allowed(here) == ["foo-worker-0"]
        await here.settle(60)
        assert await allowed(here) == ["foo-worker-0"]
        assert "foo-worker-1" in await taken(here)


@virtual_time
async def test_a_job_whose_role_is_refused_goes_on_waiting_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    rbac, denies = Rbac(monkeypatch, "mpi-exec"), True
    rbac.missing.clear()
    send = Watched.send

    async def answer(transport: Watched, request: Request) -> Response:
        if not denies or request.method != "POST" or not request.path.endswith("/roles"):
            return await send(transport, request)
        message = 'admission webhook "policy.example" denied the request: no Roles here'
        status = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": message}
        return Response(403, HEADERS, msgspec.json.encode(status))

    monkeypatch.setattr(Watched, "send", answer)
    async with operated() as here:
        await here.submit(mpi_job(version=MPI_V1))
        await here.run("foo-worker-0", "foo-worker-1")
        writes = len(here.writes)
        await asyncio.sleep(1200)
        assert len(here.writes) - writes < 30, "it is tried again after minutes"
        assert any("no Roles here" in each for each in await _warnings(here))
        waiting = [each for each in (await here.job())["status"]["conditions"] if each["type"] == "Waiting"]
        assert "no Roles here" in waiting[0]["message"]
        assert await here.names(PODS) == ["foo-launcher", "foo-worker-0", "foo-worker-1"]
        denies = False
        await asyncio.sleep(600)
        assert await allowed(here) == ["foo-worker-0", "foo-worker-1"]


@pytest.mark.parametrize("propagation", ["Background", "Orphan"])
@virtual_time
async def test_a_deleted_job_leaves_no_rights(propagation: str) -> None:
    """Also without the garbage collector, or with children that were to stay."""
    async with operated() as here:
        await here.submit(mpi_job(version=MPI_V1))
        assert await allowed(here) == ["foo-worker-0", "foo-worker-1"]
        await here.client.delete(MPI_V1, "foo", "ns", propagation=propagation)
        await here.settle()
        assert await allowed(here) == []


# Keys of others -------------------------------------------------------------------------------------------------------


async def plant_key(here: MpiStage, **more: Any) -> Json:
    """A Secret with a usable key, made by somebody who names the job as its owner."""
    job = await here.job()
    owner = owner_reference(MPI_V2.api_version, MPI_V2.kind, "foo", job["metadata"]["uid"])
    metadata = {"name": "foo-ssh", "labels": {"app": "foo"}, "ownerReferences": [owner]}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/ssh-auth", **make_keys()}
    made = await here.client.create(SECRETS, {**body, **more}, namespace="ns")
    data: Json = made["data"]
    return data


@pytest.mark.parametrize("delayed", [False, True], ids=["before the operator", "while the job waits"])
@virtual_time
async def test_the_key_of_somebody_else_is_never_used(delayed: bool) -> None:
    planted: Json = {}

    async def before(here: MpiStage) -> None:
        await here.client.create(MPI_V2, mpi_job(), namespace="ns")
        if delayed:  # the job cannot create its first child that needs the key
            spec = {"containers": [{"name": "c", "image": "i"}]}
            labels = {JOB_NAME: "foo", OPERATOR_NAME: "mpi-operator"}
            pod = {"metadata": {"name": "foo-worker-0", "labels": labels}, "spec": spec}
            await here.client.create(PODS, pod, namespace="ns")
        else:
            planted.update(await plant_key(here))

    async with operated(before=before) as here:
        await here.settle()
        if delayed:
            assert await here.names(SECRETS) == []
            planted.update(await plant_key(here))
            await here.client.delete(PODS, "foo-worker-0", "ns")
            await here.settle(60)
        assert await here.names(PODS) == ["foo-worker-0", "foo-worker-1"]
        data = (await here.get(SECRETS, "foo-ssh"))["data"]
        assert are_usable({"data": data})
        assert not set(data.values()) & set(planted.values())
        await here.client.delete(PODS, "foo-worker-1", "ns")
        await here.settle(60)
        assert (await here.get(SECRETS, "foo-ssh"))["data"] == data, "it does not change once there are pods"


@virtual_time
async def test_a_planted_key_that_cannot_be_replaced_keeps_the_job_waiting_and_is_named() -> None:
    async def before(here: MpiStage) -> None:
        await here.client.create(MPI_V2, mpi_job(), namespace="ns")
        await plant_key(here, immutable=True)

    async with operated(before=before) as here:
        await here.settle(60)
        assert await here.names(PODS) == []
        (text,) = await here.events("SecretUnusable")
        assert "foo-ssh" in text
        assert "delete it" in text
        await here.client.delete(SECRETS, "foo-ssh", "ns")
        await here.settle(60)
        assert await here.names(PODS) == ["foo-worker-0", "foo-worker-1"]
