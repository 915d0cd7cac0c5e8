"""The current time for the deadlines of a job, immune to steps of the wall clock while the job runs.

The wall clock is stepped by NTP or an administrator. Without this, a step forward would expire deadlines of running
jobs, and a step backward would delay them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from trainop.controllers.job_state import JobStates
from trainop.engine.limits import is_under_way
from trainop.runtime import Clock, Unstructured

MAX_DRIFT = 1.0
"""Seconds. A smaller change of the offset between two passes is drift of the clocks, and is followed."""


class JobClock:
    """One per controller.

    Deadlines and times to live are measured from timestamps in the status: start, completion, last restart. These are
    wall-clock times, because they must outlive the process. For each running job this remembers the offset between
    wall clock and monotonic clock, taken when the job started or when this process first reconciled it. `now` applies
    that offset to the monotonic clock, so that a step of the wall clock moves no deadline, and all timestamps of one
    run of a job are consistent. A job that starts or is resumed after the step uses the new wall clock.

    Timestamps from before the start of this process are compared with the wall clock of the first reconcile, for lack
    of anything better. One offset for the whole process would be simpler, but after a wrong clock is corrected, new
    jobs would get wrong timestamps until the next restart.
    """

    def __init__(self, states: JobStates, clock: Clock) -> None:
        self._states = states
        self._clock = clock

    def now(self, job: Unstructured) -> datetime:
        """The current time for this job, in UTC. The wall clock if the job was not reconciled yet."""
        wall = self._clock.now()
        offset = wall.timestamp() - self._clock.monotonic()
        state = self._states.find(job.metadata.uid)
        if state is None:
            return wall
        kept = offset if state.clock_offset is None else state.clock_offset
        if abs(offset - kept) < MAX_DRIFT or not is_under_way(job, wall):
            state.clock_offset = offset
            return wall
        return wall - timedelta(seconds=offset - kept)
