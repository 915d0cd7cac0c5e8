"""The whole operator in process, on the embedded API server and in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.controllers.shell import JOBS, pytorch_job
from tests.runtime.virtual_time import VirtualClock, virtual_time
from tests.upstream import Upstream
from trainop.controllers.counters import JobMetrics
from trainop.engine.schema.crd import crd
from trainop.kinds.pytorch import PYTORCH
from trainop.local.api.serving.server import ApiServer
from trainop.programs.operator import build
from trainop.programs.settings import Settings
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request, Response, Stream, Transport
from trainop.runtime.manager.leader import LeaderElector
from trainop.runtime.manager.manager import Manager
from trainop.runtime.objects.metadata import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SERVICES,
    Json,
    Resource,
    owner_reference,
)

QUIET = Settings(metrics_bind_address="0", health_probe_bind_address="0")


class Watched:
    """The operator's transport to the API server, which records its writes."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.writes: list[str] = []
        self.reads: list[str] = []
        """Without watches."""
        self.refused = "nothing"
        """Requests whose path contains this are reset."""
        self.unavailable = "nothing"
        """Requests whose path contains this get status 503."""

    async def send(self, request: Request) -> Response:
        if self.refused in request.path:
            raise ConnectionError("reset")
        if self.unavailable in request.path:
            status = {"kind": "Status", "status": "Failure", "reason": "ServiceUnavailable", "code": 503}
            return Response(503, {"content-type": "application/json"}, json.dumps(status).encode())
        requests = self.reads if request.method == "GET" else self.writes
        requests.append(f"{request.method} {request.path}")
        return await self._transport.send(request)

    async def open(self, request: Request) -> Stream:
        return await self._transport.open(request)

    async def close(self) -> None:
        await self._transport.close()


class Stage:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.operators = 0
        self.server = ApiServer(clock=self.clock, rng=random.Random(1))
        self.client = Client(self.server.transport(), clock=self.clock)
        self.transport = Watched(self.server.transport())

        self.manager: Manager

    def operator(self, settings: Settings = QUIET, metrics: JobMetrics | None = None) -> Manager:
        self.operators += 1
        rng = random.Random(self.operators)
        return build(settings, self.transport, clock=self.clock, rng=rng, signals=False, metrics=metrics)

    async def install(self) -> None:
        await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(PYTORCH))

    async def submit(self, job: Json) -> Json:
        job["metadata"] = {"name": job["metadata"]["name"], "namespace": "ns"}
        return await self.client.create(JOBS, job, namespace="ns")

    async def job(self, name: str = "j") -> Json:
        return await self.client.get(JOBS, name, "ns")

    async def change(self, spec: Json) -> None:
        await self.client.patch(JOBS, "j", "ns", {"spec": spec})

    async def conditions(self) -> list[tuple[str, str, str, str]]:
        found = (await self.job()).get("status", {}).get("conditions", [])
        return [(each["type"], each["status"], each["reason"], each["message"]) for each in found]

    async def names(self, resource: Resource) -> list[str]:
        return sorted(item["metadata"]["name"] for item in (await self.client.list(resource, "ns")).items)

    async def set_status(self, name: str, status: Json) -> None:
        await self.client.patch(PODS, name, "ns", {"status": status}, subresource="status")

    async def events(self, reason: str) -> list[Json]:
        return [event for event in (await self.client.list(EVENTS, "ns")).items if event["reason"] == reason]


@asynccontextmanager
async def stage(settings: Settings = QUIET, *, crds: bool = True, run: bool = True) -> AsyncIterator[Stage]:
    """A namespace, our CRDs, the API server's own controllers and, with `run`, one operator."""
    here = Stage()
    await here.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
    if crds:
        await here.install()
    cleaning = asyncio.create_task(here.server.run())
    here.manager = here.operator(settings)
    if run:
        async with running(here.manager):
            await asyncio.sleep(1)
            yield here
    else:
        yield here
    cleaning.cancel()
    await asyncio.wait([cleaning])
    await here.server.close()


@asynccontextmanager
async def running(manager: Manager) -> AsyncIterator[Manager]:
    task = asyncio.create_task(manager.run())
    yield manager
    manager.stop()
    assert await task == 0


def of_job(status: Json) -> list[tuple[str, str]]:
    return [(each["type"], each["status"]) for each in status.get("conditions", [])]


@pytest.mark.case("job-engine-1", "abcd")
@virtual_time
async def test_a_job_gets_what_it_needs_and_runs() -> None:
    async with stage() as here:
        await here.submit(pytorch_job())
        await asyncio.sleep(1)
        names = ["j-master-0", "j-worker-0", "j-worker-1"]
        assert await here.names(PODS) == await here.names(SERVICES) == names
        owner = owner_reference("kubeflow.org/v1", "PyTorchJob", "j", (await here.job())["metadata"]["uid"])
        for resource in (PODS, SERVICES):
            for item in (await here.client.list(resource, "ns")).items:
                assert item["metadata"]["ownerReferences"] == [owner]
        assert all(item["spec"]["clusterIP"] == "None" for item in (await here.client.list(SERVICES, "ns")).items)
        master = await here.client.get(PODS, "j-master-0", "ns")
        assert master["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"
        await here.set_status("j-master-0", {"phase": "Running"})
        await asyncio.sleep(3)
        assert await here.conditions() == [
            ("Created", "True", "PyTorchJobCreated", "PyTorchJob j is created."),
            ("Running", "True", "PyTorchJobRunning", "PyTorchJob j is running."),
        ]


@virtual_time
async def test_a_job_costs_few_writes() -> None:
    """One per child and one per change of the status; none for events by default, none that changes nothing."""
    async with stage() as here:
        await here.submit(pytorch_job())
        await asyncio.sleep(1)
        for name in ("j-master-0", "j-worker-0", "j-worker-1"):
            await here.set_status(name, {"phase": "Running"})
        await asyncio.sleep(60)
        writes = Counter(write.split("?")[0] for write in here.transport.writes)
        assert writes["POST /api/v1/namespaces/ns/pods"] == writes["POST /api/v1/namespaces/ns/services"] == 3
        assert writes["PUT /apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/j/status"] <= 3
        assert sum(writes.values()) <= 10


@virtual_time
async def test_a_job_reports_its_success_once() -> None:
    async with stage() as here:
        await here.submit(pytorch_job())
        await asyncio.sleep(1)
        for phase in ("Running", "Succeeded"):
            for name in ("j-master-0", "j-worker-0", "j-worker-1"):
                await here.set_status(name, {"phase": phase})
            await asyncio.sleep(1)
        status = (await here.job())["status"]
        assert of_job(status) == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
        assert status["completionTime"]
        await asyncio.sleep(30)
        (event,) = await here.events("PyTorchJobSucceeded")
        assert event["message"] == "PyTorchJob j is successfully completed."
        assert (event["source"]["component"], event.get("count")) == ("pytorchjob-controller", 1)
        assert event["involvedObject"]["uid"] == (await here.job())["metadata"]["uid"]
        assert await here.names(PODS) == ["j-master-0", "j-worker-0", "j-worker-1"]


@pytest.mark.case("job-engine-40", "ef")
@virtual_time
async def test_a_created_job_is_counted_once_also_by_the_next_operator() -> None:
    labels = {"framework": "pytorch", "job_namespace": "ns"}

    def created(metrics: JobMetrics) -> float | None:
        return metrics.registry.get_sample_value("training_operator_jobs_created_total", labels)

    async with stage(run=False) as here:
        first, second = JobMetrics(), JobMetrics()
        async with running(here.operator(metrics=first)):
            await here.submit(pytorch_job())
            await asyncio.sleep(5)
        async with running(here.operator(metrics=second)):
            await asyncio.sleep(5)
        assert (created(first), created(second)) == (1.0, 0.0)


@pytest.mark.case("job-engine-16", "ab")
@pytest.mark.case("job-engine-17", "acd")
@pytest.mark.case("job-engine-18", "ab")
@virtual_time
async def test_a_job_is_suspended_and_resumed() -> None:
    async with stage() as here:
        await here.submit(pytorch_job(runPolicy={"suspend": True}))
        await asyncio.sleep(5)
        status = (await here.job())["status"]
        assert of_job(status) == [("Created", "True"), ("Suspended", "True")]
        assert "startTime" not in status
        assert await here.names(PODS) == await here.names(SERVICES) == []

        await here.change({"runPolicy": {"suspend": False}})
        await asyncio.sleep(1)
        await here.set_status("j-master-0", {"phase": "Running"})
        await asyncio.sleep(5)
        status = (await here.job())["status"]
        started = status["startTime"]
        assert of_job(status) == [("Created", "True"), ("Suspended", "False"), ("Running", "True")]

        await here.change({"runPolicy": {"suspend": True}})
        await asyncio.sleep(5)
        status = (await here.job())["status"]
        assert of_job(status) == [("Created", "True"), ("Running", "False"), ("Suspended", "True")]
        assert status["startTime"] == started
        assert await here.names(PODS) == await here.names(SERVICES) == []
        assert [event["count"] for event in await here.events("PyTorchJobSuspended")] == [2], "one event for each time"

        await here.change({"runPolicy": {"suspend": False}})
        await asyncio.sleep(5)
        assert (await here.job())["status"]["startTime"] > started
        assert await here.names(PODS) == ["j-master-0", "j-worker-0", "j-worker-1"]


@pytest.mark.case("job-engine-24", "bc")
@virtual_time
async def test_a_deadline_ends_a_job_without_any_event() -> None:
    async with stage() as here:
        await here.submit(pytorch_job(runPolicy={"activeDeadlineSeconds": 20}))
        await asyncio.sleep(1)
        for name in ("j-master-0", "j-worker-0", "j-worker-1"):
            await here.set_status(name, {"phase": "Running"})
        await asyncio.sleep(17)
        assert of_job((await here.job())["status"]) == [("Created", "True"), ("Running", "True")]
        await asyncio.sleep(5)
        conditions = await here.conditions()
        assert [each[:2] for each in conditions[-2:]] == [("Running", "False"), ("Failed", "True")]
        assert conditions[-1][3] == Upstream("Job j has failed because it was active longer than specified deadline")
        assert await here.names(PODS) == []


@pytest.mark.case("job-engine-25", "deg")
@virtual_time
async def test_a_finished_job_is_deleted_in_time_also_by_the_next_operator() -> None:
    async with stage(run=False) as here:
        async with running(here.operator()):
            for name in ("soon", "later"):
                job = pytorch_job(workers=0, runPolicy={"ttlSecondsAfterFinished": 3 if name == "soon" else 60})
                job["metadata"]["name"] = name
                await here.submit(job)
            await asyncio.sleep(1)
            for name in ("soon", "later"):
                await here.set_status(f"{name}-master-0", {"phase": "Succeeded"})
            await asyncio.sleep(2)
            assert await here.names(JOBS) == ["later", "soon"]
            await asyncio.sleep(3)
            assert await here.names(JOBS) == ["later"]
            (event,) = await here.events("SuccessfulDeletePod")
            assert event["message"] == "Deleted job: soon"
        await asyncio.sleep(100)
        async with running(here.operator()):
            await asyncio.sleep(1)
            assert await here.names(JOBS) == []


@pytest.mark.case("job-engine-23", "abc")
@virtual_time
async def test_restarts_are_counted_over_the_life_of_operators() -> None:
    def replicas() -> Json:
        container = {"name": "pytorch", "image": "img"}
        return {"replicas": 1, "restartPolicy": "ExitCode", "template": {"spec": {"containers": [container]}}}

    async with stage(run=False) as here:
        job = pytorch_job(runPolicy={"backoffLimit": 2}) | {}
        job["spec"]["pytorchReplicaSpecs"] = {"Worker": replicas()}
        await here.submit(job)
        uids = []
        for _ in range(3):
            async with running(here.operator()):
                await asyncio.sleep(5)
                uids.append((await here.client.get(PODS, "j-worker-0", "ns"))["metadata"]["uid"])
                terminated = {"name": "pytorch", "state": {"terminated": {"exitCode": 137}}}
                await here.set_status("j-worker-0", {"phase": "Failed", "containerStatuses": [terminated]})
                await asyncio.sleep(5)
        assert len(set(uids)) == 3
        conditions = await here.conditions()
        assert conditions[-1][:2] == ("Failed", "True")
        assert conditions[-1][3] == Upstream("Job j has failed because it has reached the specified backoff limit")


@pytest.mark.case("runtime-18", "ab")
@virtual_time
async def test_a_kind_that_is_not_installed_is_waited_for() -> None:
    """The kind appears later; tests of the cache cover the rest."""
    async with stage(crds=False) as here:
        assert (await here.manager.ready.all())[0] == 200
        await here.install()
        await here.submit(pytorch_job())
        await asyncio.sleep(35)
        assert await here.names(PODS) == ["j-master-0", "j-worker-0", "j-worker-1"]


@virtual_time
async def test_only_one_namespace_is_served_if_one_is_named() -> None:
    async with stage(replace(QUIET, namespace="other")) as here:
        await here.submit(pytorch_job())
        await asyncio.sleep(5)
        assert await here.names(PODS) == []
        await here.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        job = pytorch_job()
        job["metadata"] = {"name": "k", "namespace": "other"}
        await here.client.create(JOBS, job, namespace="other")
        await asyncio.sleep(5)
        assert len((await here.client.list(PODS, "other")).items) == 3


@virtual_time
async def test_of_two_replicas_one_acts_and_the_other_takes_over() -> None:
    elected = replace(QUIET, leader_elect=True, leader_election_namespace="ns", hostname="host")
    async with stage(run=False) as here:
        first, second = here.operator(elected), here.operator(elected)
        async with running(second):
            async with running(first):
                await asyncio.sleep(5)
                await here.submit(pytorch_job())
                await asyncio.sleep(5)
                lease = (await here.client.list(LEASES, "ns")).items[0]
                assert lease["metadata"]["name"] == "1ca428e5.training-operator.kubeflow.org"
                holder = lease["spec"]["holderIdentity"]
                assert holder.startswith("host_")
                (event,) = await here.events("LeaderElection")
                assert event["message"] == f"{holder} became leader"
                assert await here.names(PODS) == ["j-master-0", "j-worker-0", "j-worker-1"]
            await asyncio.sleep(6)
            await here.client.delete(PODS, "j-worker-1", "ns", grace_seconds=0)
            await asyncio.sleep(5)
            assert await here.names(PODS) == ["j-master-0", "j-worker-0", "j-worker-1"]


@virtual_time
async def test_a_bad_template_fails_its_job_and_no_other() -> None:
    async with stage() as here:
        bad = pytorch_job()
        bad["metadata"]["name"] = "bad"
        container = bad["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "", "value": "no name"}]
        await here.submit(bad)
        await here.submit(pytorch_job())
        await asyncio.sleep(5)
        status = (await here.job("bad"))["status"]
        assert of_job(status)[-1] == ("Failed", "True")
        assert "env" in status["conditions"][-1]["message"]
        assert of_job((await here.job())["status"]) == [("Created", "True")]
        assert len(here.transport.writes) < 40


@pytest.mark.parametrize(
    ("flags", "soon"),
    [({}, 3), ({"kube_api_qps": 2.0}, 3), ({"kube_api_qps": 2.0, "kube_api_burst": 1}, 1)],
)
def test_requests_are_limited_only_if_a_flag_asks_for_it(flags: dict[str, Any], soon: int) -> None:
    @virtual_time
    async def run() -> None:
        async with stage(replace(QUIET, **flags)) as here:
            await asyncio.sleep(10)  # the caches have synced by then
            await here.submit(pytorch_job())
            await asyncio.sleep(1.2)
            assert len(await here.names(PODS)) == soon
            await asyncio.sleep(5)
            assert len(await here.names(PODS)) == 3

    run()


def test_a_leader_whose_renewals_fail_writes_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even before the elector has ended: the write gate guards each write."""
    monkeypatch.setattr(LeaderElector, "_check_deadline", lambda _self: None)
    monkeypatch.setattr(LeaderElector, "_pause", lambda _self: 2.0)
    elected = replace(QUIET, leader_elect=True, leader_election_namespace="ns", hostname="host")

    @virtual_time
    async def run() -> None:
        async with stage(run=False) as here, running(here.operator(elected)):
            await asyncio.sleep(5)
            here.transport.refused = "/leases"
            await asyncio.sleep(11)
            await here.submit(pytorch_job())
            await asyncio.sleep(5)
            assert await here.names(PODS) == []
            assert not [write for write in here.transport.writes if "/leases" not in write and "/events" not in write]

    run()
