"""A whole cluster in one event loop: API server, nodes, users, and the operator in one or two replicas."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.simulation.afresh import look_afresh
from tests.simulation.di_clients import DiSide
from tests.simulation.di_node import DiNodes
from tests.simulation.ends import end_state
from tests.simulation.facts import owner_of
from tests.simulation.fairness import Fairness
from tests.simulation.families import DI, IN_PLACE, MPI, SURVIVE
from tests.simulation.fate import Fate
from tests.simulation.fault_rates import FAIR
from tests.simulation.gang_scheduler import GangScheduler, kinds_of_groups
from tests.simulation.in_place_node import KEPT, InPlaceNodes
from tests.simulation.job_controller import JobController
from tests.simulation.judge import Judge, Violation
from tests.simulation.logs import logs_into
from tests.simulation.loop import Pause, ProcessLoop, Wall
from tests.simulation.loop import run as run_loop
from tests.simulation.mpi_node import MpiNodes
from tests.simulation.node import Nodes
from tests.simulation.oracle.accounts import Accounts
from tests.simulation.oracle.di_observer import DiObserver
from tests.simulation.oracle.gang_observer import GangObserver
from tests.simulation.oracle.in_place_observer import InPlaceObserver
from tests.simulation.oracle.mpi_observer import MpiObserver
from tests.simulation.oracle.observer import Observer
from tests.simulation.oracle.standstill import StandStill
from tests.simulation.oracle.survive_observer import SurviveObserver
from tests.simulation.replica import Replica, metrics
from tests.simulation.reports import Reports
from tests.simulation.rest import Rest
from tests.simulation.script import NAMESPACE, JobPlan, Script, framework_of
from tests.simulation.shortcuts import kinds_served, undisturbed
from tests.simulation.users import ACTS, Users
from tests.simulation.wire import at_once
from trainop.engine.framework import Framework
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.seen import Options
from trainop.local.api.serving.server import ApiServer
from trainop.local.api.storage.versioned_store import Store, Stored
from trainop.programs.schemes import KINDS
from trainop.programs.settings import Settings
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.objects.metadata import LEASES, NAMESPACES, PODS, Json

CAST: Mapping[
    str, tuple[type[Observer | MpiObserver | DiObserver | SurviveObserver | InPlaceObserver], type[Nodes]]
] = {
    "": (Observer, Nodes),
    MPI: (MpiObserver, MpiNodes),
    DI: (DiObserver, DiNodes),
    SURVIVE: (SurviveObserver, Nodes),
    IN_PLACE: (InPlaceObserver, InPlaceNodes),
}
"""By family of the script: who judges, and who plays the pods."""

DI_SERVERS = 2

HECTIC = 2000
"""Writes that no minute may have, whatever happens in it."""

PATIENCE = 60.0
"""Seconds after which a job that does not move says what it waits for (--waiting-after)."""

ECHO = 8.0
"""Seconds after the last fault of an encore."""


@dataclass(frozen=True)
class Kill:
    """Kills the operator at its `number`th write, `before` or `after` the write is carried out."""

    number: int
    when: str


@dataclass
class Outcome:
    """The outcome of a run."""

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
        self.fault_rates = replace(FAIR, latency=script.fault_rates.latency)
        self.broken: set[str] = set()
        """What does not work: "outage", the API server; "no quorum", all writes; "no admission", new children."""
        self.denied: set[str] = set()
        """Ends of the names of pods that an admission policy refuses; the empty one is the end of all."""
        self.calm = False
        self.calm_at = script.calm_at
        self.trace: list[tuple[float, str, str]] = []
        self.writes: Counter[str] = Counter()
        self._kill = kill
        self._seen_writes = 0
        self.happened = 0
        """What users, nodes and fate have done since the last minute began."""
        self._hectic = 0
        """Writes of this minute."""
        self._minute = (0, 0)
        """Reconciles and writes before this minute."""
        self.busiest = (0, 0)
        self.server = ApiServer(clock=self.clock, rng=random.Random(f"{script.seed}/server"))
        self.store: Store = self.server._backend.store
        self.schemes = tuple(dict.fromkeys(job.kind for job in script.jobs))
        self.frameworks = [framework_of(kind) for kind in self.schemes if kind != "DIJob"]
        self.kinds = [kind for scheme in self.schemes for kind in KINDS[scheme](self.options)]
        self.users = Users(self)
        self.rest = Rest(self)
        self.judge = Judge(self)
        self.in_encore = False
        observer, nodes = CAST[script.family]
        self.observer = observer(Fairness(self), lambda name: self.store.table(name).objects)
        if isinstance(self.observer, SurviveObserver):
            self.observer.led_since = self._led_since
            self.observer.jumps = [step.at for step in script.chaos if step.act == "jump"]
        if isinstance(self.observer, InPlaceObserver):
            self.observer.serves = script.restart_rules == KEPT
        self.nodes = nodes(self, random.Random(f"{script.seed}/nodes"))
        self.job_controller = JobController(self) if script.family == MPI else None
        self.di = DiSide(self, DI_SERVERS) if script.family == DI else None
        self.scheduler = GangScheduler(self) if script.gang else None
        self.gang_observer = self._observe_gang() if self.scheduler else None
        self.standstill = StandStill(Fairness(self), lambda name: self.store.table(name).objects, PATIENCE)
        self.reports = Reports(self) if script.reports else None
        self.fate = Fate(self)
        self.replicas = [Replica(self, f"op{number + 1}") for number in range(script.replicas)]
        self._serving: asyncio.Task[None]

    # The run ----------------------------------------------------------------------------------------------------------

    async def play(self, afresh: bool) -> Outcome:
        self._set_up()
        self.loop.on_spin = self._stop_spinning
        self.loop.outside(self.script.storm_at, self._storm)
        for plan in self.script.jobs:
            self.users.follow(plan)
        for number, step in enumerate(self.script.chaos):
            self.loop.outside(step.at, self.fate.strike, number, step)
        for number, replica in enumerate(self.replicas):
            self.loop.outside(0.7 * number, replica.start)
        self._minute = self._totals()
        self.loop.outside(60.0, self._end_minute)
        if self.reports is not None:
            self.reports.begin()
        await Pause(self.loop, self.script.calm_at)
        if self.script.standing:
            await Pause(self.loop, 2 * self.standstill.longest)
            self.standstill.look()
        else:
            await self._come_to_rest()
        self._judge_minute()
        end = end_state(self)
        if afresh and not self.judge.violations and not self.script.standing:
            look_afresh(self)
        writes = sum(self.writes.values())
        lasted = self.loop.time()
        await self._take_down()
        return Outcome(self.judge.violations, end, self.trace, writes, lasted, self.busiest)

    async def _come_to_rest(self) -> None:
        """Without faults, all becomes as specified; a job that does not go on then says why."""
        self._clear_up()
        if self.reports is not None:
            await self.reports.finish()
        await self.rest.settle()
        self._look()
        if self.script.encore and self.nodes.at_work() and not self.judge.violations:
            await self._play_encore()
            self._look()
        if self.standstill.silent() and not self.judge.violations:
            await Pause(self.loop, self.standstill.longest)
            await self.rest.settle()
            self.standstill.look()

    def _observe_gang(self) -> GangObserver:
        assert self.scheduler is not None, "asked for by a script with a gang scheduler only"
        fairness = Fairness(self, patient=True)
        gang = self.scheduler.scheduler
        return GangObserver(fairness, lambda name: self.store.table(name).objects, gang.name, str(gang.groups))

    def _stop_spinning(self) -> None:
        self.judge.flag("no hot loop", "something is done again and again, and hardly any time passes")
        for replica in self.replicas:
            replica.end()

    def _set_up(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        at_once(self.users.client.create(NAMESPACES, namespace))
        for scheme in self.schemes:
            for kind in kinds_served(scheme):
                self.server._backend.registry.add(kind)
        listeners = (
            self.rest,
            self.judge,
            self.observer,
            self.gang_observer,
            self.standstill,
            Accounts(self.judge.flag, exact=not self.script.jumps),
            self.nodes,
            self.scheduler,
            self.reports,
        )
        for listener in (each for each in listeners if each is not None):
            self.store.listen(listener)
        if self.scheduler is not None:
            for kind in kinds_of_groups(self.scheduler.groups):
                self.server._backend.registry.add(kind)
        self._serving = self.loop.create_task(self.server.run())
        if self.job_controller is not None:
            self.job_controller.start()
        if self.di is not None:
            self.di.set_up()

    def _storm(self) -> None:
        self.fault_rates = self.script.fault_rates

    def _clear_up(self) -> None:
        """End all faults."""
        self.note("fate", "calm")
        self.calm_at = self.rest.changed_at = (
            self.loop.time()
        )  # a replica that has just restarted still has to reconcile
        self.calm = True
        self.fault_rates = replace(FAIR, latency=self.script.fault_rates.latency)
        self.broken.clear()
        self.denied.clear()
        for each in (self.job_controller, self.scheduler, self.di):
            if each is not None:
                each.recover()
        for replica in self.replicas:
            self.loop.thaw(replica.process)
            replica.clock.offset = 0.0
            if replica.runs:
                replica.wire.freezes = None
            replica.start()

    async def _play_encore(self) -> None:
        self.calm, self.in_encore = False, True
        owner = self.job_of(self.nodes.at_work()[0].value) or {}
        plan = next(plan for plan in self.script.jobs if plan.name == owner["metadata"]["name"])
        lasts = max(step.at + step.lasts for step in self.script.encore)
        for number, step in enumerate(self.script.encore, start=len(self.script.chaos)):
            if step.act in ACTS:
                self.loop.outside(step.at, self.users.act, plan, step)
            else:
                self.loop.outside(step.at, self.fate.strike, number, step)
        await Pause(self.loop, lasts + ECHO)
        self._clear_up()
        await self.rest.settle()

    def _look(self) -> None:
        """Run the checks for a cluster at rest."""
        if not self.judge.violations:
            self.observer.look()
            if self.gang_observer is not None:
                self.gang_observer.look()

    async def _take_down(self) -> None:
        for each in (self.job_controller, self.di):
            if each is not None:
                each.end()
        for replica in self.replicas:
            replica.end()
        await Pause(self.loop, 3.0)
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await self.server.close()

    @property
    def options(self) -> Options:
        gang = choose_scheduler(self.script.gang)
        return Options(force_delete_after=self.script.force_delete_after, gang=gang, waiting_after=PATIENCE)

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
            schemes=self.schemes,
            hostname=life,
            options=self.options,
        )

    @property
    def is_killed(self) -> bool:
        """Whether the operator is killed at one of its writes."""
        return self._kill is not None

    # What happens -----------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        self.trace.append((self.loop.time(), who, what))

    def serve(self, process: str, request: Request) -> Response | Stream:
        """The immediate response of the API server."""
        read = self.nodes.read_rules(request) if isinstance(self.nodes, InPlaceNodes) else request
        answer: Response | Stream = read if isinstance(read, Response) else at_once(self.server.answer(read))
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
        replica.kill(requeue_after=1.0)
        return True

    @property
    def version(self) -> int:
        return self.store.version

    def _totals(self) -> tuple[int, int]:
        kinds = (metrics().controller(kind.controller) for kind in self.kinds)
        reconciles = sum(int(result._value.get()) for kind in kinds for result in kind.results.values())
        return reconciles, sum(self.writes.values())

    def count_write(self, process: str) -> None:
        """Stop a process that writes in a loop before its simulation takes minutes."""
        self.writes[process] += 1
        self._hectic += 1
        if self._hectic == HECTIC:
            self._stop_spinning()

    def _end_minute(self) -> None:
        self._judge_minute()
        self.loop.outside(60.0, self._end_minute)

    def _judge_minute(self) -> None:
        """Work is bounded by what happens, and there is hardly any when nothing does."""
        before, self._minute = self._minute, self._totals()
        reconciles, writes = self._minute[0] - before[0], self._minute[1] - before[1]
        happened, self.happened, self._hectic = self.happened, 0, 0
        self.busiest = max(self.busiest[0], reconciles), max(self.busiest[1], writes)
        if reconciles > 60 + 20 * happened or writes > 40 + 12 * happened:
            text = f"{reconciles} reconciles and {writes} writes in a minute in which {happened} things have happened"
            self.judge.flag("no hot loop", text)

    def mark_deleted(self, stored: Stored) -> None:
        """Delete the pod as another client, with its grace period."""
        at_once(self.users.client.delete(PODS, stored.key[1], stored.key[0], uid=stored.uid))

    # What there is ----------------------------------------------------------------------------------------------------

    @property
    def elects(self) -> bool:
        return self.script.replicas > 1

    def framework_of(self, kind: str) -> Framework:
        return framework_of(kind)

    def job_named(self, plan: JobPlan) -> Json | None:
        stored = self.store.get(str(plan.resource), (NAMESPACE, plan.name))
        return stored.value if stored else None

    def jobs(self) -> list[Json]:
        return [job for plan in self.script.jobs if (job := self.job_named(plan)) is not None]

    def job_of(self, pod: Json) -> Json | None:
        """The job that controls the pod, also by a batch Job, if it is there."""
        owner = owner_of(pod)
        found = self.store.find_by_uid(owner["uid"]) if owner else None
        stored = self.store.get(*found) if found else None
        if found is not None and stored is not None and found[0] == "jobs.batch":
            return self.job_of(stored.value)
        return stored.value if stored else None

    def _led_since(self) -> float:
        """When the process that leads was started, or the youngest if none leads."""
        leaders = [each for each in self.replicas if each.runs and each.is_master]
        return max(each.started_at for each in leaders or self.replicas)

    def lease_holder(self) -> str:
        """The process that holds the lease; empty if none does, or without leader election."""
        if not self.elects:
            return ""
        leases = self.store.table(str(LEASES)).objects.items()
        found = [stored.value["spec"] for (namespace, _), stored in leases if namespace == NAMESPACE]
        holders = [str(spec.get("holderIdentity") or "") for spec in found]
        return holders[0].rpartition("_")[0] if holders else ""


def play(script: Script, *, kill: Kill | None = None, everything: bool = False, afresh: bool = True) -> Outcome:
    """Plays the script to its end; `afresh` looks at that with new eyes."""
    worlds: list[World] = []

    async def main(loop: ProcessLoop) -> Outcome:
        world = World(loop, script, kill)
        worlds.append(world)
        return await world.play(afresh)

    with (
        undisturbed(tracks=script.family == "mpi"),
        logs_into(lambda: worlds[-1] if worlds else None, everything=everything),
    ):
        outcome = run_loop(main)
        worlds.clear()
        return outcome
