"""The time by which jobs are judged: a wall clock that nobody sets while a job is under way."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainop.controllers.job_state import JobStates
from trainop.engine.limits import is_under_way
from trainop.runtime.clock import Clock
from trainop.runtime.objects.metadata import Unstructured

STEP = 1.0
"""Seconds. A difference of the clocks that changes by less between two looks is drift, and followed."""


class JobClock:
    """Of one controller.

    What counts for a job is how long ago things were: its start, its end, its last restart. They are stored as times of
    the wall clock, since they must outlive the process. So for each job that is under way this remembers by how much
    the wall clock and the monotonic one differed when that began, or when this process saw the job first, and goes on
    with that difference: a wall clock that is set neither delays a deadline nor ends a job early, and all times of one
    run of a job agree with each other. A job that starts or is resumed later takes the wall clock as it is then.

    What was stamped before this process began, by an earlier one or by others, is compared with the wall clock as it
    was at first sight: nothing better is known of it. One `now` of the whole process would be simpler, but after a
    wrong clock is put right, every job would be stamped with the wrong time until the next restart.
    """

    def __init__(self, states: JobStates, clock: Clock) -> None:
        self._states = states
        self._clock = clock

    def now(self, job: Unstructured) -> datetime:
        wall = self._clock.now()
        offset = wall.timestamp() - self._clock.monotonic()
        state = self._states.find(job.metadata.uid)
        if state is None:
            return wall
        kept = offset if state.clock_offset is None else state.clock_offset
        if abs(offset - kept) < STEP or not is_under_way(job, wall):
            state.clock_offset = offset
            return wall
        return wall - timedelta(seconds=offset - kept)
