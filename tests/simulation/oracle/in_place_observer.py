"""Jobs that restart in place (docs/survive.md), judged by what is stored.

The operator may take two episodes for one if it has not seen the moment between them, and never one for two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.simulation.oracle.children import name_of
from tests.simulation.oracle.in_place import (
    RETRYABLE,
    ROUNDING,
    Course,
    Episode,
    Rank,
    cause_faults,
    end_faults,
    exit_of,
    is_over,
    next_round,
    noted_of,
    rule_of,
)
from tests.simulation.oracle.kinds import Job, Json, controller_of, is_terminating, phase_of, slot_of
from tests.simulation.oracle.losses import BACKOFF
from tests.simulation.oracle.observer import AT_ONCE, SHOWN, Setting

TIME_OUT = 120.0
"""Seconds after which a job of which a replica has not restarted is recreated."""
LOST_FOR = 150.0
"""Seconds for which the operator may see and do nothing, with faults."""
RESOLVED_WITHIN = 600.0
"""Seconds within which each episode is over: the time-out, the longest pause, and what goes wrong meanwhile."""


class InPlaceObserver:
    """Listens to the store."""

    def __init__(self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]]) -> None:
        """`objects` answers what a table holds now."""
        self._setting = setting
        self._objects = objects
        self._courses: dict[str, Course] = {}
        self.serves = True
        """The API server keeps the rules of pods."""

    def loses(self, uid: str) -> None:
        """Others are about to delete this pod."""
        for course in self._courses.values():
            if (pod := course.pods.get(uid)) is not None:
                self._disrupt(course, pod)

    def refuses(self, name: str) -> None:
        """No policy refuses pods."""

    def awaits_retry(self) -> bool:
        """A restart is under way."""
        now = self._setting.now()
        waiting = filter(self._has_to_act, self._courses.values())
        return any(course.episodes[-1].began + RESOLVED_WITHIN > now for course in waiting)

    def _has_to_act(self, course: Course) -> bool:
        """Whether an episode goes on of which the operator surely knows."""
        episode = course.open
        if episode is None or is_over(course) or (episode.disturbed and episode.counted_at is None):
            return False
        return self._setting.exact and self._is_distinct(course)

    def __call__(self, table: Any, change: Any) -> None:
        old, new = (stored.value if stored is not None else None for stored in (change.old, change.new))
        if re.fullmatch(r"\w+jobs\.kubeflow\.org", table.name):
            self._on_job(old, new)
        elif table.name == "pods":
            course = self._courses.get((controller_of(new or old or {}) or {}).get("uid", ""))
            if course is not None:
                self._on_pod(course, old, new)

    # Jobs -------------------------------------------------------------------------------------------------------------

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            self._courses.pop((old or {})["metadata"]["uid"], None)
            return
        job, now = Job(new), self._setting.now()
        course = self._courses.get(job.uid)
        if course is None:
            self._courses[job.uid] = Course(job)
            return
        before, course.job = course.job, job
        if before.spec != job.spec:
            course.scaled_at = now
            self._disturb(course)
        if job.suspended or job.is_true("Suspended"):
            course.stopped_at = now
            self._disturb(course)
        if before.is_true("Suspended") and not job.is_true("Suspended"):
            self._courses[job.uid] = course = Course(job, pods=course.pods, stopped_at=now, scaled_at=now)
            return
        if job.is_true("Restarting") and not before.is_true("Restarting"):
            course.told_at = now
        self._judge_counts(course, noted_of(before), noted_of(job))
        if before.status != job.status:
            self._accuse(course, "lastFailure", cause_faults(course, before))
        if job.is_true("Failed") and not before.is_true("Failed"):
            self._accuse(course, "ends for a reason", end_faults(course))
        self._settle(course)

    def _judge_counts(self, course: Course, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        now, failures = self._setting.now(), after.get("failures", 0)
        if failures > before.get("failures", 0):
            if failures > len(course.episodes):
                text = f"{failures} failures are noted, and ranks have failed {len(course.episodes)} times"
                self._accuse(course, "charged once", [text])
            episode = course.episodes[-1] if course.episodes else None
            if episode is not None and episode.counted_at is None:
                episode.counted_at = now
                episode.recreates = self._is_too_soon(course, now)
            course.rounds = next_round(course.rounds, now)
            course.counts.append(now)
        if after.get("disruptions", 0) > before.get("disruptions", 0):
            if after["disruptions"] > course.disruptions:
                text = f"{after['disruptions']} disruptions are noted, there were {course.disruptions}"
                self._accuse(course, "charged once", [text])
            if any(pod.taken and pod.born > course.rounds[1] for pod in course.pods.values()):
                course.rounds = next_round(course.rounds, now)
            course.counts.append(now)

        last, is_over = course.open, "burst" in before and "burst" not in after
        if last is not None and is_over and not self._is_distinct(course):  # it was taken for a part of the one before
            last.settled_at, last.disturbed = now, True

    def _is_too_soon(self, course: Course, now: float) -> bool:
        """Surely, by the clock of whoever has counted."""
        number, last = course.rounds
        return self._setting.exact and number > 0 and now - last < min(2.0 ** (number - 1), 300.0) - ROUNDING

    # Pods -------------------------------------------------------------------------------------------------------------

    def _on_pod(self, course: Course, old: Json | None, new: Json | None) -> None:
        now, value = self._setting.now(), new or old or {}
        uid = value["metadata"]["uid"]
        if uid not in course.pods:
            course.pods[uid] = Rank(value, now)
            self._judge_new(course, course.pods[uid])
        pod = course.pods[uid]
        leaves = new is None or is_terminating(new)
        if leaves and not pod.leaves:
            pod.leaves, pod.left_at = True, now
            if not course.job.terminating:
                self._judge_deletion(course, pod)
        elif not leaves:
            self._take(course, pod, value)
        pod.value, pod.gone = value, new is None
        self._settle(course)

    def _take(self, course: Course, pod: Rank, value: Json) -> None:
        """A new status of a pod that is not being deleted."""
        before, after = exit_of(pod.value), exit_of(value)
        marked = any(each["type"] == "DisruptionTarget" for each in value["status"].get("conditions") or ())
        if (marked or value["status"].get("reason")) and not pod.taken:
            self._disrupt(course, pod)
        ended = phase_of(value) == "Failed" and phase_of(pod.value) != "Failed"
        if ended:
            course.failed_at = self._setting.now()
        if after is not None and after != before and not (pod.taken and ended):
            self._fail(course, pod, after, ended=ended)

    def _fail(self, course: Course, pod: Rank, code: int, *, ended: bool) -> None:
        now = self._setting.now()
        last = course.open
        counted = last.counted_at if last is not None else None
        if last is not None and counted is not None and all(each.born > counted for each in course.living()):
            last.settled_at = now  # the pods were recreated, and a new one fails
        if course.open is None:
            before = {uid: each.restarts for uid, each in course.pods.items()}
            course.episodes.append(Episode(now, before))
            if is_over(course) or pod.born <= max(course.disrupted_at, course.stopped_at):
                course.episodes[-1].disturbed = True
        episode = course.episodes[-1]
        slot = slot_of(pod.value)
        if ended and slot is not None and course.job.policy_of(slot) == "ExitCode" and code < RETRYABLE:
            course.fatal = True
            course.certain = not episode.exits  # otherwise a restart of all may have begun
        episode.exits.setdefault(pod.name, set()).add(code)

    def _disrupt(self, course: Course, pod: Rank) -> None:
        course.disruptions += not pod.taken
        pod.taken, course.disrupted_at = True, self._setting.now()
        self._disturb(course)

    def _disturb(self, course: Course) -> None:
        last = course.episodes[-1] if course.episodes else None
        if last is not None and last.counted_at is None and self._setting.now() < last.settled_at + self._gap:
            last.disturbed = True
        if (episode := course.open) is not None:
            episode.disturbed = True

    def _settle(self, course: Course) -> None:
        """Close the episode if all replicas have restarted, or are new, and run."""
        episode = course.open
        if episode is None:
            return
        living = {slot_of(pod.value): pod for pod in course.living()}
        if not set(course.job.slots()) <= set(living):
            return
        second = math.inf if episode.counted_at is None else int(episode.counted_at)
        for uid, pod in course.pods.items():
            is_new = pod.born > episode.began or pod.born >= second or not self._setting.exact
            restarted = is_new or pod.restarts > episode.before.get(uid, 0)
            if not pod.leaves and not pod.gone and not (restarted and pod.runs):
                return
        episode.settled_at = now = self._setting.now()
        kept = [pod.name for pod in living.values() if pod.born < episode.began]
        counted = episode.counted_at
        if counted is None or episode.disturbed:
            return
        lost_for = SHOWN if self._setting.fair_since() < math.inf else LOST_FOR
        if episode.recreates and kept and now > counted + lost_for:
            self._accuse(course, "back-off", [f"{kept} have restarted in place, too soon after the last restart"])
        if now > counted + LOST_FOR and course.told_at < episode.began:
            self._accuse(course, "says that it restarts", [f"for {now - counted:.0f} s it has not"])

    # What the operator does to pods -----------------------------------------------------------------------------------

    def _judge_new(self, course: Course, pod: Rank) -> None:
        container = next(each for each in pod.value["spec"]["containers"] if each["name"] == course.job.kind.container)
        given, wanted = container.get("restartPolicyRules"), self.serves and course.sound
        if bool(given) != wanted:
            self._accuse(course, "rules", [f"{pod.name} has the rules {given}"])
        slot = slot_of(pod.value)
        if given and slot is not None and given != [rule_of(course.job.policy_of(slot))]:
            self._accuse(course, "rules", [f"{pod.name} has the rules {given}"])
        number, last = course.rounds
        pause = min(2.0 ** (number - 2), 300.0) if number >= 2 else 0.0
        if self._setting.fair_since() == math.inf:
            pause = pause / 2 - AT_ONCE  # since the operator has decided, not since that was written
        if self._setting.exact and course.scaled_at < last and pod.born < last + pause - ROUNDING:
            self._accuse(course, "back-off", [f"{pod.name} is created {pod.born - last:.1f} s after restart {number}"])
        job = course.job
        old = [each for each in course.pods.values() if each.born < last and not each.gone and each is not pod]
        left = [each.name for each in old if job.has(slot_of(each.value))]
        former = [each for each in course.pods.values() if each.name == pod.name and each is not pod and not each.taken]
        restarted = bool(former) and former[-1].born < last <= former[-1].left_at
        if course.sound and left and restarted and max(course.scaled_at, course.stopped_at) < last:
            self._accuse(course, "all or none", [f"{pod.name} is created, and {left} have not gone"])

    def _judge_deletion(self, course: Course, pod: Rank) -> None:
        """A pod is deleted only for a restart of all, a change of replicas, a suspension or an end."""
        job, now = course.job, self._setting.now()
        slot = slot_of(pod.value)
        if pod.taken or is_over(course) or now < course.stopped_at + LOST_FOR or slot is None or not job.has(slot):
            return
        if pod.name != name_of(job, slot) or not self._setting.exact:
            return
        before, counted = ([-math.inf, -math.inf, *course.counts])[-2:]
        cause = max(course.disrupted_at, course.failed_at)
        if pod.born <= cause or (cause > before and pod.born <= counted):
            return  # a pod has ended for good
        episode = course.episodes[-1] if course.episodes else None
        if episode is None or episode.counted_at is None or pod.born > max(episode.counted_at, episode.settled_at):
            self._accuse(course, "restarts for a reason", [f"lost {pod.name}, and no rank has failed"])
            return
        number, last = course.rounds
        fair = self._setting.fair_since() < episode.began
        spare = ROUNDING if fair else AT_ONCE  # the time is that of the decision, and not of its write
        late = now >= counted + TIME_OUT - spare or not self._setting.exact
        if episode.settled_at < counted + TIME_OUT - AT_ONCE and fair:
            late = False  # all have restarted in time, and the operator has seen it
        soon = counted - before < min(2.0 ** (number - 1), 300.0) + ROUNDING
        if not late and not soon:
            text = f"lost {pod.name} {now - counted:.1f} s after rank(s) had failed, {now - last:.0f} s after a restart"
            self._accuse(course, "restarts for a reason", [text])

    # At rest ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The faults are over, and nothing is due any more."""
        for course in self._courses.values():
            if not course.job.terminating:
                self._accuse(course, "nothing forgotten", self._rest_faults(course))

    def _rest_faults(self, course: Course) -> Iterator[str]:
        job, noted = course.job, noted_of(course.job)
        living = [pod.name for pod in course.living() if phase_of(pod.value) in {"Pending", "Running"}]
        if noted.get("failures") and "lastFailure" not in job.status and course.failed_at == -math.inf:
            yield "has no lastFailure"
        if job.message("Failed").startswith(BACKOFF.format(job.name)) and living:
            yield f"has failed, and {living} live"
        if not job.finished and not job.suspended:
            yield from self._active_faults(course, noted)

    def _active_faults(self, course: Course, noted: Mapping[str, int]) -> Iterator[str]:
        job, limit, least = course.job, course.job.backoff_limit, self._least(course)
        if (failures := noted.get("failures", 0)) < least:
            yield f"{failures} failures are noted, and ranks have failed {least} times"
        if "burst" in noted and course.open is None:
            yield "still waits for ranks to restart"
        if (course.certain and course.failed_at > course.disrupted_at) or (limit is not None and least > limit):
            yield f"goes on after {least} failures, its backoffLimit is {limit}"
        if self._has_to_act(course):
            yield f"does not get over what has begun at {course.episodes[-1].began:.1f} s"
        if not job.is_true("Running") or job.is_true("Restarting"):
            yield "does not say that it runs"
        yield from self._mode_faults(course)

    def _mode_faults(self, course: Course) -> Iterator[str]:
        """A process that has just started does not know what the API server does with rules."""
        told = next((each["status"] for each in course.job.conditions if each["type"] == "RestartsInPlace"), None)
        known = self.serves or self._setting.fair_since() < math.inf
        if (told is not None) != course.sound or (known and told not in {None, str(self.serves)}):
            yield f"says RestartsInPlace={told}"

    def _least(self, course: Course) -> int:
        """Episodes that the operator has to tell from those before them."""
        before = -math.inf
        least = 0
        for episode in course.episodes:
            if not episode.disturbed and episode.began > before + self._gap:
                least += 1
            before = episode.settled_at
        return least

    @property
    def _gap(self) -> float:
        """Seconds after the end of an episode within which the operator may take the next one for a part of it."""
        return AT_ONCE if self._setting.fair_since() < math.inf else LOST_FOR

    def _is_distinct(self, course: Course) -> bool:
        """Whether the operator knows that the last episode is another one than that before, in which all restarted."""
        before, last = ([None, *course.episodes])[-2:] if course.episodes else (None, None)
        if last is None or before is None or None not in {before.counted_at, last.counted_at}:
            return True
        return last.began > before.settled_at + self._gap

    def _accuse(self, course: Course, rule: str, faults: Iterator[str] | list[str]) -> None:
        for fault in faults:
            self._setting.flag(rule, f"{course.job.kind_name} {course.job.name}: {fault}")
