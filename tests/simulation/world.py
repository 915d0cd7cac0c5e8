"""A whole cluster in one event loop: API server, nodes, users, and the operator in one or two replicas."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from tests.simulation.ends import end_state
from tests.simulation.facts import due_at, owner_of, terminating
from tests.simulation.fate import Fate
from tests.simulation.judge import Judge, Violation
from tests.simulation.logs import logs_into
from tests.simulation.loop import EPOCH, Pause, ProcessLoop, Wall
from tests.simulation.loop import run as run_loop
from tests.simulation.node import Nodes
from tests.simulation.replica import Replica, metrics
from tests.simulation.script import NAMESPACE, JobPlan, Script, Step
from tests.simulation.shortcuts import schemas_compiled_once, undisturbed
from tests.simulation.weather import FAIR
from tests.simulation.wire import at_once
from trainop.engine.crd import crd
from trainop.engine.framework import Framework
from trainop.engine.model import Options
from trainop.local.api.server import ApiServer
from trainop.local.api.store import Change, Store, Stored, Table
from trainop.operator import FRAMEWORKS
from trainop.runtime.client import Client
from trainop.runtime.errors import AlreadyExistsError, NotFoundError
from trainop.runtime.expectations import EXPECTATION_TIMEOUT
from trainop.runtime.objects import Json
from trainop.runtime.resource import CUSTOM_RESOURCE_DEFINITIONS, LEASES, NAMESPACES, PODS
from trainop.runtime.transport import Request, Response, Stream
from trainop.settings import Settings

QUIET = 35.0
"""Seconds without a write after which a cluster is at rest, if all watches stand: longer than any second look."""

MOST_RESTLESS = 1500.0
"""Seconds after the faults within which it has to be."""

RECOVERY = 100.0
"""Seconds after the faults within which everything may still be late: back-offs, elections."""

HECTIC = 2000
"""Writes that no minute may have, whatever happens in it."""

PATIENCE = 60.0
"""Seconds within which what a process has seen has to be looked at, longer than any back-off."""

USERS = {"create", "delete", "suspend", "resume"}
"""What users do in an encore, to the first job that has pods."""

ENCORE = 40.0
"""Seconds that one more fault may take."""

UNIMPORTANT = {"leases.coordination.k8s.io", "events"}


@dataclass(frozen=True)
class Kill:
    """Of the operator at its `number`th write, `before` or `after` that is carried out."""

    number: int
    when: str


@dataclass
class Outcome:
    """What came of a run."""

    violations: list[Violation]
    end: Json
    trace: list[tuple[float, str, str]]
    writes: int
    """By the operator, but for leases and events."""
    lasted: float
    """Virtual seconds."""
    busiest: tuple[int, int] = (0, 0)
    """Reconciles, and writes, in the busiest minute."""

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    def lines(self) -> Iterator[str]:
        for at, who, what in self.trace:
            yield f"{at:9.3f}  {who:8} {what}"


class World:
    """Plays one script."""

    def __init__(self, loop: ProcessLoop, script: Script, kill: Kill | None = None) -> None:
        self.loop = loop
        self.script = script
        self.clock = Wall(loop)
        self.weather = replace(FAIR, latency=script.weather.latency)
        self.broken: set[str] = set()
        """What does not work: "outage", the API server; "no quorum", all writes; "no admission", new children."""
        self.calm = False
        self.calm_at = script.calm_at
        self.trace: list[tuple[float, str, str]] = []
        self.writes: Counter[str] = Counter()
        self._kill = kill
        self._seen_writes = 0
        self._changed_at = 0.0
        self._attentive_at = 0.0
        """When nobody waited for what was there."""
        self.happened = 0
        """What users, nodes and fate have done since the last minute began."""
        self._hectic = 0
        """Writes of this minute."""
        self.busiest = (0, 0)
        self.server = ApiServer(clock=self.clock, rng=random.Random(f"{script.seed}/server"))
        self.store: Store = self.server._backend.store
        self.users = Client(self.server.transport(), clock=self.clock, rng=random.Random(f"{script.seed}/users"))
        self.frameworks = [FRAMEWORKS[kind] for kind in dict.fromkeys(job.kind for job in script.jobs)]
        self._expired_before = self._expired()
        self.judge = Judge(self)
        self.nodes = Nodes(self, random.Random(f"{script.seed}/nodes"))
        self.fate = Fate(self)
        self.replicas = [Replica(self, f"op{number + 1}") for number in range(script.replicas)]
        self.wishes: dict[str, deque[Step]] = {}
        """What the users of each job still want to do."""
        self._serving: asyncio.Task[None]

    # The run ----------------------------------------------------------------------------------------------------------

    async def play(self, afresh: bool) -> Outcome:
        self._set_up()
        self.loop.on_spin = self._stop_spinning
        self.loop.outside(self.script.storm_at, self._storm)
        for plan in self.script.jobs:
            self._follow(plan)
        for number, step in enumerate(self.script.chaos):
            self.loop.outside(step.at, self.fate.strike, number, step)
        for number, replica in enumerate(self.replicas):
            self.loop.outside(0.7 * number, replica.start)
        self.loop.outside(60.0, self._count_minute, *self._totals())
        await Pause(self.loop, self.script.calm_at)
        self._clear_up()
        await self._settle()
        if self.script.encore and self.nodes.at_work() and not self.judge.violations:
            await self._play_encore()
        end = end_state(self)
        if afresh and not self.judge.violations:
            await self._look_afresh()
        writes = sum(self.writes.values())
        lasted = self.loop.time()
        await self._take_down()
        return Outcome(self.judge.violations, end, self.trace, writes, lasted, self.busiest)

    def _stop_spinning(self) -> None:
        self.judge.accuse("no hot loop", "something is done again and again, and hardly any time passes")
        for replica in self.replicas:
            replica.end()

    def _set_up(self) -> None:
        with schemas_compiled_once():
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            at_once(self.users.create(NAMESPACES, namespace))
            for framework in self.frameworks:
                at_once(self.users.create(CUSTOM_RESOURCE_DEFINITIONS, crd(framework)))
        for listener in (self._on_change, self.judge, self.nodes):
            self.store.listen(listener)
        self._serving = self.loop.create_task(self.server.run())

    def _storm(self) -> None:
        self.weather = self.script.weather

    def _clear_up(self) -> None:
        """From now on all goes well."""
        self.note("fate", "calm")
        self.calm_at = self._changed_at = self.loop.time()  # who has just come back has still to look
        self.calm = True
        self.weather = replace(FAIR, latency=self.script.weather.latency)
        self.broken.clear()
        for replica in self.replicas:
            self.loop.thaw(replica.process)
            replica.clock.offset = 0.0
            if replica.runs:
                replica.wire.freezes = None
            replica.start()

    async def _play_encore(self) -> None:
        self.calm = False
        owner = self.job_of(self.nodes.at_work()[0].value) or {}
        plan = next(plan for plan in self.script.jobs if plan.name == owner["metadata"]["name"])
        for number, step in enumerate(self.script.encore, start=len(self.script.chaos)):
            if step.act in USERS:
                self.loop.outside(step.at, self._act, plan, step)
            else:
                self.loop.outside(step.at, self.fate.strike, number, step)
        await Pause(self.loop, ENCORE)
        self._clear_up()
        await self._settle()

    async def _settle(self) -> None:
        """Until nothing more happens."""
        while not self.judge.violations:
            await Pause(self.loop, 5.0)
            self.nodes.look()
            if self.loop.time() - self.calm_at > MOST_RESTLESS:
                self.judge.accuse("comes to rest", f"after {MOST_RESTLESS:g} s something still happens or is awaited")
            elif self._rests():
                return

    def _rests(self) -> bool:
        """For some time now nothing has changed, and somebody was there to see to it."""
        now = self.loop.time()
        if not any(each.oversees for each in self.replicas):
            self._attentive_at = now
        elif now > max(self._attentive_at, self.calm_at) + PATIENCE:
            self.judge.accuse("comes to rest", "own writes are awaited, although they have been seen")
        if not all(each.stands for each in self.replicas) or not any(each.leads for each in self.replicas):
            self._changed_at = now
        if any(self.wishes.values()) or self.nodes.busy or now < self._changed_at + QUIET:
            return False
        jobs = [job for plan in self.script.jobs if (job := self.job_named(plan)) is not None]
        awaiting = [job for job in jobs if self._awaits_time(job)]
        return not awaiting

    def _awaits_time(self, job: Json) -> bool:
        """A limit of the job is still to come; one that is long over is a fault of its own."""
        due = due_at(job)
        if due is None:
            return False
        late = (self.clock.now() - due).total_seconds()
        if late > self.patience(due, 5.0) and not self.script.jumps:
            name = job["metadata"]["name"]
            self.judge.accuse("limits on time", f"{name} is past its deadline or time to live by {late:.0f} s")
        return not self.script.jumps or -100 < late < 0

    def patience(self, due: datetime, usual: float) -> float:
        """How late something due then may come: it may take a while after the faults, but no longer. Longest takes a
        child that came and went unseen, which is awaited until the expectation expires."""
        if self._expired() > self._expired_before or any(replica.waits for replica in self.replicas):
            return EXPECTATION_TIMEOUT + RECOVERY
        recovered = self.calm_at + RECOVERY if self.script.chaos or self.script.weather != FAIR else 0.0
        return max(usual, recovered - (due - EPOCH).total_seconds())

    async def _look_afresh(self) -> None:
        """A new operator that sees only the end must find nothing to do. Where wall clocks were set, what depends on
        the time may come at any time."""
        jobs = [job for plan in self.script.jobs if (job := self.job_named(plan)) is not None]
        if self.script.jumps and any(due_at(job) for job in jobs):
            return
        for replica in self.replicas:
            replica.end()
        await Pause(self.loop, 5.0)
        before = self.store.version
        self.weather = FAIR
        fresh = Replica(self, "fresh")
        self.replicas.append(fresh)
        self.script = replace(self.script, replicas=1)
        self._changed_at = 0.0
        fresh.start()
        await Pause(self.loop, 15.0)
        if self._changed_at > 0.0:
            self.judge.accuse("nothing left undone", f"a fresh operator still has to write after version {before}")

    async def _take_down(self) -> None:
        for replica in self.replicas:
            replica.end()
        await Pause(self.loop, 3.0)
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await self.server.close()

    def settings(self, life: str) -> Settings:
        lease, renew, retry = self.script.lease
        return Settings(
            metrics_bind_address="0",
            health_probe_bind_address="0",
            leader_elect=self.elects,
            leader_election_namespace=NAMESPACE,
            leader_lease_duration=lease,
            leader_renew_deadline=renew,
            leader_retry_period=retry,
            schemes=tuple(framework.kind for framework in self.frameworks),
            hostname=life,
            options=Options(force_delete_after=self.script.force_delete_after),
        )

    # What happens -----------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        self.trace.append((self.loop.time(), who, what))

    def serve(self, process: str, request: Request) -> Response | Stream:
        """The API server's answer, there and then."""
        answer: Response | Stream = at_once(self.server.answer(request))
        if request.method != "GET" and "/leases" not in request.path:
            self.note("server", f"{process}: {request.method} {request.path} {answer.status}")
        return answer

    def on_write(self, replica: Replica, when: str) -> bool:
        if self._kill is None or self.calm:
            return False
        if when == "before":
            self._seen_writes += 1
        if (self._seen_writes, when) != (self._kill.number, self._kill.when):
            return False
        self.note("fate", "killed by plan")
        replica.kill(again_in=1.0)
        return True

    @property
    def version(self) -> int:
        return self.store.version

    def _on_change(self, table: Table, change: Change) -> None:
        if table.name not in UNIMPORTANT:
            self._changed_at = self.loop.time()

    def _expired(self) -> int:
        kinds = (metrics().controller(framework.controller) for framework in self.frameworks)
        return sum(int(kind.expectations_expired._value.get()) for kind in kinds)

    def _totals(self) -> tuple[int, int]:
        kinds = (metrics().controller(framework.controller) for framework in self.frameworks)
        reconciles = sum(int(result._value.get()) for kind in kinds for result in kind.results.values())
        return reconciles, sum(self.writes.values())

    def count_write(self, process: str) -> None:
        """Stops who writes and writes before it takes minutes to simulate."""
        self.writes[process] += 1
        self._hectic += 1
        if self._hectic == HECTIC:
            self._stop_spinning()

    def _count_minute(self, reconciles: int, writes: int) -> None:
        """Work is bounded by what happens, and there is hardly any when nothing does."""
        now, happened = self._totals(), self.happened
        self.happened = self._hectic = 0
        self.busiest = max(self.busiest[0], now[0] - reconciles), max(self.busiest[1], now[1] - writes)
        did = now[0] - reconciles, now[1] - writes
        if did[0] > 60 + 20 * happened or did[1] > 40 + 12 * happened:
            text = f"{did[0]} reconciles and {did[1]} writes in a minute in which {happened} things have happened"
            self.judge.accuse("no hot loop", text)
        self.loop.outside(60.0, self._count_minute, *now)

    # Users and fate ---------------------------------------------------------------------------------------------------

    def _follow(self, plan: JobPlan) -> None:
        """The user of a job takes one step after the other."""
        left = self.wishes[plan.name] = deque(step for step in self.script.steps if step.subject == plan.name)
        self.loop.outside(left[0].at, self._take_step, plan)

    def _take_step(self, plan: JobPlan) -> None:
        left = self.wishes[plan.name]
        if not self._act(plan, left[0]):
            self.loop.outside(0.5, self._take_step, plan)
            return
        left.popleft()
        if left:
            self.loop.outside(max(0.0, left[0].at - self.loop.time()), self._take_step, plan)
        self.nodes.look()

    def _act(self, plan: JobPlan, step: Step) -> bool:
        """False if it has to be tried again."""
        resource = plan.framework.resource
        try:
            match step.act:
                case "create":
                    at_once(self.users.create(resource, plan.body(), namespace=NAMESPACE))
                case "delete":
                    at_once(self.users.delete(resource, plan.name, NAMESPACE, propagation=step.value))
                case _:
                    at_once(self.users.patch(resource, plan.name, NAMESPACE, self._patch(plan, step)))
        except AlreadyExistsError:
            job = self.job_named(plan)
            if job is not None and terminating(job):
                return False
        except NotFoundError:
            self.note("user", f"finds no {step.subject} to {step.act}")
            return True
        self.note("user", f"{step.act} {step.subject} {step.value or ''}")
        self.happened += 1
        return True

    def _patch(self, plan: JobPlan, step: Step) -> Json:
        match step.act:
            case "suspend" | "resume":
                return {"spec": {"runPolicy": {"suspend": step.act == "suspend"}}}
            case "scale":
                role, count = step.value
                return {"spec": {plan.framework.replica_specs: {role: {"replicas": count}}}}
        return {"metadata": {"annotations": {"note": f"{step.at:.3f}"}}}

    def mark_deleted(self, stored: Stored) -> None:
        """Somebody else deletes the pod, with its grace period."""
        at_once(self.users.delete(PODS, stored.key[1], stored.key[0], uid=stored.uid))

    # What there is ----------------------------------------------------------------------------------------------------

    @property
    def elects(self) -> bool:
        return self.script.replicas > 1

    def framework_of(self, kind: str) -> Framework:
        return FRAMEWORKS[kind]

    def job_named(self, plan: JobPlan) -> Json | None:
        stored = self.store.get(str(plan.framework.resource), (NAMESPACE, plan.name))
        return stored.value if stored else None

    def job_of(self, pod: Json) -> Json | None:
        """The job that controls the pod, if it is there."""
        owner = owner_of(pod)
        found = self.store.find_uid(owner["uid"]) if owner else None
        stored = self.store.get(*found) if found else None
        return stored.value if stored else None

    def restarts_in_place(self, job: Json) -> bool:
        pods = self.store.table("pods").objects.values()
        mine = (stored.value for stored in pods if (owner_of(stored.value) or {}).get("uid") == job["metadata"]["uid"])
        return any(each["restartCount"] for pod in mine for each in pod["status"].get("containerStatuses") or ())

    def lease_holder(self) -> str:
        """The incarnation that holds the lease; empty if none does, or nobody elects."""
        if not self.elects:
            return ""
        leases = self.store.table(str(LEASES)).objects.values()
        holders = [str(stored.value["spec"].get("holderIdentity") or "") for stored in leases]
        return holders[0].rpartition("_")[0] if holders else ""


def play(script: Script, *, kill: Kill | None = None, everything: bool = False, afresh: bool = True) -> Outcome:
    """Plays the script to its end; `afresh` lets another operator look at that."""
    worlds: list[World] = []

    async def main(loop: ProcessLoop) -> Outcome:
        world = World(loop, script, kill)
        worlds.append(world)
        return await world.play(afresh)

    with logs_into(lambda: worlds[-1] if worlds else None, everything=everything), undisturbed():
        return run_loop(main)
