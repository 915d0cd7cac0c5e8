"""Remembers what the API server has said about the children of a job, for the plans of its next passes.

A plan is made from objects. A child that the API server refuses is none, and the fields that it drops from a pod are in
no object. Events soon expire, so that conditions repeat both (`trainop.engine.waiting`, `template_condition`).
"""

from __future__ import annotations

from dataclasses import replace

from trainop.controllers.job_state import JobStates
from trainop.controllers.outcome import Outcome
from trainop.engine.actions import Wait
from trainop.engine.seen import Snapshot
from trainop.engine.waiting import CREATION_FAILED


class Obstacles:
    """One per controller. What it remembers is kept in `JobState` and forgotten with the process."""

    def __init__(self, states: JobStates, *, shows_taken: bool = False) -> None:
        """`shows_taken`: plans show the names that objects of others have (`Kind.shows_taken`)."""
        self._states = states
        self._shows_taken = shows_taken

    def show(self, seen: Snapshot) -> Snapshot:
        """Adds the obstacle of the last pass, the names that it found to be taken, and the fields that were dropped
        (`Reporter.dropped_fields`)."""
        state = self._states.find(seen.job.metadata.uid)
        if state is None or not (state.obstacle or state.taken or state.dropped_fields):
            return seen
        return replace(seen, obstacle=state.obstacle, taken=state.taken, dropped_fields=state.dropped_fields or {})

    def record(self, seen: Snapshot, outcome: Outcome) -> None:
        """Records the outcome of a pass. The obstacle lasts while refused creates are held back."""
        state = self._states.ensure(seen.job.metadata.uid)
        if state.taken != outcome.taken:
            state.taken = frozenset(outcome.taken)
            if self._shows_taken:
                outcome.wait(0.0)  # the next plan shows them
        what, why = outcome.obstacle
        if not what and outcome.errors:
            what, why = "The API server does not carry out what the job needs", str(outcome.errors[0])
        if what:
            since = (state.obstacle.since if state.obstacle else None) or seen.now
            state.obstacle = Wait(CREATION_FAILED, what, why, since)
            left = seen.options.waiting_after - (seen.now - since).total_seconds()
            if left > 0:  # the next attempt may be later than the moment at which the job has to say it
                outcome.wait(left)
        elif not outcome.held_back:
            state.obstacle = None
