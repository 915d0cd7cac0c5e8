"""How often progress is written: rarely, fairly, the newest, and never not at all."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.controllers.progress.payload import TrainerStatus, read_report
from trainop.controllers.progress.writer import INTERVAL, MANY, MAX_RATE, REPEATS, SILENT_AFTER, Job, ProgressWriter
from trainop.runtime import Client, Json, Key, Metadata, PatchKind, Resource, Unstructured
from trainop.runtime.lowlevel import error_of_status

JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")


class Server:
    """Takes the writes, and notes when each was made."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.writes: list[tuple[float, str, Json]] = []
        self.failures: list[Exception] = []
        self.takes = 0.0
        self.versions: dict[str, int] = defaultdict(lambda: 1)

    async def patch(self, resource: Resource, name: str, namespace: str, body: Json, **how: Any) -> Json:
        assert (how["kind"], how["subresource"], how["force"]) == (PatchKind.APPLY, "status", True)
        assert how["field_manager"] == "trainop-progress"
        assert (body["apiVersion"], body["kind"]) == (resource.api_version, resource.kind)
        assert set(body["status"]) == {"trainerStatus"}
        assert set(body["metadata"]) == {"name", "namespace", "resourceVersion"}
        assert (body["metadata"]["name"], body["metadata"]["namespace"]) == (name, namespace)
        await self.clock.sleep(self.takes)
        if self.failures:
            raise self.failures.pop(0)
        if body["metadata"]["resourceVersion"] != str(self.versions[name]):
            raise error_of_status({}, 409)
        self.versions[name] += 1
        self.writes.append((self.clock.monotonic(), name, body["status"]["trainerStatus"]))
        return {"metadata": {"resourceVersion": str(self.versions[name])}}

    def version(self, name: str) -> str:
        return str(self.versions[name])

    def of(self, name: str) -> list[tuple[float, int]]:
        return [(at, status["progressPercentage"]) for at, written, status in self.writes if written == name]


def job(name: str) -> Job:
    return Job(JOBS, Key("ns", name), f"uid-{name}")


def report(percent: int, at: datetime | None = None) -> TrainerStatus:
    return TrainerStatus(progress_percentage=percent, last_updated_time=at)


@asynccontextmanager
async def writing() -> AsyncIterator[tuple[ProgressWriter, Server, list[str]]]:
    clock = VirtualClock()
    counted: list[str] = []
    server = Server(clock)
    writer = ProgressWriter(cast("Client", server), clock, counted.append)
    task = asyncio.create_task(writer.run())
    try:
        yield writer, server, counted
    finally:
        task.cancel()
        await asyncio.wait({task})


@virtual_time
async def test_one_job_is_written_once_per_interval():
    async with writing() as (writer, server, counted):
        for step in range(61):
            writer.put(job("a"), report(step), "1")
            await asyncio.sleep(1)
        await asyncio.sleep(INTERVAL)
        times = [at for at, _ in server.of("a")]
        assert all(later - earlier >= INTERVAL for earlier, later in itertools.pairwise(times))
        assert len(times) == 7
        assert server.of("a")[0] == (0.0, 0)
        assert server.of("a")[-1][1] == 60
        assert counted == ["written"] * 7
        assert writer.pending == 0


@virtual_time
async def test_a_thousand_jobs_share_the_rate_evenly():
    said = b'{"trainerStatus": {"progressPercentage": %d, "metrics": [{"name": "loss", "value": "0.5"}]}}'
    async with writing() as (writer, server, _):
        seen = 0
        for second in range(300):
            if second % 5 == 0:
                status = read_report(said % (second // 3))
                assert status is not None
                for number in range(1000):
                    writer.put(job(f"j{number}"), status, "1")
            await asyncio.sleep(1)
            for _, name, written in server.writes[seen:]:  # as the cache shows them
                writer.observe(shown(name, json.loads(json.dumps(written))))
            seen = len(server.writes)
        in_second = [0] * 301
        for at, _, _ in server.writes:
            in_second[int(at)] += 1
        assert max(in_second) <= MAX_RATE + 1
        counts = [len(server.of(f"j{number}")) for number in range(1000)]
        assert max(counts) - min(counts) <= 1  # 300 s at 20 per second are 6 for each
        assert min(counts) >= 5


@virtual_time
async def test_the_newest_is_written_even_while_the_server_is_slow():
    async with writing() as (writer, server, _):
        server.takes = 30.0
        writer.put(job("a"), report(1), "1")
        await asyncio.sleep(1)
        for percent in range(2, 101):
            writer.put(job("a"), report(percent), "1")
        await asyncio.sleep(90)
        assert [percent for _, percent in server.of("a")] == [1, 100]


@virtual_time
async def test_one_job_that_cannot_be_written_delays_no_other():
    async with writing() as (writer, server, counted):
        server.failures = [error_of_status({"message": "field not declared in schema"}, 500)]
        writer.put(job("bad"), report(1), "1")
        await asyncio.sleep(0)
        writer.put(job("good"), report(2), "1")
        await asyncio.sleep(1)
        assert server.of("good")
        assert counted == ["failed", "written"]
        await asyncio.sleep(60)
        assert server.of("bad")  # tried again


@virtual_time
async def test_a_crd_without_the_field_is_announced_once_per_job():
    """The text is that of structured-merge-diff, in the answer of a real kube-apiserver."""
    clock, said = VirtualClock(), []
    server = Server(clock)
    text = "failed to create typed patch object (ns/a; kubeflow.org/v1, Kind=PyTorchJob): "
    lacking = error_of_status({"message": f"{text}.status.trainerStatus: field not declared in schema"}, 500)
    server.failures = [error_of_status({"message": "no"}, 500), *[lacking] * 1000]
    writer = ProgressWriter(cast("Client", server), clock, announce=lambda job, text: said.append((job.key.name, text)))
    task = asyncio.create_task(writer.run())
    for number in range(3):
        writer.put(job(f"j{number}"), report(1), "1")
    await asyncio.sleep(3600)
    assert sorted(name for name, _ in said) == ["j0", "j1", "j2"]
    (text,) = {text for _, text in said}
    assert "the CRD pytorchjobs.kubeflow.org has no field status.trainerStatus" in text
    assert "kubectl apply --server-side -k manifests/crds" in text
    task.cancel()
    await asyncio.wait({task})


@virtual_time
async def test_attempts_become_rarer():
    async with writing() as (writer, server, counted):
        server.failures = [ConnectionError("no")] * 1000
        writer.put(job("a"), report(1), "1")
        await asyncio.sleep(3600)
        assert 10 < len(counted) < 25
        server.failures = []
        await asyncio.sleep(300)
        assert server.of("a")


@virtual_time
async def test_after_a_conflict_a_report_is_written_as_soon_as_the_cache_has_the_version():
    async with writing() as (writer, server, counted):
        server.versions["a"] = 7  # by the leader's write of the status
        writer.put(job("a"), report(1), "6")
        await asyncio.sleep(0.4)
        assert counted == ["conflict"]
        writer.observe(shown("a", None, version="7"))
        await asyncio.sleep(0.1)
        assert [percent for _, percent in server.of("a")] == [1]
        await asyncio.sleep(60)
        assert counted == ["conflict", "written"]
        writer.observe(shown("a", None, version="7"))  # it lags behind the answer of its own write
        writer.put(job("a"), report(2), "7")
        await asyncio.sleep(0.1)
        assert counted == ["conflict", "written", "written"]


@virtual_time
async def test_a_report_never_reaches_a_later_job_of_the_same_name():
    """Its resourceVersion is another one. The attempts end when the cache shows that the job is gone."""
    async with writing() as (writer, server, counted):
        server.versions["a"] = 99
        writer.put(job("a"), report(1), "6")
        await asyncio.sleep(600)
        assert server.writes == []
        assert counted == ["conflict"] * len(counted)
        assert 5 < len(counted) < 12
        writer.forget("uid-a")
        await asyncio.sleep(3600)
        assert (len(counted) < 12, writer.pending) == (True, 0)


@virtual_time
async def test_a_job_that_is_gone_is_forgotten():
    async with writing() as (writer, server, _):
        server.failures = [error_of_status({}, 404)]
        writer.put(job("a"), report(1), "1")
        await asyncio.sleep(60)
        assert (server.writes, writer.pending) == ([], 0)
        writer.put(job("b"), report(1), "1")
        writer.forget("uid-b")
        await asyncio.sleep(60)
        assert (server.writes, writer.pending) == ([], 0)


def shown(name: str, status: Json | None, version: str = "") -> Unstructured:
    """As the cache has it."""
    metadata = Metadata(name=name, namespace="ns", uid=f"uid-{name}", resource_version=version)
    return Unstructured({"status": {"trainerStatus": status}}, metadata)


@virtual_time
async def test_the_writes_of_other_replicas_count():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    async with writing() as (writer, server, _):
        writer.put(job("a"), report(1, now), "1")
        await asyncio.sleep(5)
        writer.put(job("a"), report(2, now + timedelta(seconds=5)), "1")
        writer.observe(shown("a", {"progressPercentage": 3, "lastUpdatedTime": "2026-01-01T00:00:07Z"}))
        await asyncio.sleep(30)
        assert [percent for _, percent in server.of("a")] == [1]  # the other replica's is newer
        writer.put(job("a"), report(4, now + timedelta(seconds=35)), "1")
        writer.observe(shown("a", {"progressPercentage": 3, "lastUpdatedTime": "2026-01-01T00:00:34Z"}))
        before = writer._clock.monotonic()
        await asyncio.sleep(30)
        ((at, percent),) = server.of("a")[1:]
        assert percent == 4
        assert at - before >= INTERVAL


@virtual_time
async def test_an_older_report_that_another_replica_writes_over_a_newer_one_does_not_stay():
    """Its watch was late: it had not seen that one."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    async with writing() as (writer, server, _):
        writer.put(job("a"), report(100, now), "1")
        await asyncio.sleep(1)
        writer.observe(shown("a", {"progressPercentage": 95, "lastUpdatedTime": "2025-12-31T23:59:55Z"}))
        await asyncio.sleep(INTERVAL + 1)
        assert [percent for _, percent in server.of("a")] == [100, 100]
        for seconds in (0, 1):  # what was reported in the same second, or later, is not written over
            writer.observe(shown("a", {"progressPercentage": 7, "lastUpdatedTime": f"2026-01-01T00:00:0{seconds}Z"}))
            await asyncio.sleep(INTERVAL + 1)
        await asyncio.sleep(REPEATS)  # by now, it may be another pod, whose clock is behind
        writer.observe(shown("a", {"progressPercentage": 5, "lastUpdatedTime": "2025-12-31T23:00:00Z"}))
        await asyncio.sleep(INTERVAL + 1)
        assert len(server.of("a")) == 2


@virtual_time
async def test_seeing_its_own_write_delays_nothing():
    said = b'{"trainerStatus": {"progressPercentage": %d, "metrics": [{"name": "loss", "value": "0.5"}]}}'
    async with writing() as (writer, server, _):
        for number in (1, 2):
            status = read_report(said % number)
            assert status is not None
            writer.put(job("a"), status, "1")
            await asyncio.sleep(9)
            writer.observe(shown("a", json.loads(said % number)["trainerStatus"]))
            await asyncio.sleep(1)
        assert [(round(at), percent) for at, percent in server.of("a")] == [(0, 1), (10, 2)]


@virtual_time
async def test_all_replicas_together_keep_to_the_rate():
    async with writing() as (writer, server, _):
        for number in range(100):
            writer.put(job(f"a{number}"), report(1), "1")
        began = writer._clock.monotonic()
        for number in range(100):  # another replica writes as many
            writer.put(job(f"b{number}"), report(1), "1")
            writer.observe(shown(f"b{number}", {"progressPercentage": 2}))
        await asyncio.sleep(60)
        assert server.writes[99][0] - began > 2 * 100 / MAX_RATE - 1


@virtual_time
async def test_its_own_writes_seen_late_are_not_repeated():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    async with writing() as (writer, server, _):
        for number in range(2):
            writer.put(job("a"), report(number, now + timedelta(seconds=15 * number)), "1")
            await asyncio.sleep(15)
        writer.observe(shown("a", {"progressPercentage": 0, "lastUpdatedTime": "2026-01-01T00:00:00Z"}))
        writer.observe(shown("a", {"progressPercentage": 1, "lastUpdatedTime": "2026-01-01T00:00:15Z"}))
        await asyncio.sleep(60)
        assert [percent for _, percent in server.of("a")] == [0, 1]


@virtual_time
async def test_jobs_that_report_no_more_take_no_memory():
    async with writing() as (writer, server, _):
        for number in range(20_000):
            writer.put(job(f"j{number}"), report(1), "1")
            await asyncio.sleep(1)
        assert len(writer._states) < 2 * (SILENT_AFTER + MANY)
        assert len(server.writes) == 20_000
        writer.put(job("j0"), report(2), server.version("j0"))
        await asyncio.sleep(1)
        assert [percent for _, percent in server.of("j0")] == [1, 2]


@virtual_time
async def test_what_is_left_is_written_at_the_end():
    clock = VirtualClock()
    server = Server(clock)
    writer = ProgressWriter(cast("Client", server), clock)
    task = asyncio.create_task(writer.run())
    for number in range(200):
        writer.put(job(f"j{number}"), report(number % 101), "1")
    await asyncio.sleep(1)
    written = len(server.writes)
    began = clock.monotonic()
    task.cancel()
    await asyncio.wait({task})
    assert clock.monotonic() - began < 3.5
    last = [status["progressPercentage"] for _, _, status in server.writes[written:]]
    assert len(last) > 20
    assert last == sorted(last, reverse=True)  # the most advanced first
