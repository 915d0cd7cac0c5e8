"""How long the jobs that are watched for stalls have been silent, by the monotonic clock of this process.

A report is heard when the endpoint of this process takes it, or when the cache shows one that another replica took,
which is up to `delay` seconds later. The silence of a run begins when this process first sees that the job runs: a
process that has just started, or become leader, knows of no silence before. A report may come before the status says
that the job runs, which waits for its pods (`FirstStatuses`): before the first run, it is one of that run.

What lasts too long is examined for `delay` seconds more before it counts, for reports that are on their way. A process
that was frozen meanwhile, or had no time, examines it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainop.controllers.job_state import EarlyReport, JobState, JobStates, Listening
from trainop.engine.seen import Silence, Snapshot
from trainop.engine.stalls import STALLED_AFTER, read_stall_rule
from trainop.engine.status import RESTARTING, RUNNING, Status
from trainop.runtime import Clock, Unstructured
from trainop.runtime.lowlevel import EARLIEST


class Silences:
    """One per controller. What it remembers is kept in `JobState.listening`, only of jobs that ask for it."""

    def __init__(self, states: JobStates, clock: Clock, delay: Callable[[], float]) -> None:
        """`delay` returns the seconds after which a report that any replica takes is in the cache, at the latest."""
        self._states = states
        self._clock = clock
        self._delay = delay

    def see(self, job: Unstructured) -> None:
        """A job as the cache has it now. That it runs may be known long before its next pass."""
        if (state := self._states.find(job.metadata.uid)) is not None:
            self._listen(state, job)

    def hear(self, job: Unstructured, pod: str = "") -> None:
        """A report of a job, as the cache has it. `pod` sent it to this process; empty: the cache shows it, and it may
        be late. One that is late may be of the run before."""
        state = self._states.find(job.metadata.uid)
        now = self._clock.monotonic()
        listening = self._listen(state, job) if state is not None else None
        if listening is None:
            if state is not None and pod and _has_never_run(job):
                state.early = EarlyReport(pod, now)
            return
        listening.heard, listening.suspected = now, None
        listening.pod = pod or listening.pod
        if pod or now >= listening.since + self._delay():
            listening.reported = now

    def show(self, seen: Snapshot) -> Snapshot:
        """Adds the silence of a job that runs and is watched."""
        rule = read_stall_rule(seen.job.metadata.annotations)
        state = self._states.find(seen.job.metadata.uid)
        listening = self._listen(state, seen.job) if state is not None else None
        if rule is None or listening is None:
            return seen
        now = self._clock.monotonic()
        seconds = now - max(listening.since, listening.heard or listening.since)
        overdue, look_in = self._examine(listening, rule.after - seconds, now)
        reported = None if listening.reported is None else now - listening.reported
        return replace(seen, silence=Silence(seconds, reported, listening.pod, overdue, look_in))

    def _listen(self, state: JobState, job: Unstructured) -> Listening | None:
        """What is heard of the present run; None if the job does not run, or is not watched."""
        status = Status(job.raw.get("status"), EARLIEST) if STALLED_AFTER in job.metadata.annotations else None
        if status is None or not status.is_true(RUNNING):
            state.listening = None
            return None
        run = (status.find(RUNNING) or {}).get("lastTransitionTime")
        if state.listening is None or state.listening.run != run:
            early, state.early = state.early, None
            state.listening = Listening(run, self._clock.monotonic())
            if early is not None:
                listening = state.listening
                listening.heard = listening.reported = early.at
                listening.pod = early.pod
        return state.listening

    def _examine(self, listening: Listening, left: float, now: float) -> tuple[bool, float]:
        """Whether the silence counts, and in how many seconds it may."""
        if left > 0:
            listening.suspected = None
            return False, left
        delay = self._delay()
        if listening.suspected is None or now - listening.suspected > 2 * delay:
            listening.suspected = now
        rest = listening.suspected + delay - now
        return rest <= 0, max(rest, 0.0)


def _has_never_run(job: Unstructured) -> bool:
    """Whether the job is watched, and no report can be of a run before."""
    if STALLED_AFTER not in job.metadata.annotations:
        return False
    status = Status(job.raw.get("status"), EARLIEST)
    return status.find(RUNNING) is None and status.find(RESTARTING) is None
