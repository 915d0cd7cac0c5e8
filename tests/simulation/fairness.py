"""What the observer knows of a run besides the objects: the time, whether faults are active, and where to report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation import intruders
from tests.simulation.fate import OF_PODS
from tests.simulation.fault_rates import FAIR
from tests.simulation.loop import EPOCH

if TYPE_CHECKING:
    from tests.simulation.world import World

STARTED = 3.0
"""Seconds after which the operator leads and its caches are full, if nothing goes wrong."""


class Fairness:
    """Implements `oracle.observer.Setting`."""

    zero = EPOCH

    def __init__(self, world: World) -> None:
        self._world = world
        script = world.script
        self.exact = not script.jumps
        only_pods = all(step.act in (OF_PODS | intruders.ACTS | {"deny"}) - {"vanish unseen"} for step in script.chaos)
        self._fair = only_pods and not world.is_killed and replace(script.fault_rates, latency=FAIR.latency) == FAIR

    def now(self) -> float:
        return self._world.loop.time()

    def fair_since(self) -> float:
        return STARTED if self._fair and not self._world.in_encore else math.inf

    def flag(self, rule: str, text: str) -> None:
        self._world.judge.flag(rule, text)
