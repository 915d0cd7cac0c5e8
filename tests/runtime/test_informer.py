"""Informers against a scripted API server, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import structlog

from tests.runtime.scripted import (
    HANG,
    NO_STREAMED_LISTS,
    TOO_LARGE,
    Answer,
    CountingMetrics,
    RecordingHandler,
    ScriptedTransport,
    Step,
    Streamed,
    added,
    bookmark,
    deleted,
    event,
    json_response,
    modified,
    page,
    pod,
    refusal,
    status,
)
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.cache.informer import HandlerFunctions, Informer
from trainop.runtime.cache.store import by_label
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import NotConnectedError, Response
from trainop.runtime.controller.enqueue import Enqueue, EnqueueObject
from trainop.runtime.controller.workqueue import WorkQueue
from trainop.runtime.objects.metadata import PODS, HasMetadata, Key, Metadata, PartialObject, Resource

DECODE = msgspec.json.Decoder(PartialObject).decode
JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
STAYS = Streamed([HANG])


class Scene:
    """An informer that runs against a scripted server, with a recording handler."""

    def __init__(self, *answers: Answer, resource: Resource = PODS, **options: Any) -> None:
        self.transport = ScriptedTransport(*answers)
        self.metrics = CountingMetrics()
        self.handler = RecordingHandler()
        clock = VirtualClock()
        self.client = Client(self.transport, clock=clock, rng=random.Random(1))
        self.informer = Informer(
            self.client, resource, DECODE, clock=clock, rng=random.Random(1), metrics=self.metrics, **options
        )
        self.informer.add_handler(self.handler)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.informer.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def play(self) -> None:
        """Run until the script is exhausted."""
        async with self.running():
            await self.transport.exhausted()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)

    @property
    def names(self) -> list[str]:
        return sorted(obj.metadata.name for obj in self.informer.store.list())


def watch(*steps: Step) -> Streamed:
    return Streamed(steps)


def listed(*answers: Answer, **options: Any) -> Scene:
    """A server without streamed lists (watch-list) that holds `a@3` and `b@5` at resourceVersion 10."""
    return Scene(NO_STREAMED_LISTS, page(pod("a", 3), pod("b", 5)), *answers, **options)


FIRST = ["+a@3!", "+b@5!"]
ERROR_410 = event("ERROR", status(410, "Expired"))


@pytest.mark.case("runtime-1", "abc")
@virtual_time
async def test_pages_are_delivered_and_then_watched():
    objects = [pod(f"p{n}", n + 1) for n in range(1001)]
    pages = [
        page(*objects[start : start + 250], version=10, token="" if start == 1000 else f"t{start}")
        for start in range(0, 1001, 250)
    ]
    scene = Scene(NO_STREAMED_LISTS, *pages, STAYS)
    synced_during: list[bool] = []
    scene.handler.add = lambda obj, initial: synced_during.append(scene.informer.synced or not initial)  # type: ignore[method-assign]  # spies
    async with scene.running():
        await scene.informer.wait_synced()
        await asyncio.sleep(1)
    assert synced_during == [False] * 1001
    queries = [dict(request.query) for request in scene.transport.requests[1:]]
    assert queries[0] == {"limit": "250"}
    assert queries[1:5] == [{"limit": "250", "continue": f"t{start}"} for start in (0, 250, 500, 750)]
    assert queries[5]["resourceVersion"] == "10"
    assert queries[5]["allowWatchBookmarks"] == "true"
    assert 300 <= int(queries[5]["timeoutSeconds"]) <= 600
    assert scene.transport.times == [0] * 7


def test_a_handler_may_consist_of_some_functions():
    seen: list[object] = []
    old, new = PartialObject(Metadata(name="a")), PartialObject(Metadata(name="b"))
    key = Key("ns", "a")
    whole = HandlerFunctions[PartialObject](seen.append, lambda *two: seen.append(two), lambda *last: seen.append(last))
    for handler in (whole, HandlerFunctions[PartialObject]()):
        handler.add(old, initial=True)
        handler.update(old, new)
        handler.delete(None, key, final_state_unknown=True)
    assert seen == [old, (old, new), (None, key)]


@pytest.mark.case("runtime-2", "ab")
@virtual_time
async def test_list_that_expires_begins_again_once():
    scene = Scene(
        NO_STREAMED_LISTS,
        page(pod("a"), pod("gone"), token="t"),
        refusal(410, "Expired"),
        page(pod("a"), pod("b"), version=20),
        STAYS,
    )
    async with scene.running():
        await scene.informer.wait_synced()
    assert scene.transport.verbs()[:4] == ["stream", "list", "next", "list"]
    assert scene.transport.times[:4] == [0] * 4
    assert scene.names == ["a", "b"]
    assert scene.handler.calls == ["+a@1!", "+gone@1!", "+b@1!", "-gone?"]


@virtual_time
async def test_list_that_expires_twice_backs_off():
    expires = [page(pod("a"), token="t"), refusal(410, "Expired")]
    scene = Scene(NO_STREAMED_LISTS, *expires, *expires)
    await scene.play()
    assert scene.transport.verbs() == ["stream", "list", "next", "list", "next", "list"]
    assert scene.transport.times[:5] == [0] * 5
    assert 0.8 <= scene.transport.times[5] < 1.6


@pytest.mark.case("runtime-3", "abcd")
@pytest.mark.parametrize(
    "ends",
    [refusal(410, "Expired"), watch(modified("a", 11), modified("a", 12), ERROR_410)],
    ids=["at the start", "in the stream"],
)
@virtual_time
async def test_expired_watch_lists_again(ends: Answer):
    in_stream = isinstance(ends, Streamed)
    scene = listed(ends, page(pod("a", 12 if in_stream else 3), version=30))
    await scene.play()
    assert scene.transport.verbs() == ["stream", "list", "watch@10", "list", "watch@30"]
    assert "resourceVersion" not in scene.transport.requests[3].query
    assert 0.8 <= scene.transport.delays()[2] < 1.6
    assert scene.handler.calls == [*FIRST, *(["~a@11", "~a@12"] if in_stream else []), "-b?"]
    assert scene.metrics.relists == ["rejected", "expired"]


@pytest.mark.case("runtime-4", "ab")
@pytest.mark.parametrize("error", [status(500, "StorageReadError"), {}, {"kind": "Status", "details": None}])
@virtual_time
async def test_error_event_lists_again(error: Any):
    scene = listed(watch(event("ERROR", error)), page(pod("a", 3), version=30))
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10", "list", "watch@30"]
    assert scene.handler.calls == [*FIRST, "-b?"]


@pytest.mark.case("runtime-5", "a")
@virtual_time
async def test_refused_connections_back_off_and_keep_the_version():
    """It also probes the server's current resourceVersion, in case etcd was restored from a backup."""
    scene = listed(*[NotConnectedError("refused")] * 5, watch(added("c", 11), HANG), page(version=11))
    async with scene.running():
        await asyncio.sleep(100)
    assert scene.transport.verbs()[2:] == [*["watch@10"] * 6, "probe"]
    delays = scene.transport.delays()[2:-1]
    for delay, least in zip(delays, (0.8, 1.6, 3.2, 6.4, 12.8), strict=True):
        assert least <= delay <= 2 * least
    assert scene.handler.calls == [*FIRST, "+c@11"]


@virtual_time
async def test_a_back_off_ends_when_the_server_answers_another_request():
    """It is cut short once and then starts over, because a server that has just started may not be fully ready."""
    refused, starting = NotConnectedError("refused"), refusal(503, "ServiceUnavailable")
    somebody = [json_response({}), json_response({})]
    scene = listed(*[refused] * 6, somebody[0], starting, somebody[1], watch(added("c", 11), HANG), page(version=11))
    client = scene.client
    async with scene.running():
        await scene.until(lambda: len(scene.transport.requests) == 8)
        failed_at = scene.transport.times[-1]
        await asyncio.sleep(2)
        await client.get(PODS, "x", "ns")
        await scene.until(lambda: len(scene.transport.requests) == 10)
        assert failed_at + 2 <= scene.transport.times[-1] <= failed_at + 2.9, "instead of 25 to 51 s"
        await client.get(PODS, "x", "ns")
        await asyncio.sleep(10)
    assert scene.transport.verbs()[-5:] == ["GET", "watch@10", "GET", "watch@10", "probe"]
    assert 0.8 <= scene.transport.times[-2] - scene.transport.times[-4] <= 1.6
    assert scene.handler.calls == [*FIRST, "+c@11"]


@pytest.mark.case("runtime-5", "bc")
@virtual_time
async def test_throttled_watch_waits_as_long_as_asked():
    scene = listed(
        refusal(429, "TooManyRequests", retry_after=7), watch(event("ERROR", status(429, "TooManyRequests")))
    )
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10"] * 3
    assert scene.transport.delays()[2] >= 7


@pytest.mark.case("runtime-5", "d")
@virtual_time
async def test_long_outage_does_not_restart_the_back_off():
    scene = listed(*[NotConnectedError("refused")] * 1000)
    async with scene.running():
        await asyncio.sleep(600)
    late = [delay for delay, at in zip(scene.transport.delays(), scene.transport.times, strict=False) if at > 60]
    assert len(late) > 5
    assert all(30 <= delay <= 60 for delay in late)


@virtual_time
async def test_back_off_resets_after_a_calm_time():
    scene = listed(
        *[NotConnectedError("refused")] * 6,
        watch(added("c", 11), 80.0, bookmark(11), 80.0),
        page(version=11),
        watch(bookmark(12)),
        NotConnectedError("again"),
    )
    await scene.play()
    assert 0.8 <= scene.transport.delays()[-1] < 1.6


@pytest.mark.case("runtime-6", "abc")
@pytest.mark.parametrize(
    "answer",
    [
        json_response("bad gateway", 502),
        refusal(429, "TooManyRequests"),
        watch(0.01),
    ],
    ids=["502", "429", "short"],
)
@virtual_time
async def test_watches_that_bring_nothing_back_off(answer: Answer):
    short = isinstance(answer, Streamed)
    throttled = not short and answer.status == 429  # type: ignore[union-attr]  # not an exception
    scene = listed(*[answer] * 3, STAYS if throttled else page(pod("a", 3), pod("b", 5)), STAYS)
    async with scene.running():
        await asyncio.sleep(100)
    last = "watch@10" if throttled else "list"
    assert scene.transport.verbs()[2:6] == ["watch@10", "watch@10", "watch@10", last]
    for delay, least in zip(scene.transport.delays()[2:], (0.8, 1.6, 3.2), strict=False):
        assert least <= delay <= 2 * least + 0.02
    assert scene.handler.calls == FIRST


@pytest.mark.case("runtime-7", "abc")
@pytest.mark.parametrize("end", [[ConnectionResetError("reset")], []], ids=["reset", "clean"])
@virtual_time
async def test_line_cut_short_is_forgotten(end: list[Step]):
    line = msgspec.json.encode(added("d", 12))
    scene = listed(
        watch(added("c", 11), line[:40], *end),
        watch(added("d", 12), HANG),
    )
    async with scene.running():
        await asyncio.sleep(10)
    assert scene.transport.verbs()[2:] == ["watch@10", "watch@11"]
    assert scene.transport.delays()[2] == 0
    assert scene.handler.calls == [*FIRST, "+c@11", "+d@12"]


@pytest.mark.case("runtime-8", "ab")
@virtual_time
async def test_long_lines_are_delivered_and_endless_ones_end_the_watch():
    big = added("big", 11)
    big["object"]["spec"] = "x" * (6 << 20)
    line = msgspec.json.encode(big) + b"\n"
    pieces = [line[start : start + 65536] for start in range(0, len(line), 65536)]
    scene = listed(watch(*pieces, *[b"y" * (1 << 20)] * 40), page(pod("a", 3), version=30))
    await scene.play()
    assert scene.handler.calls == [*FIRST, "+big@11", "-b?", "-big?"]
    assert scene.metrics.drops == ["oversized"]
    assert scene.transport.verbs()[2:] == ["watch@10", "list", "watch@30"]
    assert scene.transport.delays()[2] >= 0.8


@pytest.mark.case("runtime-9", "a")
@virtual_time
async def test_bookmark_advances_the_version():
    scene = listed(watch(bookmark(50)))
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10", "watch@50"]
    assert scene.transport.delays()[2] == 0


@pytest.mark.case("runtime-10", "ab")
@pytest.mark.parametrize("marked", [True, False])
@virtual_time
async def test_silent_watch_times_out(marked: bool):
    """The watch times out after 90 s of silence, even before the first bookmark."""
    scene = listed(watch(*([bookmark(20)] if marked else []), HANG))
    await scene.play()
    assert scene.transport.delays()[2] == pytest.approx(90)
    assert scene.transport.verbs()[3] == ("watch@20" if marked else "watch@10")


@pytest.mark.case("runtime-11", "a")
@virtual_time
async def test_streamed_list_goes_on_as_watch():
    stream = watch(
        added("a", 1), added("b", 2), added("c", 3), deleted("b", 4), bookmark(20, end=True), 1.0, added("d", 21), HANG
    )
    scene = Scene(stream)
    async with scene.running():
        await scene.informer.wait_synced()
        assert scene.names == ["a", "c"]
        await asyncio.sleep(2)
    assert scene.transport.verbs() == ["stream"]
    assert scene.transport.requests[0].query["resourceVersionMatch"] == "NotOlderThan"
    assert "resourceVersion" not in scene.transport.requests[0].query
    assert scene.handler.calls == ["+a@1!", "+b@2!", "+c@3!", "-b", "+d@21"]
    assert stream.closed


@pytest.mark.case("runtime-11", "b")
@virtual_time
async def test_refusal_of_streamed_lists_is_remembered():
    scene = listed(refusal(410, "Expired"), page(version=30), refusal(410, "Expired"), page(version=40))
    await scene.play()
    assert scene.transport.verbs() == ["stream", "list", "watch@10", "list", "watch@30", "list", "watch@40"]


@pytest.mark.case("runtime-11", "c")
@virtual_time
async def test_streamed_list_without_an_end_falls_back_to_pages():
    scene = Scene(watch(added("a", 1), 30.0, added("b", 2), HANG), page(pod("a", 1), version=30))
    await scene.play()
    assert scene.transport.verbs() == ["stream", "list", "watch@30"]
    assert 30 + 60 + 0.8 <= scene.transport.times[1] < 30 + 60 + 1.6
    assert scene.handler.calls == ["+a@1!", "+b@2!", "-b?"]


@virtual_time
async def test_streamed_list_that_breaks_off_backs_off():
    scene = Scene(*[Streamed([added("a", 1)])] * 2, Streamed([added("a", 1)]), page(pod("a", 1)))
    await scene.play()
    assert scene.transport.verbs() == ["stream", "stream", "stream", "list", "watch@10"]
    assert all(delay >= 0.8 for delay in scene.transport.delays()[:3])
    assert scene.handler.calls == ["+a@1!"]


@pytest.mark.case("runtime-12", "a")
@virtual_time
async def test_too_large_version_lists_at_once():
    scene = listed(TOO_LARGE, TOO_LARGE, page(pod("a", 3), version=5), TOO_LARGE)
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10", "list", "list", "watch@5", "list"]
    assert scene.transport.delays()[2] == 0
    assert "resourceVersion" not in scene.transport.requests[3].query
    assert scene.transport.delays()[3] >= 0.8, "not in a hot loop"


@pytest.mark.case("runtime-13", "ab")
@virtual_time
async def test_restored_server_is_accepted():
    scene = listed(
        watch(modified("a", 1000), ConnectionResetError()),
        *[NotConnectedError("refused")] * 4,
        TOO_LARGE,
        page(pod("a", 2), pod("b", 5), version=6),
        watch(modified("a", 7), added("c", 8), HANG),
    )
    async with scene.running():
        await asyncio.sleep(100)
    assert scene.transport.verbs()[2:] == ["watch@10", *["watch@1000"] * 5, "list", "watch@6"]
    assert scene.handler.calls == [*FIRST, "~a@1000", "~a@2", "~a@7", "+c@8"]
    assert scene.metrics.drops == []


@pytest.mark.case("runtime-13", "a")
@virtual_time
async def test_a_watch_that_a_restored_server_accepts_is_not_trusted():
    """The restored server would keep the watch open and silent until it reaches that resourceVersion again."""
    scene = listed(
        refusal(503),
        watch(HANG),
        refusal(500),
        watch(HANG),
        page(version=6),
        page(pod("a", 2), version=6),
        watch(added("c", 8)),
        refusal(429),
        NotConnectedError("refused"),
        watch(added("d", 9), HANG),
        page(version=9),
    )
    current: list[bool] = []
    scene.transport.before = lambda: current.append(scene.informer.current)
    async with scene.running():
        await asyncio.sleep(80)
        current.append(scene.informer.current)
    assert current[2:] == [True, *[False] * 5, True, True, True, False, False, True], (
        "not before the relist is complete"
    )
    first = ["watch@10", "watch@10", "probe", "watch@10", "probe", "list"]
    assert scene.transport.verbs()[2:] == [*first, "watch@6", "watch@8", "watch@8", "watch@8", "probe"]
    assert scene.handler.calls == [*FIRST, "~a@2", "-b?", "+c@8", "+d@9"]


@pytest.mark.parametrize(
    "watched",
    [[watch(bookmark(1000), bookmark(7), HANG)], [watch(HANG), watch(HANG), watch(HANG)]],
    ids=["a bookmark goes back", "three watches bring nothing"],
)
@virtual_time
async def test_signs_of_a_restored_server_cause_a_relist(watched: list[Streamed]):
    scene = listed(*watched, page(pod("a", 2), version=6))
    await scene.play()
    assert scene.transport.verbs()[2:] == [*["watch@10"] * len(watched), "list", "watch@6"]


@pytest.mark.case("runtime-14", "abcd")
@virtual_time
async def test_unchanged_objects_are_not_delivered_again():
    many = [pod(f"p{n:05}", n + 1) for n in range(10_000)]
    changed = [*many[:-1], pod("p09999", 20_000)]
    replay = [event("ADDED", obj) for obj in changed[:100]]
    scene = Scene(
        NO_STREAMED_LISTS,
        page(*many, version=10_000),
        refusal(410),
        page(*changed, version=20_000),
        watch(*replay, added("p00000", 20_001), modified("new", 20_002), modified("new", 20_001), HANG),
    )
    async with scene.running():
        await scene.informer.wait_synced()
        assert len(scene.handler.calls) == 10_000
        await asyncio.sleep(10)
    assert scene.handler.calls[10_000:] == ["~p09999@20000", "~p00000@20001", "+new@20002"]
    assert scene.metrics.drops == ["stale"]


@pytest.mark.case("runtime-15", "a")
@pytest.mark.parametrize("seen_by", ["list", "stream", "watch"])
@virtual_time
async def test_recreated_object_is_deleted_and_added(seen_by: str):
    if seen_by == "watch":
        scene = listed(watch(added("a", 12, "other"), HANG))
    elif seen_by == "list":
        scene = listed(refusal(410), page(pod("a", 12, "other"), pod("b", 5), version=30), STAYS)
    else:
        first = watch(added("a", 3), added("b", 5), bookmark(10, end=True), ERROR_410)
        scene = Scene(first, watch(added("b", 5), added("a", 12, "other"), bookmark(30, end=True), HANG))
    async with scene.running():
        await asyncio.sleep(10)
    assert scene.handler.calls == [*FIRST, "-a?", "+a@12"]


@pytest.mark.case("runtime-16", "d")
@virtual_time
async def test_ten_thousand_pods_come_page_by_page():
    """The functional part of the case; e2e/bench measures time and memory."""

    def padded(number: int) -> bytes:
        obj = pod(f"p{number:05}", number + 1, app="train")
        obj["spec"] = {"containers": [{"name": "c", "env": [{"name": "PAD", "value": "x" * 4800}]}]}
        return msgspec.json.encode(obj)

    def page_of(first: int) -> Response:
        metadata = {"resourceVersion": "10000", "continue": "" if first == 9_750 else f"t{first}"}
        items = [msgspec.Raw(padded(number)) for number in range(first, first + 250)]
        return json_response({"kind": "PodList", "metadata": metadata, "items": items})

    turns: list[int] = []

    async def count_turns() -> None:
        while True:
            turns.append(len(scene.handler.calls))
            await asyncio.sleep(0)

    pages = [page_of(first) for first in range(0, 10_000, 250)]
    assert 5_000 * 250 <= len(pages[0].body) <= 5_500 * 250
    scene = Scene(NO_STREAMED_LISTS, *pages, STAYS, indices={"app": by_label("app")})
    counting = asyncio.create_task(count_turns())
    async with scene.running():
        await scene.informer.wait_synced()
        counting.cancel()
        assert len(scene.handler.calls) == len(set(scene.handler.calls)) == 10_000
        assert all(call.endswith("!") for call in scene.handler.calls)
        assert len(scene.informer.store.by_index("app", "train")) == 10_000
        await asyncio.sleep(1)
    assert scene.transport.verbs() == ["stream", "list", *["next"] * 39, "watch@10000"]
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 250, "other tasks run in between"
    assert scene.metrics.lists == 1


@pytest.mark.case("runtime-17", "b")
@virtual_time
async def test_failing_handler_does_not_affect_others(caplog: pytest.LogCaptureFixture):
    class Faulty(RecordingHandler):
        def add(self, obj: HasMetadata, initial: bool) -> None:
            if obj.metadata.name == "a":
                raise KeyError("no such label")
            super().add(obj, initial)

    scene = listed(watch(added("c", 11), HANG))
    faulty = Faulty()
    scene.informer.add_handler(faulty)
    async with scene.running():
        await asyncio.sleep(1)
    assert faulty.calls == ["+b@5!", "+c@11"]
    assert scene.handler.calls == [*FIRST, "+c@11"]
    assert scene.metrics.failures == 1


@pytest.mark.case("runtime-17", "ac")
@virtual_time
async def test_slow_handler_is_logged_and_the_reader_waits(capsys: pytest.CaptureFixture[str]):
    class Slow(RecordingHandler):
        undelivered = 0

        def add(self, obj: HasMetadata, initial: bool) -> None:
            clock.stall(0.2)
            super().add(obj, initial)

    class Counted(Streamed):
        taken = 0

        async def chunks(self) -> AsyncIterator[bytes]:
            async for chunk in super().chunks():
                Counted.taken += chunk.count(b"\n")
                worst.append(Counted.taken - len(slow.calls))
                yield chunk

    clock, slow, worst = VirtualClock(), Slow(), [0]
    lines = [msgspec.json.encode(added(f"p{n}", n)) + b"\n" for n in range(20, 50_020)]
    chunks = [b"".join(lines[start : start + 100]) for start in range(0, len(lines), 100)]
    scene = Scene(NO_STREAMED_LISTS, page(), Counted([*chunks, HANG]))
    scene.informer.add_handler(slow)
    async with scene.running():
        await asyncio.sleep(20_000)
    assert len(slow.calls) == 50_000
    assert max(worst) <= 100, "no more than the current chunk is buffered"
    assert "handlers are slow" in capsys.readouterr().out


def job_group(*plurals: str) -> Answer:
    return json_response({"kind": "APIResourceList", "resources": [{"name": plural} for plural in plurals]})


@pytest.mark.case("runtime-18", "abc")
@virtual_time
async def test_optional_kind_appears_and_disappears():
    scene = Scene(
        refusal(404),
        job_group("tfjobs"),
        job_group("tfjobs", "pytorchjobs"),
        watch(added("a", 1), added("b", 2), bookmark(5, end=True), 10.0, deleted("a", 6)),
        refusal(404, "NotFound"),
        refusal(404, "NotFound"),
        refusal(404),
        job_group("pytorchjobs"),
        watch(added("c", 1), bookmark(7, end=True), HANG),
        resource=JOBS,
        optional=True,
    )
    async with scene.running():
        await scene.informer.wait_synced()
        states = [(scene.informer.served, scene.names)]
        for seconds in (8, 14, 100):
            await asyncio.sleep(seconds)
            states.append((scene.informer.served, scene.names))
    assert states == [(False, []), (True, ["a", "b"]), (False, []), (True, ["c"])]
    assert scene.handler.calls == ["+a@1!", "+b@2!", "-a", "-b?", "+c@1"]
    assert scene.transport.times[2] == pytest.approx(6)  # 2 s, 4 s, ... up to 30 s


@virtual_time
async def test_recovery_is_reported_when_the_store_is_complete():
    """After the kind was missing at the start, was forbidden, and was removed; not after a watch that merely ended."""
    scene = Scene(
        refusal(404),
        job_group("pytorchjobs"),
        refusal(403),
        watch(added("a", 1), bookmark(5, end=True), 10.0),
        watch(10.0),
        refusal(403),
        watch(modified("a", 6), 10.0),
        refusal(404, "NotFound"),
        refusal(404, "NotFound"),
        job_group("pytorchjobs"),
        watch(added("c", 7), bookmark(8, end=True), HANG),
        resource=JOBS,
        optional=True,
    )
    recovered: list[list[str]] = []
    scene.informer.on_recovery(lambda: recovered.append(scene.names))
    forbidden = set()
    async with scene.running():
        for _ in range(2000):
            await asyncio.sleep(0.1)
            if scene.informer.forbidden:
                forbidden.add(len(recovered))
    assert recovered == [["a"], ["a"], ["c"]]
    assert forbidden == {0, 1}
    assert not scene.informer.forbidden


@virtual_time
async def test_a_failing_recovery_call_does_not_affect_others(caplog: pytest.LogCaptureFixture):
    scene = Scene(refusal(403), watch(added("a", 1), bookmark(5, end=True), HANG))
    calls: list[str] = []

    def fail() -> None:
        raise ValueError("none")

    scene.informer.on_recovery(fail)
    scene.informer.on_recovery(lambda: calls.append("second"))
    async with scene.running():
        await scene.informer.wait_synced()
        await asyncio.sleep(1)
    assert calls == ["second"]


@virtual_time
async def test_failed_discovery_is_not_taken_as_missing():
    scene = Scene(*[ConnectionError("reset")] * 5, refusal(403), NO_STREAMED_LISTS, resource=JOBS, optional=True)
    async with scene.running():
        await asyncio.sleep(100)
    assert scene.transport.verbs() == ["GET"] * 6 + ["stream", "list"]
    assert not scene.informer.synced


@pytest.mark.case("runtime-19", "ab")
@virtual_time
async def test_selector_is_sent_to_the_server_and_leaving_it_is_a_deletion():
    scene = listed(watch(deleted("a", 11), added("a", 12), HANG), label_selector="app=x", field_selector="spec.x=1")
    async with scene.running():
        await asyncio.sleep(1)
    assert scene.handler.calls == [*FIRST, "-a", "+a@12"]
    for request in scene.transport.requests:
        assert request.query["labelSelector"] == "app=x"
        assert request.query["fieldSelector"] == "spec.x=1"


@virtual_time
async def test_namespaces_are_watched_one_by_one_into_one_store():
    one: list[Step] = [event("ADDED", in_namespace("one", 1)), bookmark(5, end=True), 5.0, ERROR_410]
    two: list[Step] = [event("ADDED", in_namespace("two", 2)), bookmark(5, end=True), HANG]
    scene = Scene(Streamed(one), Streamed(two), watch(bookmark(9, end=True), HANG), namespaces=("one", "two", "one"))
    async with scene.running():
        await scene.informer.wait_synced()
        assert sorted(scene.informer.store.keys()) == [Key("one", "x"), Key("two", "x")]
        await asyncio.sleep(10)
        assert list(scene.informer.store.keys()) == [Key("two", "x")]
    paths = [request.path for request in scene.transport.requests]
    assert paths == [f"/api/v1/namespaces/{name}/pods" for name in ("one", "two", "one")]


def in_namespace(name: str, version: int) -> Any:
    obj = pod("x", version, f"uid-{name}")
    obj["metadata"]["namespace"] = name
    return obj


@pytest.mark.parametrize("permission_optional", [False, True])
@virtual_time
async def test_a_namespace_without_the_right_does_not_hold_up_the_others(permission_optional: bool):
    scene = Scene(
        refusal(403),
        watch(event("ADDED", in_namespace("two", 2)), bookmark(5, end=True), HANG),
        refusal(403),
        watch(event("ADDED", in_namespace("one", 6)), bookmark(7, end=True), 5.0),
        *[refusal(403)] * 50,
        namespaces=("one", "two"),
        permission_optional=permission_optional,
    )
    recovered: list[int] = []
    scene.informer.on_recovery(lambda: recovered.append(len(scene.informer.store)))
    states: list[tuple[bool, bool, int]] = []
    async with scene.running():
        await scene.informer.wait_synced()
        for _ in range(300):
            state = scene.informer.permitted_in("one"), scene.informer.permitted_in("two"), len(recovered)
            if not states or states[-1] != state:
                states.append(state)
            await asyncio.sleep(0.1)
    assert states == [(False, True, 0), (True, True, 1), (False, True, 1)]
    assert recovered == [2]


@virtual_time
async def test_a_namespace_that_is_listed_twice_does_not_stand_for_another():
    one: list[Step] = [event("ADDED", in_namespace("one", 1)), bookmark(5, end=True), 1.0, ERROR_410]
    scene = Scene(Streamed(one), Streamed([HANG]), watch(bookmark(9, end=True), HANG), namespaces=("one", "two"))
    async with scene.running():
        await asyncio.sleep(30)
        assert len(scene.transport.requests) == 3
        assert not scene.informer.synced


@virtual_time
async def test_no_namespace_at_all_is_permitted():
    scene = Scene(*[refusal(403)] * 100, namespaces=("one", "two"))
    async with scene.running():
        await asyncio.sleep(30)
        assert not scene.informer.synced


@virtual_time
async def test_late_handler_receives_all_objects():
    scene = listed(STAYS)
    late = RecordingHandler()
    async with scene.running():
        await scene.informer.wait_synced()
        scene.informer.add_handler(late)
    assert late.calls == FIRST


@virtual_time
async def test_all_objects_are_resynced_every_ten_hours():
    scene = Scene(*[watch(added("a", 1), added("b", 2), bookmark(5, end=True), HANG)] * 500)
    queue: WorkQueue[Key] = WorkQueue("q", VirtualClock())
    async with scene.running():
        await scene.informer.wait_synced()
        scene.informer.add_handler(Enqueue(queue, EnqueueObject()))
        assert [await queue.get(), await queue.get()] == [Key("ns", "a"), Key("ns", "b")]
        for key in (Key("ns", "a"), Key("ns", "b")):
            queue.done(key)
        await asyncio.sleep(0.9 * 36_000 - 1)
        assert scene.handler.calls == ["+a@1!", "+b@2!"]
        await asyncio.sleep(0.2 * 36_000 + 2)
        queue.add(Key("ns", "news"))
        assert await queue.get() == Key("ns", "news"), "resync events have low priority"
        assert len(queue) == 2
    assert scene.handler.calls == ["+a@1!", "+b@2!", "~a@1", "~b@2"]


@virtual_time
async def test_undecodable_object_does_not_affect_others():
    bad = {"metadata": {"name": "bad", "namespace": "ns", "labels": 5}}
    known = pod("a", 4)
    known["metadata"]["generation"] = "x"
    scene = listed(watch(event("MODIFIED", bad), ERROR_410), page(bad, known, pod("b", 6), version=30))
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10", "list", "watch@30"]
    assert scene.handler.calls == [*FIRST, "-bad??", "-bad??", "-a?", "~b@6"]
    assert scene.metrics.drops == ["undecodable"] * 3
    assert scene.names == ["b"]
    assert {str(key) for key in scene.informer.store.unreadable} == {"ns/bad", "ns/a"}


@virtual_time
async def test_unreadable_line_lists_again():
    scene = listed(watch(b"<html>\n"), page(pod("a", 3), version=30))
    await scene.play()
    assert scene.handler.calls == [*FIRST, "-b?"]
    assert scene.metrics.drops == ["undecodable"]


@virtual_time
async def test_events_of_unknown_type_are_counted_and_logged_once_in_five_minutes():
    unknown = {"type": "HELLO" * 1000, "object": {}}
    six_minutes: list[Step] = [bookmark(11), 60.0] * 6
    with structlog.testing.capture_logs() as logs:
        scene = listed(watch(*([unknown] * 1000), *six_minutes, *([unknown] * 10), HANG))
        async with scene.running():
            await asyncio.sleep(400)
    found = [entry for entry in logs if entry["event"] == "event of unknown type"]
    assert scene.metrics.drops == ["unknown"] * 1010
    assert [(entry["resource"], entry["left_out"], len(entry["type"])) for entry in found] == [
        ("pods", 0, 64),
        ("pods", 999, 64),
    ]


@virtual_time
async def test_unreadable_lines_are_logged_once_in_five_minutes():
    scene = listed(*[answer for _ in range(20) for answer in (watch(b"<html>\n"), page(pod("a", 3), version=30))])
    with structlog.testing.capture_logs() as logs:
        await scene.play()
    found = [entry for entry in logs if entry["event"] == "watch line cannot be decoded"]
    assert scene.metrics.drops == ["undecodable"] * 20
    assert len(found) <= 1 + scene.transport.times[-1] / 300


@virtual_time
async def test_metadata_only_is_requested():
    scene = Scene(NO_STREAMED_LISTS, page(), STAYS, metadata_only=True)
    async with scene.running():
        await scene.informer.wait_synced()
        await asyncio.sleep(1)
    assert [request.accept.split(";")[1] for request in scene.transport.requests] == [
        "as=PartialObjectMetadata",
        "as=PartialObjectMetadataList",
        "as=PartialObjectMetadata",
    ]


@pytest.mark.parametrize("code", [401, 403])
@virtual_time
async def test_restored_permissions_are_used(code: int, capsys: pytest.CaptureFixture[str]):
    scene = listed(*[refusal(code)] * 20, watch(added("c", 11), HANG))
    async with scene.running():
        await asyncio.sleep(1200)
        assert scene.informer.synced
    assert scene.handler.calls == [*FIRST, "+c@11"]
    assert 2 <= capsys.readouterr().out.count("list or watch failed") <= 5
