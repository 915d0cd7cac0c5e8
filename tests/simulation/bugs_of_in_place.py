"""Planted bugs of jobs that restart in place (docs/survive.md)."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.simulation.in_place_draw import draw_in_place
from tests.simulation.planting import bug, patch
from trainop.controllers import consequences
from trainop.engine import assess, evidence, in_place
from trainop.engine.children import RoleSlots
from trainop.engine.in_place import Burst
from trainop.engine.restart_history import RestartHistory

of_in_place = functools.partial(bug, draw=draw_in_place)
find_burst = in_place.find_burst


@of_in_place("The restart of a job in place is counted anew for each rank that fails after the first.")
def in_place_counted_by_rank():
    """A pass notes no beginning, so that the next one finds another."""

    def begin(self: RestartHistory, role: str, now: datetime) -> None:
        self.begin_round(role, now, now)
        self.changed = True

    return patch(RestartHistory, "begin_burst", begin)


@of_in_place("Restarts of containers in their pods are not noticed.")
def in_place_missed():
    return patch(assess, "find_burst", lambda *_, **__: None)


@of_in_place("What restarted in a restart in place is not noted when it is over, so that it begins again.")
def in_place_begins_again():
    def settle(self: RestartHistory, _restarts: Any) -> None:
        self.burst = None
        self.changed = True

    return patch(RestartHistory, "settle_in_place", settle)


@of_in_place("A rank that hangs while the others restart in place is waited for without end.")
def in_place_without_time_out():
    return patch(in_place, "BURST_TIMEOUT", 1e6)


@of_in_place("All pods are recreated as soon as a rank fails, although they could restart in place.")
def in_place_recreated_at_once():
    def find(all_slots: list[RoleSlots], history: RestartHistory, now: datetime, *, told: bool) -> Burst | None:
        burst = find_burst(all_slots, history, now, told=told)
        return burst and replace(burst, why="it is planted")

    return patch(assess, "find_burst", find)


@of_in_place("A job that fails in place again and again has no back-off.")
def in_place_without_back_off():
    return patch(RestartHistory, "is_soon", lambda *_: False)


@of_in_place("A job restarts in place without saying which rank failed.")
def in_place_without_cause():
    return patch(evidence, "_find_cause_of_burst", lambda *_: None)


@of_in_place("Rules that the API server drops count as kept.")
def dropped_rules_unnoticed():
    return patch(consequences, "keeps_rules", lambda _pod: True)


@of_in_place("A restart in place ends when the ranks have failed, before they run.")
def in_place_over_too_early():
    return patch(in_place, "_runs", lambda *_: True)


@of_in_place("A replica that restarts in place is waited for by its container alone, not by those of the others.")
def in_place_alone():
    def find(all_slots: list[RoleSlots], history: RestartHistory, now: datetime, *, told: bool) -> Burst | None:
        burst = find_burst(all_slots, history, now, told=told)
        return burst and replace(burst, settled=True, why="")

    return patch(assess, "find_burst", find)
