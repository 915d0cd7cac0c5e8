"""What the observer knows of a run besides the objects: the time, whether faults are active, and where to report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation import di_clients, gang_scheduler, in_place_node, intruders, mpi_users
from tests.simulation.fate import OF_JOBS, OF_PODS
from tests.simulation.fault_rates import FAIR
from tests.simulation.loop import EPOCH

if TYPE_CHECKING:
    from tests.simulation.world import World

STARTED = 3.0
"""Seconds after which the operator leads and its caches are full, if nothing goes wrong."""


class Fairness:
    """Implements `oracle.observer.Setting`."""

    zero = EPOCH

    def __init__(self, world: World, *, patient: bool = False) -> None:
        """`patient`: only what the operator knows matters, not how long it takes others to act."""
        self._world = world
        script = world.script
        self.exact = not script.jumps
        self.gang = bool(script.gang)
        of_others = (
            OF_JOBS | di_clients.ACTS | di_clients.OF_SERVERS | intruders.ACTS | mpi_users.ACTS | gang_scheduler.ACTS
        )
        harmless = (OF_PODS | in_place_node.ACTS | of_others | {"deny"}) - {"vanish unseen"}
        only_pods = all(step.act in harmless for step in script.chaos)
        self._fair = (
            (patient or not script.gang)
            and only_pods
            and not script.standing
            and not world.is_killed
            and replace(script.fault_rates, latency=FAIR.latency) == FAIR
        )

    def now(self) -> float:
        return self._world.loop.time()

    def fair_since(self) -> float:
        return STARTED if self._fair and not self._world.in_encore else math.inf

    def flag(self, rule: str, text: str) -> None:
        self._world.judge.flag(rule, text)
