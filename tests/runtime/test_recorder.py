"""The event recorder in virtual time: deduplication, aggregation, rate limit per object, and retries."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.client.client import PatchKind
from trainop.runtime.errors import ApiError, ForbiddenError, NotFoundError, NotLeaderError, TooManyRequestsError
from trainop.runtime.events.correlator import Correlator, EventLimits
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import EVENTS, Json, ObjectReference, Resource
from trainop.runtime.texts import cut

JOB = ObjectReference("kubeflow.org/v1", "PyTorchJob", "ns", "mnist", "uid-1", "7")


def job(name: str) -> ObjectReference:
    return ObjectReference("kubeflow.org/v1", "PyTorchJob", "ns", name, f"uid-{name}")


class EventServer:
    """A server that stores events. Each write raises one of `failures` first; `delays` slow down writes about an
    object."""

    def __init__(self) -> None:
        self.events: dict[str, Json] = {}
        self.failures: list[Exception] = []
        self.delays: dict[str, float] = {}
        self.requests: list[tuple[str, str, float]] = []

    async def _pass(self, method: str, about: str) -> None:
        self.requests.append((method, about, asyncio.get_running_loop().time()))
        await asyncio.sleep(self.delays.get(about, 0.001))
        if self.failures:
            raise self.failures.pop(0)

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        assert resource is EVENTS
        assert namespace == body["metadata"]["namespace"]
        await self._pass("POST", body["involvedObject"]["name"])
        self.events[body["metadata"]["name"]] = body
        return body

    async def patch(
        self, resource: Resource, name: str, namespace: str | None, patch: Json, *, kind: PatchKind = PatchKind.MERGE
    ) -> Any:
        assert (resource, kind) == (EVENTS, PatchKind.STRATEGIC)
        await self._pass("PATCH", name.rsplit(".", 1)[0])
        if name not in self.events:
            raise NotFoundError(404, "NotFound", f"{namespace}/{name}", {})
        self.events[name] |= patch

    def recorded_events(self) -> list[tuple[str, int]]:
        return [(event["message"], event["count"]) for event in self.events.values()]


class Running:
    def __init__(self, limits: EventLimits | None = None) -> None:
        self.server = EventServer()
        self.clock = VirtualClock()
        self.metrics = Metrics()
        self.recorder = Recorder(
            self.server, "pytorchjob-controller", self.clock, rng=random.Random(1), metrics=self.metrics, limits=limits
        )

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.recorder.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    def dropped(self, why: str) -> float | None:
        return self.metrics.registry.get_sample_value("runtime_events_dropped_total", {"reason": why})


@virtual_time
async def test_an_event_is_a_core_event_about_the_object():
    async with Running() as running:
        running.recorder.event(JOB, "Normal", "PyTorchJobCreated", "PyTorchJob mnist is created.")
        await asyncio.sleep(1)
    (event,) = running.server.events.values()
    name = event["metadata"]["name"]
    assert re.fullmatch(r"mnist\.[0-9a-f]{16}", name)
    assert int(name.rsplit(".", 1)[1], 16) == 1767225600 * 10**9
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "ns"},
        "involvedObject": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "namespace": "ns",
            "name": "mnist",
            "uid": "uid-1",
            "resourceVersion": "7",
        },
        "type": "Normal",
        "reason": "PyTorchJobCreated",
        "message": "PyTorchJob mnist is created.",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "pytorchjob-controller"},
        "reportingComponent": "pytorchjob-controller",
        "reportingInstance": "",
    }


@virtual_time
async def test_events_about_cluster_scoped_objects_are_in_default_and_odd_names_become_uuids():
    async with Running() as running:
        running.recorder.event(ObjectReference("v1", "Node", "", "node-1", "u"), "Warning", "Lost", "gone")
        running.recorder.event(ObjectReference("v1", "Odd", "ns", "Not_A_Domain", "u"), "Normal", "R", "m")
        await asyncio.sleep(1)
    node, odd = running.server.events.values()
    assert node["metadata"]["namespace"] == "default"
    assert "namespace" not in node["involvedObject"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", odd["metadata"]["name"])


@virtual_time
async def test_an_unknown_event_type_is_a_programming_error():
    async with Running() as running:
        with pytest.raises(ValueError, match="neither Normal nor Warning"):
            running.recorder.event(JOB, "Error", "R", "m")


@virtual_time
async def test_a_repeat_counts_up_the_first_event():
    async with Running() as running:
        for _ in range(3):
            running.recorder.event(JOB, "Normal", "R", "again")
            await running.clock.sleep(10)
        running.recorder.event(JOB, "Warning", "R", "again")
        await asyncio.sleep(1)
    first, other = running.server.events.values()
    assert (first["count"], first["firstTimestamp"], first["lastTimestamp"]) == (
        3,
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:20Z",
    )
    assert other["count"] == 1
    assert [method for method, _, _ in running.server.requests] == ["POST", "PATCH", "PATCH", "POST"]


@virtual_time
async def test_an_expired_event_is_recreated_with_its_count():
    async with Running() as running:
        running.recorder.event(JOB, "Normal", "R", "again")
        await asyncio.sleep(1)
        running.server.events.clear()
        running.recorder.event(JOB, "Normal", "R", "again")
        await asyncio.sleep(1)
    assert running.server.recorded_events() == [("again", 2)]


@pytest.mark.case("runtime-36", "a")
@virtual_time
async def test_from_the_tenth_message_of_a_reason_on_events_are_combined():
    async with Running() as running:
        for number in range(12):
            running.recorder.event(JOB, "Normal", "SuccessfulCreatePod", f"Created pod: {number}")
            await running.clock.sleep(5)
    combined = "(combined from similar events): Created pod: 11"
    assert running.server.recorded_events() == [(f"Created pod: {number}", 1) for number in range(9)] + [(combined, 3)]
    last = list(running.server.events.values())[-1]
    assert last["reportingComponent"] == ""
    assert last["source"] == {"component": "pytorchjob-controller"}


@virtual_time
async def test_ten_quiet_minutes_end_the_combining():
    async with Running() as running:
        for number in range(10):
            running.recorder.event(JOB, "Normal", "R", f"{number}")
        await running.clock.sleep(599)
        running.recorder.event(JOB, "Normal", "R", "soon")
        await running.clock.sleep(601)
        running.recorder.event(JOB, "Normal", "R", "late")
        await asyncio.sleep(1)
    assert running.server.recorded_events()[-2:] == [("(combined from similar events): soon", 2), ("late", 1)]


@pytest.mark.case("runtime-36", "b")
@virtual_time
async def test_more_than_twenty_five_events_about_an_object_are_dropped():
    async with Running() as running:
        for _ in range(30):
            running.recorder.event(JOB, "Normal", "R", "the same")
            await running.clock.sleep(1)
        assert running.server.recorded_events() == [("the same", 25)]
        assert running.dropped("spam") == 5
        running.recorder.event(JOB, "Warning", "R", "another type")
        running.recorder.event(job("other"), "Normal", "R", "another object")
        await running.clock.sleep(1)
        assert running.server.recorded_events()[1:] == [("another type", 1), ("another object", 1)]
        await running.clock.sleep(300)
        running.recorder.event(JOB, "Normal", "R", "the same")
        await running.clock.sleep(1)
        assert running.server.recorded_events()[0] == ("the same", 31)


@pytest.mark.case("runtime-36", "c")
@virtual_time
async def test_a_busy_server_gets_the_event_once():
    async with Running() as running:
        running.server.failures = [ApiError(503, "ServiceUnavailable", "", {}), ApiError(503, "", "", {})]
        running.recorder.event(JOB, "Normal", "R", "m")
        await asyncio.sleep(30)
    assert running.server.recorded_events() == [("m", 1)]
    tries = [at for _, _, at in running.server.requests]
    assert len(tries) == 3
    assert 0 < tries[1] - tries[0] <= 10.1
    assert tries[2] - tries[1] == pytest.approx(10, abs=0.1)


@virtual_time
async def test_the_server_says_how_long_to_wait():
    async with Running() as running:
        running.server.failures = [TooManyRequestsError(429, "TooManyRequests", "", {}, retry_after=25)]
        running.recorder.event(JOB, "Normal", "R", "m")
        await asyncio.sleep(60)
    first, second = (at for _, _, at in running.server.requests)
    assert second - first == pytest.approx(25, abs=0.1)


@virtual_time
async def test_a_refusal_is_final_and_the_next_event_is_written():
    async with Running() as running:
        running.server.failures = [ForbiddenError(403, "Forbidden", "namespace is terminating", {})]
        with capture_logs() as logs:
            running.recorder.event(JOB, "Normal", "R", "refused")
            running.recorder.event(JOB, "Normal", "R", "next")
            await asyncio.sleep(1)
    assert running.server.recorded_events() == [("next", 1)]
    assert running.dropped("refused") == 1
    assert [line["event"] for line in logs] == ["event dropped"]


@virtual_time
async def test_an_event_that_the_leaders_gate_refuses_is_dropped():
    async with Running() as running:
        running.server.failures = [NotLeaderError("this process does not lead")]
        running.recorder.event(JOB, "Normal", "R", "refused")
        running.recorder.event(JOB, "Normal", "R", "next")
        await asyncio.sleep(1)
    assert running.server.recorded_events() == [("next", 1)]
    assert running.dropped("refused") == 1


@virtual_time
async def test_an_event_is_dropped_after_two_minutes():
    async with Running() as running:
        running.server.failures = [ConnectionRefusedError("refused")] * 20
        running.recorder.event(JOB, "Normal", "R", "m")
        await asyncio.sleep(300)
        assert running.server.recorded_events() == []
        assert running.dropped("expired") == 1
        assert 11 <= len(running.server.requests) <= 13
        assert running.server.requests[-1][2] <= 120
        running.server.failures = []
        running.recorder.event(JOB, "Normal", "R", "later")
        await asyncio.sleep(1)
    assert running.server.recorded_events() == [("later", 1)]


@virtual_time
async def test_slow_writes_delay_only_their_object_and_keep_its_order():
    async with Running() as running:
        for name in ("slow-1", "slow-2", "slow-3"):
            running.server.delays[name] = 60
            running.recorder.event(job(name), "Normal", "R", "m")
        for number in range(5):
            running.recorder.event(JOB, "Normal", f"R{number}", f"{number}")
            running.recorder.event(job("quick"), "Normal", f"R{number}", f"{number}")
        await asyncio.sleep(1)
        mine = [
            event["message"] for event in running.server.events.values() if event["involvedObject"]["uid"] == "uid-1"
        ]
        assert mine == ["0", "1", "2", "3", "4"]
        assert len(running.server.events) == 10
        await asyncio.sleep(60)
        assert len(running.server.events) == 13


@virtual_time
async def test_a_server_that_never_answers_times_out():
    async with Running() as running:
        running.server.delays["mnist"] = 3600
        running.recorder.event(JOB, "Normal", "R", "m")
        await asyncio.sleep(121)
        assert running.dropped("expired") == 1
        running.server.delays.clear()
        running.recorder.event(JOB, "Normal", "R", "later")
        await asyncio.sleep(1)
    assert running.server.recorded_events() == [("later", 1)]


@virtual_time
async def test_events_waiting_for_a_retry_do_not_delay_others():
    async with Running() as running:
        running.server.failures = [ConnectionRefusedError("refused")] * 10
        for number in range(10):
            running.recorder.event(job(f"failing-{number}"), "Normal", "R", "m")
        await asyncio.sleep(0.01)
        running.recorder.event(JOB, "Normal", "R", "at once")
        await asyncio.sleep(0.01)
        assert ("at once", 1) in running.server.recorded_events()


@virtual_time
async def test_repeats_that_wait_are_written_as_one():
    async with Running() as running:
        running.server.delays["mnist"] = 5
        for _ in range(20):
            running.recorder.event(JOB, "Normal", "R", "again")
            await running.clock.sleep(0.1)
        await running.clock.sleep(20)
    assert running.server.recorded_events() == [("again", 20)]
    assert [method for method, _, _ in running.server.requests] == ["POST", "PATCH"]


@virtual_time
async def test_a_repeat_during_a_write_has_its_own_two_minutes():
    async with Running() as running:
        running.server.delays["mnist"] = 100
        running.recorder.event(JOB, "Normal", "R", "again")
        await running.clock.sleep(50)
        running.recorder.event(JOB, "Normal", "R", "again")
        await running.clock.sleep(200)
        assert running.dropped("expired") == 0
    assert running.server.recorded_events() == [("again", 2)]


@virtual_time
async def test_an_expired_event_is_recreated_even_after_a_failure():
    async with Running() as running:
        running.recorder.event(JOB, "Normal", "R", "m")
        await asyncio.sleep(1)
        running.server.events.clear()
        # the patch answers 404 and the create fails, so the create is retried
        running.server.failures = [NotFoundError(404, "NotFound", "", {}), ApiError(503, "Unavailable", "", {})]
        running.recorder.event(JOB, "Normal", "R", "m")
        await asyncio.sleep(30)
    assert [method for method, _, _ in running.server.requests] == ["POST", "PATCH", "POST", "POST"]
    assert running.server.recorded_events() == [("m", 2)]


@virtual_time
async def test_objects_whose_events_are_written_are_forgotten():
    async with Running() as running:
        for number in range(20):
            running.recorder.event(job(f"job-{number}"), "Normal", "R", "m")
        await running.recorder.flush(5)
        await asyncio.sleep(0)
        assert running.recorder._pending == {}


@virtual_time
async def test_a_thousand_events_may_wait():
    running = Running()
    for number in range(1001):
        running.recorder.event(job(f"job-{number}"), "Normal", "R", "m")
    assert running.dropped("overflow") == 1
    async with running:
        await asyncio.sleep(10)
    assert len(running.server.events) == 1000


@virtual_time
async def test_flush_waits_for_the_last_event_with_a_timeout():
    async with Running() as running:
        await running.recorder.flush(5)
        assert running.clock.monotonic() == 0
        running.server.delays["mnist"] = 3
        running.recorder.event(JOB, "Normal", "R", "m")
        await running.recorder.flush(5)
        assert running.server.recorded_events() == [("m", 1)]
        assert running.clock.monotonic() == pytest.approx(3)
        running.server.delays["mnist"] = 60
        running.recorder.event(JOB, "Normal", "R", "stuck")
        with capture_logs() as logs:
            await running.recorder.flush(5)
        assert running.clock.monotonic() == pytest.approx(8)
        assert [line["event"] for line in logs] == ["events not written in time"]


@virtual_time
async def test_names_differ_even_if_the_clock_stands_still():
    await asyncio.sleep(0)
    correlator = Correlator(VirtualClock(), lambda: "uuid", EventLimits(burst=1000))
    found = [correlator.correlate(JOB, "Normal", f"R{number}", "m") for number in range(500)]
    assert len({occurrence.name for occurrence in found if occurrence}) == 500


@virtual_time
async def test_the_gap_between_events_ends_the_combining_not_their_number():
    """Each event restarts the ten minutes."""
    clock = VirtualClock()
    correlator = Correlator(clock, lambda: "uuid", EventLimits(burst=100))
    combined = []
    for number in range(12):
        occurrence = correlator.correlate(JOB, "Normal", "R", f"message {number}")
        assert occurrence is not None
        combined.append(occurrence.combined)
        await clock.sleep(500)
    assert combined == [False] * 9 + [True] * 3
    await clock.sleep(101)
    occurrence = correlator.correlate(JOB, "Normal", "R", "message 13")
    assert occurrence is not None
    assert not occurrence.combined


@virtual_time
async def test_combined_messages_are_short_and_fields_are_distinguished():
    await asyncio.sleep(0)
    correlator = Correlator(VirtualClock(), lambda: "uuid", EventLimits(burst=100, combine_from=2))
    first = correlator.correlate(JOB, "Normal", "R", "x" * 1024)
    second = correlator.correlate(JOB, "Normal", "R", "y" * 1024)
    assert first is not None
    assert second is not None
    assert second.combined
    assert second.message.startswith("(combined from similar events): y")
    assert second.message.endswith("y... (80 characters left out)")
    assert len(second.message) == 1024 - 48 + len("... (80 characters left out)")
    containers = [replace(JOB, uid="2", field_path=f"spec.containers{{{name}}}") for name in "ab"]
    reported = [correlator.correlate(about, "Normal", "R", "m") for about in containers]
    assert [occurrence.count for occurrence in reported if occurrence] == [1, 1]


@virtual_time
async def test_names_that_would_be_too_long_are_uuids():
    await asyncio.sleep(0)
    correlator = Correlator(VirtualClock(), lambda: "uuid")
    names = []
    for length in (236, 237):
        occurrence = correlator.correlate(job("n" * length), "Normal", "R", "m")
        assert occurrence is not None
        names.append(occurrence.name)
    assert len(names[0]) == 253
    assert names[1] == "uuid"


@virtual_time
async def test_the_memory_of_events_is_least_recently_used():
    await asyncio.sleep(0)
    correlator = Correlator(VirtualClock(), lambda: "uuid", EventLimits(remembered=2))
    counts = []
    for name in ("a", "b", "a", "c", "a", "b"):
        occurrence = correlator.correlate(job(name), "Normal", "R", "m")
        assert occurrence is not None
        counts.append(occurrence.count)
    assert counts == [1, 1, 2, 1, 3, 1]


@virtual_time
async def test_the_number_of_remembered_objects_is_bounded():
    await asyncio.sleep(0)
    correlator = Correlator(VirtualClock(), lambda: "uuid", EventLimits(remembered=10))
    for number in range(100):
        correlator.correlate(job(f"job-{number}"), "Normal", "R", "m")
    assert (
        len(correlator._written._values) == len(correlator._buckets._values) == len(correlator._similar._values) == 10
    )


@virtual_time
async def test_long_messages_and_reasons_are_cut_before_they_are_kept():
    await asyncio.sleep(0)
    correlator = Correlator(VirtualClock(), lambda: "uuid")
    occurrence = correlator.correlate(JOB, "Normal", "R" * 700_000, "m" * 700_000)
    assert occurrence is not None
    body = occurrence.body("c")
    assert body["reason"].endswith(" characters left out)")
    assert len(body["reason"]) <= 128
    assert body["message"] == "m" * 976 + "... (699,024 characters left out)"


@pytest.mark.parametrize(
    ("message", "shortened"),
    [
        ("short", "short"),
        ("a" * 1024, "a" * 1024),
        ("a" * 1025, "a" * 976 + "... (49 characters left out)"),
        ("a" * 974 + "€€" + "b" * 50, "a" * 974 + "... (52 characters left out)"),
        ("€" * 400, "€" * 325 + "... (75 characters left out)"),
        ("a" * 3_000_000, "a" * 976 + "... (2,999,024 characters left out)"),
    ],
)
def test_messages_are_cut_between_characters(message: str, shortened: str):
    assert cut(message) == shortened
    assert len(shortened.encode()) <= 1024
