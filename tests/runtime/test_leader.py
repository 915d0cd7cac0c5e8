"""Leader election in virtual time against an in-memory store of leases."""

from __future__ import annotations

import asyncio
import copy
import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    LeadershipLostError,
    NotFoundError,
    NotLeaderError,
    UnhealthyError,
)
from trainop.runtime.manager.leader import LeaderElector, Timing
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import Json, ObjectReference, Resource


class Leases:
    """An API server that serves leases with optimistic concurrency by resourceVersion."""

    def __init__(self) -> None:
        self.leases: dict[str, Json] = {}
        self.version = 100
        self.writes: list[tuple[float, str, Json]] = []

    def store(self, name: str, spec: Json) -> Json:
        self.version += 1
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        self.leases[name] = {"metadata": metadata, "spec": spec}
        self.writes.append((asyncio.get_running_loop().time(), name, spec))
        return copy.deepcopy(self.leases[name])

    def holder(self, name: str = "lease") -> str | None:
        lease = self.leases.get(name)
        return lease["spec"]["holderIdentity"] if lease else None


class Connection:
    """The connection of one replica to the server, which can fail or hang."""

    def __init__(self, server: Leases) -> None:
        self.server = server
        self.cut = False
        self.hangs = False
        self.refusals = 0
        self.lie: Any = None
        self.attempts: list[float] = []

    async def _pass(self) -> None:
        self.attempts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.cut:
            raise ConnectionRefusedError("connection refused")

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        await self._pass()
        if self.lie is not None:
            return self.lie  # type: ignore[no-any-return]  # that is what lies are
        if name not in self.server.leases:
            raise NotFoundError(404, "NotFound", f"{resource} {namespace}/{name}", {})
        return copy.deepcopy(self.server.leases[name])

    async def create(self, _resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        await self._pass()
        if self.lie is not None:
            return self.lie  # type: ignore[no-any-return]  # that is what lies are
        name = body["metadata"]["name"]
        assert body["metadata"]["namespace"] == namespace
        if self.refusals:
            self.refusals -= 1
            raise ApiError(500, "InternalError", "etcd is away", {})
        if name in self.server.leases:
            raise AlreadyExistsError(409, "AlreadyExists", name, {})
        return self.server.store(name, body["spec"])

    async def replace(self, _resource: Resource, body: Json) -> Json:
        await self._pass()
        if self.lie is not None:
            return self.lie  # type: ignore[no-any-return]  # that is what lies are
        name = body["metadata"]["name"]
        if name not in self.server.leases:
            raise NotFoundError(404, "NotFound", name, {})
        if body["metadata"]["resourceVersion"] != self.server.leases[name]["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", name, {})
        return self.server.store(name, body["spec"])


class Said:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None:
        assert (about.kind, type_, reason) == ("Lease", "Normal", "LeaderElection")
        assert about.uid in (f"uid-{about.name}", ""), "empty if the Lease was deleted"
        self.messages.append(f"{about.name}: {message}")


class Replica:
    def __init__(self, server: Leases, identity: str, *names: str) -> None:
        self.connection = Connection(server)
        self.clock = VirtualClock()
        self.metrics = Metrics()
        self.said = Said()
        self.elector = LeaderElector(
            self.connection,
            "ns",
            names or ("lease",),
            identity,
            clock=self.clock,
            rng=random.Random(identity),
            metrics=self.metrics,
            recorder=self.said,
        )
        self.led_from: float | None = None
        self.lost_at: float | None = None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await self.elector.run()
        except LeadershipLostError:
            self.lost_at = asyncio.get_running_loop().time()
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        await self.elector.wait_leading()
        self.led_from = asyncio.get_running_loop().time()

    async def kill(self) -> None:
        """Stop like `kill -9`: the lease is not released."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        """Stop cleanly and release the lease, as the manager does after the workers have ended."""
        await self.kill()
        await self.elector.release()

    def gauge(self, name: str = "lease") -> float | None:
        return self.metrics.registry.get_sample_value("leader_election_master_status", {"name": name})


async def until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`, for at most ten minutes of virtual time."""
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110  # virtual time: nothing is waited for
            await asyncio.sleep(0.005)


MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@virtual_time
async def test_the_first_replica_creates_the_lease_and_renews_it_every_two_seconds():
    server = Leases()
    a = Replica(server, "a")
    assert a.gauge() == 0
    a.start()
    await asyncio.sleep(1)
    assert a.elector.leading
    assert a.gauge() == 1
    a.elector.gate()
    spec = server.leases["lease"]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
    assert spec["acquireTime"] == spec["renewTime"]
    await asyncio.sleep(10)
    assert [at for at, _, _ in server.writes] == pytest.approx([0.02 + i * 2.01 for i in range(6)], abs=0.02)
    after = server.leases["lease"]["spec"]
    assert after["acquireTime"] == spec["acquireTime"] < after["renewTime"]
    assert len(a.connection.attempts) == 7, "a renewal is one request"
    await a.kill()


@pytest.mark.case("runtime-27", "abc")
@pytest.mark.parametrize("seed", range(8))
def test_a_standby_takes_over_after_the_lease_has_expired(seed: int):
    @virtual_time
    async def scenario() -> None:
        server = Leases()
        a, b = Replica(server, "a"), Replica(server, f"b{seed}")
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(20 + seed / 3)
        assert not b.elector.leading
        await a.kill()
        killed = asyncio.get_running_loop().time()
        last_write = server.writes[-1][0]
        await asyncio.sleep(30)
        # The standby reads the lease at least every 0.8 s, so it observes the last change at most that late.
        assert b.led_from is not None
        assert last_write + 15 <= b.led_from <= killed + 15 + 1 + 1
        assert b.led_from > killed
        observed = min(at for at in b.connection.attempts if at >= last_write)
        assert 15 <= b.led_from - observed <= 15 + 1
        assert server.leases["lease"]["spec"]["leaseTransitions"] == 1
        assert b.said.messages == [f"lease: b{seed} became leader"]
        await b.kill()

    scenario()


@pytest.mark.case("runtime-28", "ac")
@virtual_time
async def test_a_stolen_lease_ends_the_leadership_and_is_left_alone():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    stolen = server.store("lease", {**server.leases["lease"]["spec"], "holderIdentity": "thief"})
    await asyncio.sleep(3)
    assert a.lost_at is not None
    assert a.lost_at < 7.5
    assert a.gauge() == 0
    with pytest.raises(NotLeaderError):
        a.elector.gate()
    await a.elector.release()
    assert server.leases["lease"] == stolen
    assert a.said.messages == ["lease: a became leader", "lease: a stopped leading"]
    slow = a.metrics.registry.get_sample_value("leader_election_slowpath_total", {"name": "lease"})
    assert slow == 1


ERRORS = {"cut": "ConnectionRefusedError: connection refused", "hangs": "TimeoutError: no answer in time"}
"""What the log says of a request by the state of the connection."""


@pytest.mark.case("runtime-29", "a")
@pytest.mark.parametrize("how", ERRORS)
def test_writes_stop_ten_seconds_after_the_last_renewal(how: str):
    @virtual_time
    async def scenario() -> None:
        server = Leases()
        a = Replica(server, "a")
        a.start()
        await asyncio.sleep(5)
        renewed = server.writes[-1][0]
        setattr(a.connection, how, True)
        with capture_logs() as logged:
            while asyncio.get_running_loop().time() < renewed + 9.9:
                a.elector.gate()
                await asyncio.sleep(0.1)
            await asyncio.sleep(renewed + 10 - asyncio.get_running_loop().time())
        said = {each["error"] for each in logged if each["event"] == "lease not renewed"}
        assert said == {ERRORS[how]}
        with pytest.raises(NotLeaderError):
            a.elector.gate()
        await asyncio.sleep(0.1)
        assert a.lost_at == pytest.approx(renewed + 10, abs=0.1)
        # The leader did try to renew, at least once per retry period or call timeout.
        tries = [at for at in a.connection.attempts if at > renewed]
        assert len(tries) >= (4 if how == "cut" else 2)

    scenario()


@pytest.mark.case("runtime-29", "c")
@pytest.mark.parametrize("how", ERRORS)
def test_an_outage_of_eight_seconds_does_not_cost_the_leadership(how: str):
    @virtual_time
    async def scenario() -> None:
        server = Leases()
        a = Replica(server, "a")
        a.start()
        await asyncio.sleep(5)
        renewed = server.writes[-1][0]
        setattr(a.connection, how, True)
        await asyncio.sleep(renewed + 8 - asyncio.get_running_loop().time())
        setattr(a.connection, how, False)
        await asyncio.sleep(20)
        assert a.lost_at is None
        a.elector.gate()
        await a.kill()

    scenario()


@pytest.mark.case("runtime-30", "ac")
@pytest.mark.parametrize("jump", [3600, -3600])
def test_wall_clock_jumps_change_nothing_but_timestamps(jump: float):
    @virtual_time
    async def scenario() -> None:
        server = Leases()
        a, b = Replica(server, "a"), Replica(server, "b")
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(10)
        before = server.leases["lease"]["spec"]["renewTime"]
        a.clock.jump(jump)
        await asyncio.sleep(10)
        after = server.leases["lease"]["spec"]["renewTime"]
        assert (after > before) == (jump > 0)
        b.clock.jump(jump)
        await asyncio.sleep(60)
        assert server.holder() == "a"
        assert server.leases["lease"]["spec"]["leaseTransitions"] == 0
        assert not b.elector.leading
        assert all(MICRO.fullmatch(spec["renewTime"]) for _, _, spec in server.writes)
        assert all(MICRO.fullmatch(spec["acquireTime"]) for _, _, spec in server.writes)
        await a.kill()
        await b.kill()

    scenario()


@pytest.mark.case("runtime-31", "a")
@virtual_time
async def test_a_stalled_leader_refuses_its_first_write_and_gives_up():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    a.clock.stall(20)
    with pytest.raises(NotLeaderError):
        a.elector.gate()
    attempts = len(a.connection.attempts)
    await asyncio.sleep(0.1)
    assert a.lost_at is not None
    assert len(a.connection.attempts) == attempts, "it does not try to renew"


@virtual_time
async def test_a_clean_stop_releases_the_lease_and_the_standby_acquires_it_at_its_next_try():
    server = Leases()
    a, b = Replica(server, "a"), Replica(server, "b")
    a.start()
    await asyncio.sleep(1)
    b.start()
    await asyncio.sleep(5)
    await a.stop()
    spec = server.leases["lease"]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 0)
    stopped = asyncio.get_running_loop().time()
    await asyncio.sleep(10)
    assert b.led_from is not None
    assert b.led_from - stopped <= 1
    assert server.leases["lease"]["spec"]["leaseTransitions"] == 1
    await b.kill()


@virtual_time
async def test_a_standby_that_gets_no_answer_waits_as_client_go_does():
    server = Leases()
    b = Replica(server, "b")
    b.connection.cut = True
    b.start()
    await asyncio.sleep(60)
    pauses = [later - at for at, later in pairwise(b.connection.attempts)]
    assert 60 / 4.5 <= len(pauses) <= 60 / 2
    assert min(pauses) >= 2
    await b.kill()


@virtual_time
async def test_release_does_not_touch_a_lease_held_by_another_replica():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    await a.kill()
    taken = server.store("lease", {**server.leases["lease"]["spec"], "holderIdentity": "b"})
    await a.elector.release()
    assert server.leases["lease"] == taken


@virtual_time
async def test_release_retries_after_a_conflict():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    await a.kill()
    replace = a.connection.replace
    touched: list[Json] = []

    async def touch_then_replace(_resource: Resource, body: Json) -> Json:
        if not touched:
            touched.append(server.store("lease", server.leases["lease"]["spec"]))
        return await replace(_resource, body)

    a.connection.replace = touch_then_replace  # type: ignore[method-assign]  # the race
    await a.elector.release()
    assert touched
    assert server.holder() == ""


@virtual_time
async def test_release_gives_up_when_the_server_is_unreachable():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    await a.kill()
    a.connection.hangs = True
    began = asyncio.get_running_loop().time()
    await a.elector.release()
    assert asyncio.get_running_loop().time() - began <= 5.1


@pytest.mark.case("runtime-33", "a")
@virtual_time
async def test_several_leases_are_acquired_in_order_and_lost_together():
    server = Leases()
    names = ("mpi-operator", "12841a5d.opendilab.org", "1ca428e5.training-operator.kubeflow.org")
    first, second, third = sorted(names)
    server.store(second, {"holderIdentity": "old operator", "leaseDurationSeconds": 15})
    a, b = Replica(server, "a", *names), Replica(server, "b", *reversed(names))

    async def renew_old() -> None:
        for _ in range(10):
            await asyncio.sleep(2)
            server.store(second, {"holderIdentity": "old operator", "leaseDurationSeconds": 15, "renewTime": str(_)})

    old = asyncio.create_task(renew_old())
    a.start()
    await asyncio.sleep(0.1)
    b.start()
    await asyncio.sleep(18)
    assert [server.holder(name) for name in (first, second, third)] == ["a", "old operator", None]
    assert [a.gauge(name) for name in (first, second, third)] == [0, 0, 0]
    with pytest.raises(NotLeaderError):
        a.elector.gate()
    await old
    await asyncio.sleep(30)
    assert [server.holder(name) for name in (first, second, third)] == ["a", "a", "a"]
    a.elector.gate()
    assert [a.gauge(name) for name in (first, second, third)] == [1, 1, 1]
    server.store(second, {**server.leases[second]["spec"], "holderIdentity": "thief"})
    await asyncio.sleep(3)
    assert a.lost_at is not None
    assert [a.gauge(name) for name in (first, second, third)] == [0, 0, 0]
    await a.elector.release()  # as the manager does once the workers have ended
    assert [server.holder(name) for name in (first, second, third)] == ["", "thief", ""]
    await asyncio.sleep(5)
    assert server.holder(first) == "b"
    assert not b.elector.leading
    await b.kill()


@pytest.mark.parametrize("how", ERRORS)
def test_an_unreachable_server_at_the_start_is_retried(how: str):
    @virtual_time
    async def scenario() -> None:
        server = Leases()
        a = Replica(server, "a")
        setattr(a.connection, how, True)
        a.start()
        await asyncio.sleep(60)
        assert not a.elector.leading
        pauses = [after - before for before, after in pairwise(a.connection.attempts)]
        assert all(2 <= pause <= 4.5 + (5 if how == "hangs" else 0) for pause in pauses)
        setattr(a.connection, how, False)
        await asyncio.sleep(10)
        assert server.holder() == "a"
        await a.kill()

    scenario()


@virtual_time
async def test_a_deleted_lease_is_recreated_by_the_leader():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    del server.leases["lease"]
    await asyncio.sleep(5)
    assert a.lost_at is None
    assert server.holder() == "a"
    await a.kill()


@virtual_time
async def test_a_transient_failure_to_recreate_the_lease_does_not_cost_the_leadership():
    """After one 500 on create, leadership lasts until the renew deadline; meanwhile writes are refused."""
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    a.connection.refusals = 1
    del server.leases["lease"]
    await until(lambda: not a.connection.refusals)
    assert a.elector.leading
    with pytest.raises(NotLeaderError, match="deleted or emptied"):
        a.elector.gate()
    await until(lambda: server.holder() == "a")
    await asyncio.sleep(0.1)
    a.elector.gate()
    assert a.lost_at is None
    await a.kill()


@virtual_time
async def test_a_lease_that_cannot_be_recreated_costs_the_leadership_at_the_deadline():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    (renewed_at, _, _), before = server.writes[-1], len(a.connection.attempts)
    a.connection.refusals = 1_000
    del server.leases["lease"]
    await until(lambda: a.lost_at is not None)
    assert a.lost_at == pytest.approx(renewed_at + 10, abs=0.05)
    assert len(a.connection.attempts) - before <= 3 * 5, "a write, a read and a write every two seconds"


@virtual_time
async def test_a_deleted_lease_acquired_by_another_costs_the_leadership_at_the_next_renewal():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    a.connection.refusals = 1
    del server.leases["lease"]
    await until(lambda: not a.connection.refusals)
    server.store("lease", {"holderIdentity": "b", "leaseDurationSeconds": 15})
    taken = asyncio.get_running_loop().time()
    await until(lambda: a.lost_at is not None)
    assert a.lost_at is not None
    assert a.lost_at - taken <= 2.1


@virtual_time
async def test_a_lease_with_an_emptied_spec_is_acquired_again():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    server.store("lease", {**server.leases["lease"]["spec"], "holderIdentity": ""})
    await asyncio.sleep(5)
    assert a.lost_at is None
    assert server.holder() == "a"
    await a.kill()


LIES: list[Any] = [
    {},
    [],
    {"kind": "Status", "status": "Failure"},
    {"metadata": {"name": "lease"}, "spec": {"holderIdentity": "b"}},
    {"metadata": {"name": "other", "resourceVersion": "1"}, "spec": {"holderIdentity": "b"}},
    {"metadata": {"name": "lease", "resourceVersion": "1"}, "spec": []},
    {"metadata": {"name": "lease", "resourceVersion": "1"}, "spec": {"leaseDurationSeconds": 10**400}},
    {"metadata": {"name": "lease", "resourceVersion": "1"}, "spec": {"leaseTransitions": "many"}},
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: str(lie)[:60])
def test_responses_that_are_not_the_lease_do_not_change_the_leadership(lie: Any):
    @virtual_time
    async def scenario() -> None:
        server = Leases()
        a, b = Replica(server, "a"), Replica(server, "b")
        b.connection.lie = lie
        a.start()
        await asyncio.sleep(5)
        b.start()
        await asyncio.sleep(60)
        assert (b.led_from, b.lost_at) == (None, None)
        a.connection.lie = lie
        await asyncio.sleep(5)
        a.connection.lie = None
        await asyncio.sleep(5)
        assert a.lost_at is None
        assert server.holder() == "a"
        await a.kill()
        await b.kill()

    scenario()


@virtual_time
async def test_a_foreign_update_of_our_lease_is_read_and_renewed():
    server = Leases()
    a = Replica(server, "a")
    a.start()
    await asyncio.sleep(5)
    server.store("lease", {**server.leases["lease"]["spec"], "strategy": "OldestEmulationVersion"})
    await asyncio.sleep(5)
    assert a.lost_at is None
    assert server.leases["lease"]["spec"]["strategy"] == "OldestEmulationVersion"
    await a.kill()


@virtual_time
async def test_liveness_fails_for_a_leader_that_has_not_renewed():
    server = Leases()
    a = Replica(server, "a")
    a.elector.check()
    a.start()
    await asyncio.sleep(5)
    a.elector.check()
    a.clock.stall(40)
    with pytest.raises(UnhealthyError):
        a.elector.check()


@pytest.mark.parametrize(
    "numbers", [{"lease": 10, "renew": 10}, {"lease": 15, "renew": 2, "retry": 2}, {"renew": 2.4, "retry": 2}]
)
def test_invalid_timings_are_refused(numbers: dict[str, Any]):
    with pytest.raises(ValueError, match="has to be longer"):
        Timing(**numbers)


def test_timings_of_mpi_operator_are_valid():
    assert Timing(15, 5, 3) == Timing(lease=15, renew=5, retry=3)


def test_an_elector_needs_a_lease():
    with pytest.raises(ValueError, match="name of a lease"):
        LeaderElector(Connection(Leases()), "ns", (), "a")
