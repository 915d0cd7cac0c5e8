"""Injects faults into the operator, the API server and pods at the times of the script."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation import di_clients, gang_scheduler, in_place_node, intruders, mpi_users
from tests.simulation.node import Nodes
from tests.simulation.planned_reports import REPORT, report
from tests.simulation.replica import Replica
from tests.simulation.script import Step

if TYPE_CHECKING:
    from tests.simulation.world import World

OF_PODS = {"evict", "preempt", "vanish", "vanish unseen", "delete pod", "drain", "node"}
OF_USERS = intruders.ACTS | intruders.LASTING | mpi_users.ACTS | di_clients.ACTS
OF_OBJECTS = OF_PODS | in_place_node.ACTS | gang_scheduler.ACTS | OF_USERS
OF_JOBS = {"jobs away", "jobs slow"}
"""What befalls the controller of batch Jobs."""
BREAKDOWNS = {"outage", "no quorum", "no admission", "deny"}


class Fate:
    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, number: int, step: Step) -> None:
        """Carry out the fault with this number in the script."""
        world = self._world
        rng = random.Random(f"{world.script.seed}/chaos/{number}")
        if step.act in OF_OBJECTS:
            if not self._strike_objects(step, rng):
                if world.loop.time() + 2.0 < world.script.calm_at:
                    world.loop.outside(2.0, self.strike, number, step)
            elif step.act == "vanish unseen":
                self._compact()  # so that only a list can tell
            return
        world.note("fate", f"{step.act} {step.subject} {step.value or ''}")
        world.happened += 1
        if step.act == "compact":
            self._compact()
        elif step.act == "contention":
            world.fault_rates = replace(world.fault_rates, conflict=1.0)
        elif step.act in OF_JOBS | di_clients.OF_SERVERS | {REPORT}:
            self._strike_others(step)
        elif step.act in BREAKDOWNS:
            self._break_down(step)
        elif (replica := self._named(step.subject)) is not None:
            self._strike_replica(replica, step, rng)

    def _strike_others(self, step: Step) -> None:
        """Something befalls a process that is not the operator, or is done by it."""
        if step.act == REPORT:
            report(self._world, step)
            return
        jobs, di = self._world.job_controller, self._world.di
        if di is not None and step.act in di_clients.OF_SERVERS:
            di.strike_server(step)
        elif jobs is not None:
            (jobs.leave if step.act == "jobs away" else jobs.slow_down)(step.value)

    def _strike_objects(self, step: Step, rng: random.Random) -> bool:
        """Returns False if there is nothing to strike yet."""
        world = self._world
        if step.act in OF_PODS | in_place_node.ACTS:
            strike = in_place_node.strike if step.act in in_place_node.ACTS else Nodes.strike
            return strike(world.nodes, step.act, rng, step.value or 0.0)
        if step.act in mpi_users.ACTS:
            return mpi_users.meddle(world, step.act, rng)
        if step.act in di_clients.ACTS:
            return world.di is None or world.di.strike(step, rng)
        if step.act in gang_scheduler.ACTS:
            return world.scheduler is None or world.scheduler.strike(step.act, rng, step.value or 0.0)
        if step.act in intruders.LASTING:
            return intruders.impede(world, step.act, step.value, rng, world.nodes.at_work())
        return intruders.intrude(world, step.act, rng, world.nodes.at_work())

    def _named(self, name: str) -> Replica | None:
        """The named replica (`leader` or `standby`); None if no replica leads."""
        replicas = [each for each in self._world.replicas if each.runs and (name != "leader" or each.is_master)]
        return next((each for each in replicas if name in {each.name, "leader"}), None)

    def _break_down(self, step: Step) -> None:
        if step.act == "deny":
            self._deny(*step.value)
            return
        broken = self._world.broken
        broken.add(step.act)
        if step.act == "outage":
            self._cut_all()
        self._world.loop.outside(step.value, broken.discard, step.act)

    def _deny(self, seconds: float, ending: str) -> None:
        """Let an admission policy refuse pods whose names have this ending."""
        denied = self._world.denied
        denied.add(ending)
        self._world.loop.outside(seconds, denied.discard, ending)

    def _strike_replica(self, replica: Replica, step: Step, rng: random.Random) -> None:
        match step.act:
            case "jump":
                replica.clock.offset += step.value
            case "kill":
                replica.kill(requeue_after=rng.uniform(0.1, 10))
            case "stop":
                replica.stop()
            case "cut":
                replica.wire.cut()
            case "lag":
                replica.wire.lag(*step.value)
            case "freeze":
                seconds, writing = step.value
                if writing:
                    replica.wire.freezes = seconds
                else:
                    replica.freeze(seconds)

    def _compact(self) -> None:
        """Compact the history of the API server and break all watches."""
        self._world.server.compact()
        self._cut_all()

    def _cut_all(self) -> None:
        for replica in self._world.replicas:
            if replica.runs:
                replica.wire.cut()
