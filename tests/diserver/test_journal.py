"""The Leases of requests, by themselves and in virtual time: when they are renewed, left, taken over and forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.diserver.world import Faulty
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.diserver.journal import HeldLease, Journal, Times
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.records import MAX_RECORD, JobKey, Record, UnsentAnswer, encode, fit, read_record
from trainop.diserver.replies import Answer, Refusal
from trainop.diserver.seen import PodId
from trainop.kinds.dijob.names import CONTROLLER_NAME, DI_SERVER, JOURNAL
from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.errors import ConflictError
from trainop.runtime.objects.metadata import LEASES, Json

JOB = JobKey("default", "a", "job-uid")
TIMES = Times()
ANSWER = Answer(200, b"{}")


class Recorder:
    """A cleaner that only notes what it is asked for."""

    def __init__(self) -> None:
        self.undone: list[str] = []
        self.deleted: list[PodId] = []

    async def undo(self, _job: JobKey, request: str) -> None:
        self.undone.append(request)

    async def delete_pods(self, _job: JobKey, pods: Sequence[PodId]) -> None:
        self.deleted += pods


class Server:
    """The journal of one di-server."""

    def __init__(self, api: ApiServer, clock: VirtualClock, name: str, times: Times) -> None:
        self.transport = Faulty(api.transport())
        self.cleaner = Recorder()
        client = Client(self.transport, clock=clock, rng=random.Random(1))
        settings = {"namespace": "default", "prefix": "di", "identity": name}
        self.journal = Journal(client, self.cleaner, clock, **settings, times=times, metrics=DiServerMetrics())
        self.sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.sweeping = asyncio.create_task(self.journal.run())


class Lab:
    """An API server, and di-servers."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.api = ApiServer(clock=self.clock, rng=random.Random(2))
        self.client = Client(self.api.transport(), clock=self.clock, rng=random.Random(3))
        self.servers: list[Server] = []

    def server(self, times: Times = TIMES) -> Server:
        self.servers.append(Server(self.api, self.clock, f"server-{len(self.servers)}", times))
        return self.servers[-1]

    async def leases(self) -> list[Json]:
        return list((await self.client.list(LEASES, "default")).items)

    async def record(self) -> Record | None:
        """That of the only Lease."""
        (lease,) = await self.leases()
        return read_record(lease)

    async def leave_unsent(self, server: Server, digest: str, body: bytes = b"{}") -> None:
        """A request that is carried out, and whose client does not get the answer."""
        async with server.journal.hold(JOB, digest) as held:
            await held.decide(Answer(200, body))

    async def abandon(self, server: Server, digest: str = "x") -> str:
        """A request whose server dies while pods are created. Returns its identity."""
        holding = asyncio.create_task(self._hold_for_ever(server, digest))
        while not await self.leases():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)

        def dead(_request: Request) -> None:
            raise ConnectionError("dead")

        server.transport.before = dead
        holding.cancel()
        await asyncio.wait([holding])
        record = await self.record()
        assert record is not None
        return record.request

    async def _hold_for_ever(self, server: Server, digest: str) -> None:
        async with server.journal.hold(JOB, digest) as held:
            held.unfinished = True
            await asyncio.Event().wait()


@asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    made = Lab()
    try:
        yield made
    finally:
        for server in made.servers:
            if server.sweeping:
                server.sweeping.cancel()
                await asyncio.wait([server.sweeping])


def may_write(held: HeldLease) -> bool:
    try:
        held.check()
    except Refusal:
        return False
    return True


# Held -----------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_long_request_keeps_its_lease():
    async with lab() as here:
        server, other = here.server(), here.server()
        other.start()
        async with server.journal.hold(JOB, "x") as held:
            for _ in range(100):
                await asyncio.sleep(1)
                assert may_write(held)
            held.sent = True
        assert other.cleaner.undone == []
        assert await here.leases() == []


@virtual_time
async def test_without_renewals_nothing_is_written_before_another_server_may_take_over():
    async with lab() as here:
        server, other = here.server(), here.server()

        def refuse(sent: Request) -> Response | None:
            return Response(500, {}, b"{}") if sent.method == "PUT" else None

        async with server.journal.hold(JOB, "x") as held:
            held.unfinished = True
            server.transport.answer = refuse
            other.start()
            while may_write(held):
                assert other.cleaner.undone == []
                await asyncio.sleep(0.1)
            assert here.clock.monotonic() == pytest.approx(0.8 * TIMES.lease, abs=0.2)
            await asyncio.sleep(TIMES.lease + TIMES.sweep)
            assert other.cleaner.undone == [held.record.request]


@virtual_time
async def test_a_request_that_ends_during_a_renewal_releases_its_lease():
    """The renewal changes the version of the Lease, with which it is deleted."""
    async with lab() as here:
        server = here.server()
        renewing = asyncio.Event()

        async def slow(sent: Request) -> None:
            if sent.method == "PUT":
                renewing.set()
                await asyncio.sleep(1)

        server.transport.after = slow
        async with server.journal.hold(JOB, "x") as held:
            await renewing.wait()
            held.sent = True
        assert await here.leases() == []


@virtual_time
async def test_a_renewal_that_waits_for_the_decision_does_not_undo_it():
    """Pods of an answered request would be deleted if its server died then."""
    async with lab() as here:
        server = here.server()

        async def slow(sent: Request) -> None:
            if sent.method == "PUT":
                await asyncio.sleep(2)

        async with server.journal.hold(JOB, "x") as held:
            server.transport.after = slow
            await asyncio.sleep(TIMES.renew - 1)
            await held.decide(ANSWER)  # the renewal begins meanwhile
            for _ in range(8):
                await asyncio.sleep(1)
                record = await here.record()
                assert record is not None
                assert (record.state, record.answer) == ("decided", ANSWER)
            held.sent = True


@pytest.mark.parametrize("way", ["new", "taken over"])
@virtual_time
async def test_a_write_whose_answer_is_lost_is_no_takeover(way: str):
    """The request would fail, and its pods be deleted, although the Lease says that it was answered."""
    async with lab() as here:
        server = here.server()
        if way == "taken over":
            await here.leave_unsent(here.server(), "y")
        lost = 0

        def lose(sent: Request) -> None:
            nonlocal lost
            if sent.method == "PUT":
                lost += 1
                if lost % 3 == 1:
                    raise ConnectionResetError("reset")

        async with server.journal.hold(JOB, "x") as held:
            server.transport.after = lose
            await held.decide(ANSWER)
            await asyncio.sleep(4 * TIMES.lease)
            assert may_write(held)
            record = await here.record()
            assert record is not None
            assert (record.request, record.state, record.answer) == (held.record.request, "decided", ANSWER)
        assert lost > 3


@virtual_time
async def test_after_a_takeover_nothing_is_written_though_the_record_is_the_same():
    async with lab() as here:
        server, other = here.server(TIMES._replace(renew=3600.0)), here.server()
        other.start()
        async with server.journal.hold(JOB, "x") as held:
            deleting = asyncio.Event()

            async def undo(_job: JobKey, _request: str) -> None:
                deleting.set()
                await asyncio.Event().wait()

            setattr(other.cleaner, "undo", undo)  # noqa: B010  # it takes long
            await deleting.wait()
            with pytest.raises(ConflictError):
                await held.decide(ANSWER)
            held.unfinished = True


@virtual_time
async def test_a_lease_whose_creation_was_not_answered_is_our_own():
    async with lab() as here:
        server = here.server()
        lost = iter((True,))

        def lose(sent: Request) -> None:
            if sent.method == "POST" and next(lost, False):
                raise ConnectionResetError("reset")

        server.transport.after = lose
        async with server.journal.hold(JOB, "x") as held:
            assert here.clock.monotonic() < 1.0
            held.sent = True
        assert await here.leases() == []


@virtual_time
async def test_a_server_does_not_take_its_own_request_for_that_of_a_dead_one():
    async with lab() as here:
        server = here.server(TIMES._replace(renew=3600.0))
        server.start()
        async with server.journal.hold(JOB, "x") as held:
            await asyncio.sleep(10 * TIMES.lease)
            held.sent = True
        assert server.cleaner.undone == []


@virtual_time
async def test_a_request_that_waits_too_long_is_refused():
    async with lab() as here:
        server, other = here.server(), here.server()
        async with server.journal.hold(JOB, "x"), asyncio.timeout(2 * TIMES.wait):
            with pytest.raises(Refusal, match="DIJob default/a is busy with another request"):
                async with other.journal.hold(JOB, "y"):
                    raise AssertionError
            assert here.clock.monotonic() == pytest.approx(TIMES.wait, abs=1.0)


# Of servers that died -------------------------------------------------------------------------------------------------


@virtual_time
async def test_pods_of_an_open_request_are_deleted_once_and_the_lease_with_them():
    async with lab() as here:
        server, other = here.server(), here.server()
        request = await here.abandon(server)
        other.start()
        await asyncio.sleep(TIMES.lease - 1)
        assert other.cleaner.undone == []
        await asyncio.sleep(1 + 2 * TIMES.sweep)
        assert (other.cleaner.undone, await here.leases()) == ([request], [])


@virtual_time
async def test_a_request_whose_pods_could_not_be_deleted_leaves_its_lease_to_all_servers():
    async with lab() as here:
        server = here.server()
        async with server.journal.hold(JOB, "x") as held:
            held.unfinished = True
        server.start()
        await asyncio.sleep(TIMES.lease + 2 * TIMES.sweep)
        assert (server.cleaner.undone, await here.leases()) == ([held.record.request], [])


@virtual_time
async def test_a_server_that_renews_at_the_last_moment_is_not_undone():
    async with lab() as here:
        server, other = here.server(), here.server()
        await here.abandon(server)

        async def renew(sent: Request) -> None:
            if sent.method == "PUT":
                (lease,) = await here.leases()
                await here.client.replace(LEASES, {**lease, "spec": {**lease["spec"], "leaseTransitions": 1}})

        other.transport.before = renew
        other.start()
        await asyncio.sleep(TIMES.lease + 2 * TIMES.sweep)
        assert other.cleaner.undone == []


@pytest.mark.parametrize(
    "annotations", [{}, {JOURNAL: "}{"}, {JOURNAL: '{"request": 1}'}], ids=["none", "bytes", "type"]
)
@pytest.mark.parametrize("by", ["sweep", "request"])
@virtual_time
async def test_a_lease_with_an_unreadable_record_is_removed(annotations: Json, by: str):
    """Nothing is deleted for it, and it does not block the job."""
    async with lab() as here:
        labels = {CONTROLLER_NAME: DI_SERVER}
        metadata = {"name": f"di-{JOB.uid}", "namespace": "default", "labels": labels, "annotations": annotations}
        await here.client.create(LEASES, {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata})
        server = here.server()
        if by == "sweep":
            server.start()
            await asyncio.sleep(TIMES.lease + 2 * TIMES.sweep)
        else:
            async with server.journal.hold(JOB, "x") as held:
                assert here.clock.monotonic() == pytest.approx(TIMES.lease, abs=1.0)
                held.sent = True
        assert (server.cleaner.undone, server.cleaner.deleted, await here.leases()) == ([], [], [])


def test_a_record_of_an_older_release_deletes_by_name_what_it_has_no_uid_for():
    record = Record("r", *JOB, delete=["a", "b"], uids=["u"])
    assert record.deleted == [PodId("a", "u"), PodId("b", "")]


# Answers that were not delivered --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "known"), [(9.0, True), (11.0, False)])
@virtual_time
async def test_an_answer_is_kept_for_its_time_and_no_longer(after: float, known: bool):
    """Also where the time without a renewal is shorter."""
    async with lab() as here:
        server, other = here.server(), here.server(TIMES._replace(lease=2.0, sweep=1.0))
        other.start()
        await here.leave_unsent(server, "x")
        await asyncio.sleep(after)
        async with server.journal.hold(JOB, "x") as held:
            assert (held.record.answer is not None) == known
            held.sent = True


@virtual_time
async def test_an_answer_that_nobody_asks_for_leaves_no_lease():
    async with lab() as here:
        server = here.server()
        server.start()
        await here.leave_unsent(server, "x")
        await asyncio.sleep(TIMES.remembered + 2 * TIMES.sweep)
        assert await here.leases() == []


@virtual_time
async def test_the_wait_for_the_turn_does_not_count():
    """A client that repeats its request in time gets its answer, however long other requests take."""
    async with lab() as here:
        server = here.server()
        await here.leave_unsent(server, "x")

        async def long() -> None:
            async with server.journal.hold(JOB, "y") as held:
                await asyncio.sleep(TIMES.remembered)
                held.sent = True

        other = asyncio.create_task(long())
        await asyncio.sleep(0.9 * TIMES.remembered)
        async with server.journal.hold(JOB, "x") as held:
            assert here.clock.monotonic() >= TIMES.remembered
            assert held.record.answer == ANSWER
        await other


@virtual_time
async def test_an_answer_is_given_to_one_repetition_only():
    async with lab() as here:
        server = here.server()
        await here.leave_unsent(server, "x")
        async with server.journal.hold(JOB, "x") as held:
            assert held.record.answer == ANSWER
            held.sent = True
        async with server.journal.hold(JOB, "x") as held:
            assert held.record.answer is None


def test_the_newest_answers_are_kept_as_far_as_there_is_room():
    """The API server refuses annotations of more than 256 KiB, and the request with them."""
    answers = [UnsentAnswer(str(number), "t", 200, "x" * 90_000) for number in range(4)]
    record = fit(Record("r", *JOB, earlier=answers))
    assert record.earlier == answers[:2]
    assert len(encode(record)) <= MAX_RECORD


@virtual_time
async def test_an_answer_without_room_for_it_is_decided_nevertheless():
    async with lab() as here:
        server = here.server()
        async with server.journal.hold(JOB, "x") as held:
            await held.decide(Answer(200, b"x" * 300_000), [PodId("a", "u")])
            record = await here.record()
            assert record is not None
            assert (record.state, record.answer, record.deleted) == ("decided", None, [])
            held.sent = True
