"""Outages of the API server in virtual time: informers and caches back off, keep their objects, and recover."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.runtime.scripted import (
    HANG,
    NO_STREAMED_LISTS,
    TOO_LARGE,
    Answer,
    RecordingHandler,
    ScriptedTransport,
    Step,
    Streamed,
    added,
    bookmark,
    event,
    json_response,
    page,
    pod,
    refusal,
    status,
    verb_of,
)
from tests.runtime.test_informer import DECODE, FIRST, JOBS, STAYS, Scene, job_group, listed, watch
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.cache.cache import Cache
from trainop.runtime.cache.informer import DISCOVERY_RETRY
from trainop.runtime.client.client import Client
from trainop.runtime.client.discovery import Discovery
from trainop.runtime.client.transport import NotConnectedError, Request, Response
from trainop.runtime.objects.metadata import CONFIG_MAPS, PODS, SERVICES, HasMetadata, Resource

REFUSED = NotConnectedError("refused")
HOLDING = Streamed([added("a", 1), bookmark(2, end=True), HANG])


class Server(ScriptedTransport):
    """A server with one object of each kind and streamed lists, which can be taken down, and records request times."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.open_streams: list[asyncio.Event] = []

    def go(self) -> None:
        """Take the server down and break all its connections."""
        self.away = True
        for stream in self.open_streams:
            stream.set()

    async def send(self, request: Request) -> Response:
        self._note(request)
        kinds = {resource.path(): resource.kind for resource in (PODS, SERVICES, CONFIG_MAPS)}
        return page(version=2, kind=kinds[request.path])

    async def open(self, request: Request) -> Streamed:
        self._note(request)
        cut = asyncio.Event()
        self.open_streams.append(cut)
        first: list[Step] = [added("a", 1), bookmark(2, end=True)] if verb_of(request) == "stream" else []
        return _Cut(first, cut)

    def _note(self, request: Request) -> None:
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        if self.away:
            raise REFUSED


class _Cut(Streamed):
    """A stream that fails when `cut` is set."""

    def __init__(self, steps: list[Step], cut: asyncio.Event) -> None:
        super().__init__(steps)
        self._cut = cut

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in super().chunks():
            yield chunk
        await self._cut.wait()
        raise ConnectionResetError("gone")


@virtual_time
async def test_an_unreachable_server_at_the_start_is_awaited():
    scene = Scene(*[REFUSED] * 12, HOLDING)
    async with scene.running():
        await asyncio.sleep(60)
        assert (scene.informer.synced, scene.informer.current) == (False, False)
        await scene.informer.wait_synced()
        assert scene.informer.current
    delays = scene.transport.delays()
    for delay, least in zip(delays, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, *[30] * 6], strict=True):
        assert least <= delay <= 2 * least
    assert scene.handler.calls == ["+a@1!"]


@virtual_time
async def test_a_cache_survives_an_outage_of_an_hour_and_recovers_within_a_minute():
    """The first kind that reaches the server again ends the back-off of the others, so that all recover together."""
    server, clock = Server(), VirtualClock()
    cache = Cache(Client(server, clock=clock, rng=random.Random(1)), clock=clock, rng=random.Random(2))
    informers = [cache.informer(resource, DECODE) for resource in (PODS, SERVICES, CONFIG_MAPS)]
    handler = RecordingHandler()
    informers[0].add_handler(handler)
    running = asyncio.create_task(cache.run())
    await cache.wait_synced()
    assert len(server.requests) == 3
    server.go()
    await asyncio.sleep(3600)
    asked = [at for at in server.times if at > 120]
    assert 3 * 60 <= len(asked) <= 3 * 120, "each kind retries every 30 to 60 s"
    assert max(after - before for before, after in itertools.pairwise(asked)) <= 60
    assert not running.done()
    assert cache.synced, "cached objects stay readable"
    assert [informer.current for informer in informers] == [False] * 3
    assert [obj.metadata.name for obj in cache.list(PODS)] == ["a"]
    server.away = False
    came_back = clock.monotonic()
    while not all(informer.current for informer in informers):  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.1)
    assert clock.monotonic() - came_back <= 60
    first = next(at for at in server.times if at >= came_back)
    back = [at for at in server.times if at >= first]
    assert back[-1] - first <= 1, "the other kinds follow at once"
    assert len({*back}) >= 3, "with jitter, not all in the same moment"
    assert handler.calls == ["+a@1!"], "no object has changed meanwhile"
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("asks_for", ["in the event", "in the header"])
@virtual_time
async def test_the_server_says_how_long_to_wait(asks_for: str):
    busy = status(429, "TooManyRequests") | {"details": {"retryAfterSeconds": 20}}
    if asks_for == "in the event":
        scene = listed(watch(event("ERROR", busy)))
    else:
        scene = listed(watch(ERROR_410), refusal(503, retry_after=20), page())
    await scene.play()
    assert scene.transport.delays()[-1 if asks_for == "in the event" else -2] >= 20


ERROR_410 = event("ERROR", status(410, "Expired"))


@virtual_time
async def test_bookmarks_inside_a_streamed_list_keep_it_alive_and_do_not_end_it():
    steps: list[Step] = [
        added("a", 1),
        50.0,
        bookmark(5),
        50.0,
        bookmark(6),
        50.0,
        added("b", 2),
        bookmark(7, end=True),
        HANG,
    ]
    scene = Scene(Streamed(steps))
    async with scene.running():
        await asyncio.sleep(149)
        seen = [scene.informer.synced]
        await asyncio.sleep(2)
        assert [*seen, scene.informer.synced] == [False, True]
    assert scene.names == ["a", "b"]
    assert scene.transport.verbs() == ["stream"]


@virtual_time
async def test_a_streamed_list_that_falls_silent_after_a_bookmark_times_out():
    scene = Scene(watch(added("a", 1), bookmark(5), HANG), page(pod("a", 1)))
    await scene.play()
    assert scene.transport.verbs() == ["stream", "list", "watch@10"]
    assert 60.8 <= scene.transport.times[1] < 61.6


@virtual_time
async def test_after_a_streamed_list_a_silence_of_90_seconds_ends_the_watch():
    scene = Scene(watch(added("a", 1), bookmark(5, end=True), HANG))
    await scene.play()
    assert scene.transport.verbs() == ["stream", "watch@5"]
    assert scene.transport.times[1] == pytest.approx(90)


@virtual_time
async def test_a_watch_that_could_not_be_verified_does_not_stay_open():
    """It would stay unread until the next attempt, which may be a minute later."""
    unread = Streamed([HANG])
    broken = Streamed([added("a", 1), bookmark(2, end=True), ConnectionResetError("gone")])
    scene = Scene(broken, REFUSED, unread, REFUSED)
    async with scene.running():
        await asyncio.sleep(2)
        assert scene.transport.verbs() == ["stream", "watch@2", "watch@2", "probe"]
        assert unread.closed


@virtual_time
async def test_each_back_off_can_end_early():
    """Both a resumed watch and a new list end an outage early."""

    def outage(*recovery: Answer) -> list[Answer]:
        return [*[REFUSED] * 6, json_response({}), *recovery]

    scene = listed(
        *outage(watch(added("c", 11)), page(version=11)),
        *outage(TOO_LARGE, page(pod("a", 3), version=5), watch(added("d", 12))),
        *outage(STAYS, page(version=12)),
    )
    async with scene.running():
        for asked in (8, 17, 26):
            await scene.until(lambda asked=asked: len(scene.transport.requests) == asked)  # type: ignore[misc]  # of this turn
            failed_at = scene.transport.times[-1]
            await asyncio.sleep(1)
            await scene.client.get(PODS, "x", "ns")
            await asyncio.sleep(1)
            assert scene.transport.times[asked + 1] <= failed_at + 2, "instead of 25 to 51 s"
        assert scene.informer.current


@pytest.mark.parametrize(
    "nameless",
    [bookmark(""), event("ADDED", pod("c", "")), {"type": "HELLO", "object": {}}, b"\n"],
    ids=["a bookmark", "an object", "something else", "an empty line"],
)
@virtual_time
async def test_an_event_without_a_version_keeps_the_last_one(nameless: Step):
    scene = listed(watch(added("d", 11), nameless))
    await scene.play()
    assert scene.transport.verbs()[2:] == ["watch@10", "watch@11"]
    assert "undecodable" not in scene.metrics.drops


@virtual_time
async def test_an_object_deleted_during_a_streamed_list_is_not_kept():
    """The deletion is an event within the streamed list, so the object must not be kept."""
    first = watch(added("a", 1), added("b", 2), bookmark(5, end=True), ERROR_410)
    again = watch(
        added("a", 1), event("DELETED", pod("a", 8)), added("b", 2), bookmark(9, end=True), added("a", 10, "new"), HANG
    )
    scene = Scene(first, again)
    async with scene.running():
        await asyncio.sleep(10)
    assert scene.handler.calls == ["+a@1!", "+b@2!", "-a", "+a@10"]


@pytest.mark.parametrize("streamed", [False, True])
@virtual_time
async def test_other_tasks_run_during_long_deliveries(streamed: bool):
    """For a page, and for all events in one chunk of a stream."""
    pods = [pod(f"p{number}") for number in range(100)]
    lines = [
        msgspec.json.encode(line) + b"\n" for line in [*(event("ADDED", obj) for obj in pods), bookmark(5, end=True)]
    ]
    scene = Scene(watch(b"".join(lines), HANG)) if streamed else Scene(NO_STREAMED_LISTS, page(*pods))
    loop = asyncio.get_running_loop()
    clock = VirtualClock()
    longest, seen = 0.0, loop.time()

    async def tick() -> None:
        nonlocal longest, seen
        while True:
            longest, seen = max(longest, loop.time() - seen), loop.time()
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    note = scene.handler.add

    def add(obj: HasMetadata, initial: bool) -> None:
        clock.stall(0.004)
        note(obj, initial)

    scene.handler.add = add  # type: ignore[method-assign]  # takes its time
    async with scene.running():
        await scene.informer.wait_synced()
    ticking.cancel()
    assert loop.time() >= 0.4
    assert longest <= 0.055


# Kinds whose CRD appears and disappears
# -----------------------------------------------------------------------------------------------


@virtual_time
async def test_discovery_of_a_missing_kind_backs_off_and_finds_it_within_35_seconds(
    capsys: pytest.CaptureFixture[str],
):
    scene = Scene(*[refusal(404)] * 8, job_group("pytorchjobs"), HOLDING, resource=JOBS, optional=True)
    async with scene.running():
        await asyncio.sleep(200)
        assert scene.names == ["a"]
    assert scene.transport.verbs() == ["GET"] * 9 + ["stream"]
    assert scene.transport.delays() == [2, 4, 8, 16, 30, 30, 30, 30, 0]
    assert capsys.readouterr().out.count("kind is not installed") == 1


@virtual_time
async def test_failed_discovery_is_retried_and_does_not_count_as_synced():
    """Each discovery request is retried by the client; two seconds lie between two of them."""
    failures = [ConnectionError("reset")] * 10
    scene = Scene(*failures, refusal(404), job_group("pytorchjobs"), HOLDING, resource=JOBS, optional=True)
    states: list[tuple[bool, bool]] = []
    scene.transport.before = lambda: states.append((scene.informer.synced, scene.informer.served))
    async with scene.running():
        await asyncio.sleep(60)
        assert scene.names == ["a"]
    assert states[:11] == [(False, True)] * 11
    assert states[11:13] == [(True, False), (True, True)], "first known to be missing, then served"
    delays = scene.transport.delays()
    assert delays[4] == delays[9] == delays[10] == pytest.approx(2)


@virtual_time
async def test_a_kind_removed_during_an_outage_does_not_block_reconciles():
    """Reconciles wait while any source is not current."""
    gone: list[Answer] = [REFUSED, refusal(404), refusal(404), *[refusal(404)] * 10]
    scene = Scene(
        job_group("pytorchjobs"), watch(added("a", 1), bookmark(2, end=True)), *gone, resource=JOBS, optional=True
    )
    current: list[bool] = []
    scene.transport.before = lambda: current.append(scene.informer.current)
    async with scene.running():
        await asyncio.sleep(100)
        assert scene.informer.current
        assert not scene.informer.served
        assert scene.informer.synced
    assert current[:4] == [True, True, True, False]
    assert scene.handler.calls == ["+a@1!", "-a?"]


@virtual_time
async def test_a_kind_that_reappears_begins_with_a_list(capsys: pytest.CaptureFixture[str]):
    scene = Scene(
        job_group("pytorchjobs"),
        NO_STREAMED_LISTS,
        page(pod("a", 3), version=10, kind="PyTorchJob"),
        refusal(404),
        job_group("pytorchjobs"),
        page(pod("a", 3), pod("b", 4), version=20, kind="PyTorchJob"),
        watch(HANG),
        resource=JOBS,
        optional=True,
    )
    async with scene.running():
        await asyncio.sleep(60)
    assert scene.transport.verbs() == ["GET", "stream", "list", "watch@10", "GET", "list", "watch@20"]
    assert scene.transport.delays()[3] == pytest.approx(DISCOVERY_RETRY), "soon: a CRD may be being replaced"
    assert capsys.readouterr().out.count("kind is no longer served") == 1
    assert scene.handler.calls == ["+a@3!", "-a?", "+a@3", "+b@4"]


@pytest.mark.parametrize(
    ("resource", "path"),
    [(JOBS, "/apis/kubeflow.org/v1"), (PODS, "/api/v1"), (Resource("", "v1", "pods", "Pod"), "/api/v1")],
)
@virtual_time
async def test_discovery_asks_for_the_group_version(resource: Resource, path: str):
    transport, clock = ScriptedTransport(job_group(resource.plural)), VirtualClock()
    assert await Discovery(Client(transport, clock=clock), clock).serves(resource)
    assert transport.requests[0].path == path


@virtual_time
async def test_discovery_is_cached_for_a_second_and_only_refusals_are_conclusive():
    answers = [
        job_group("pytorchjobs"),
        job_group(),
        *[refusal(500)] * 5,
        refusal(401),
        json_response({"kind": "APIResourceList", "resources": None}),
        refusal(404),
        json_response({}),
    ]
    transport, clock = ScriptedTransport(*answers, Response(200, {}, b"<html>")), VirtualClock()
    discovery = Discovery(Client(transport, clock=clock, rng=random.Random(1)), clock)
    assert await discovery.serves(JOBS)
    await asyncio.sleep(0.9)
    assert await discovery.serves(JOBS)
    await asyncio.sleep(0.2)
    assert not await discovery.serves(JOBS)
    await asyncio.sleep(2)
    with pytest.raises(ConnectionError, match=r"discovery of kubeflow\.org/v1"):
        await discovery.serves(JOBS)
    assert await discovery.serves(JOBS), "without the right to discovery, the kind is tried directly"
    for _ in ("nothing", "not found"):
        assert not await discovery.serves(JOBS)
        await asyncio.sleep(2)
    for _ in ("an empty object", "a page of HTML"):
        with pytest.raises(ConnectionError, match="returned an invalid answer"):
            await discovery.serves(JOBS)


@virtual_time
async def test_waiting_for_a_recovery_leaks_nothing():
    recovery, clock = Client(ScriptedTransport()).recovery, VirtualClock()
    recovery.failed()
    assert not await recovery.sleep(5, clock)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    waiting = asyncio.create_task(recovery.sleep(50, clock))
    await asyncio.sleep(1)
    recovery.succeeded()
    assert await waiting
    await asyncio.sleep(0)
    assert clock.monotonic() == pytest.approx(6)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_a_failing_handler_is_logged_with_the_object(capsys: pytest.CaptureFixture[str]):
    scene = listed(watch(HANG))

    def fail(obj: object, initial: bool) -> None:
        raise KeyError("no such label")

    scene.handler.add = fail  # type: ignore[method-assign]  # a mistake
    async with scene.running():
        await asyncio.sleep(1)
    out = capsys.readouterr().out
    assert "handler failed" in out
    assert "ns/a" in out
    assert "ns/b" in out


@virtual_time
async def test_busy_watches_that_end_again_and_again_are_opened_at_once():
    """An API server ends watches whose events are not read fast enough."""
    events = [added(f"p{number}", number) for number in range(11, 71)]
    scene = listed(*(watch(*events[first : first + 10]) for first in range(0, 60, 10)), watch(HANG))
    async with scene.running():
        await asyncio.sleep(1)
        assert {f"p{number}" for number in range(11, 71)} <= {obj.metadata.name for obj in scene.informer.store.list()}


@virtual_time
async def test_informers_measure_what_they_do():
    scene = listed(
        watch(added("c", 11), added("d", 12)),
        watch(bookmark(13), ERROR_410),
        page(pod("a", 3)),
        watch(event("DELETED", pod("a", 14)), HANG),
    )
    received: list[tuple[int, float]] = []
    scene.metrics.received = lambda resource, events, lag: received.append((events, lag))  # type: ignore[method-assign]  # spies
    async with scene.running():
        await scene.informer.wait_synced()
        assert scene.metrics.lists == 1
        await asyncio.sleep(10)
    assert scene.metrics.objects == 0
    assert sum(events for events, _ in received) == 5
    assert scene.metrics.restarts == ["brief"]
    assert scene.metrics.relists == ["rejected", "expired"]
    assert scene.metrics.lists == 2
    assert scene.handler.calls == [*FIRST, "+c@11", "+d@12", "-b?", "-c?", "-d?", "-a"]


@virtual_time
async def test_other_tasks_run_during_a_resync():
    """The resync every ten hours yields, however many objects there are."""
    objects = [added(f"p{number}", number + 1) for number in range(2_000)]
    quiet = [watch(bookmark(5_000), HANG)] * 500
    scene = Scene(watch(*objects, bookmark(5_000, end=True), HANG), *quiet)
    begun, turns = asyncio.Event(), [0]
    reported = scene.handler.calls

    async def tick() -> None:
        await begun.wait()
        while len(reported) < 4_000:
            turns.append(len(reported) - 2_000)
            await asyncio.sleep(0)

    def update(old: HasMetadata, new: HasMetadata) -> None:
        assert old is new
        begun.set()
        reported.append("~")

    scene.handler.update = update  # type: ignore[method-assign]  # tells that it has begun
    ticking = asyncio.create_task(tick())
    async with scene.running():
        await ticking
    assert max(after - before for before, after in itertools.pairwise([*turns, 2_000])) <= 501
