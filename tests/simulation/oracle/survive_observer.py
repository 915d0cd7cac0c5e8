"""Jobs that are watched for stalls or have a startup deadline (docs/survive.md), judged by what is stored.

No pod of these scripts fails or is taken away by others, so that each deletion needs a cause: a suspension, an end, or
a silence of the job that lasted long enough, after it had reported, before a process that had been there all the time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.oracle.kinds import Json, controller_of, is_terminating, phase_of
from tests.simulation.oracle.observer import Setting

PREFIX = "trainop.kubeflow.org/"
ROUNDING = 1.0
"""Seconds: times in a status are whole."""
LISTENS = 120.0
"""Seconds after the end of its patience by which the operator has judged a silence: reports may be on their way, and
the operator may have to start, and to hear of the job."""
KNOWN = 20.0
"""Seconds after which what is stored is known."""


@dataclass
class _Course:
    """What has happened to one job."""

    job: Json
    ran_at: float | None = None
    """When it last began to run."""
    anew: bool = False
    """It was restarted or suspended before."""
    reports: list[float] = field(default_factory=list)
    stalled_at: float | None = None
    charged_at: float = -math.inf
    charged_for: float | None = None
    """The last report before the silence that the last restart was counted for."""
    born: dict[str, float] = field(default_factory=dict)
    """By UID of a pod."""
    started: set[str] = field(default_factory=set)
    """UIDs of pods that have run."""
    wanted_at: float | None = None
    """When the first pod of this run was created."""

    def asks(self, name: str) -> str:
        return str((self.job["metadata"].get("annotations") or {}).get(PREFIX + name, ""))

    @property
    def heard(self) -> float | None:
        """The last report of the present run."""
        since = self.ran_at if self.anew else -math.inf
        return next((at for at in reversed(self.reports) if since is not None and at >= since), None)


class SurviveObserver:
    """Listens to the store."""

    def __init__(self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]]) -> None:
        """`objects` answers what a table holds now."""
        self._setting = setting
        self._objects = objects
        self._courses: dict[str, _Course] = {}
        self.led_since: Callable[[], float] = lambda: -math.inf
        """When the process that leads was started."""
        self.jumps: Sequence[float] = ()
        """When the operator's wall clock is set."""
        self._elected_at = -math.inf

    def loses(self, uid: str) -> None:
        """Nobody takes pods away."""

    def refuses(self, name: str) -> None:
        """Nobody refuses pods."""

    def awaits_retry(self) -> bool:
        return False

    def __call__(self, table: Any, change: Any) -> None:
        old, new = (stored.value if stored is not None else None for stored in (change.old, change.new))
        if re.fullmatch(r"\w+jobs\.kubeflow\.org", table.name):
            self._on_job(old, new)
        elif table.name == "pods":
            self._on_pod(old, new)
        elif table.name == "leases.coordination.k8s.io" and _holder(old) != _holder(new):
            self._elected_at = self._setting.now()

    # Jobs -------------------------------------------------------------------------------------------------------------

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        now = self._setting.now()
        if new is None:
            return
        if old is None:
            self._courses[new["metadata"]["uid"]] = _Course(new)
            return
        course = self._courses[new["metadata"]["uid"]]
        course.job = new
        if _is_true(new, "Running") and not _is_true(old, "Running"):
            course.ran_at = now
        if _is_true(new, "Suspended") or _is_true(new, "Restarting"):
            course.anew = True
        if _is_true(new, "Stalled") and not _is_true(old, "Stalled"):
            self._judge_silence(course, now, "says that it has stalled")
            course.stalled_at = now
        over = _is_true(old, "Stalled") and _condition(new, "Stalled").get("status") == "False"
        if over and not any(at > (course.stalled_at or math.inf) for at in course.reports):
            self._accuse(course, "stalls", "says that it reports again, and it does not")
        self._judge_charge(course, _failures(old), _failures(new), now)
        if new["spec"]["runPolicy"].get("suspend") and not old["spec"]["runPolicy"].get("suspend"):
            self._judge_suspension(course, now)
        if (_status(old).get("trainerStatus")) != _status(new).get("trainerStatus"):
            course.reports.append(now)

    def _judge_charge(self, course: _Course, before: int, after: int, now: float) -> None:
        """A restart is counted once for each silence."""
        if after <= before:
            return
        if after > before + 1 or course.asks("on-stall") != "restart":
            self._accuse(course, "restarts for a reason", f"counts {after} failures, after {before}")
        if course.charged_for is not None and course.charged_for == course.heard:
            self._accuse(course, "charged once", "is charged twice for one silence")
        self._judge_silence(course, now, "is restarted")
        course.charged_at, course.charged_for = now, course.heard

    def _judge_silence(self, course: _Course, now: float, what: str) -> None:
        heard, after = course.heard, _seconds(course.asks("stalled-after"))
        if heard is None:
            self._accuse(course, "only who reports stalls", f"{what}, and this run has never reported")
        elif now - heard < after - ROUNDING:
            self._accuse(course, "silence", f"{what} {now - heard:.1f} s after a report")
        if now - self.led_since() < after - ROUNDING:
            self._accuse(course, "a restart is no silence", f"{what}, and the operator has just started")

    def _judge_suspension(self, course: _Course, now: float) -> None:
        """By the operator, if the job has a startup deadline: users leave such jobs alone."""
        deadline = _seconds(course.asks("startup-deadline"))
        if not deadline:
            return
        begun = course.wanted_at
        # the time that is stored was taken by another clock than that of the process which first looks at it
        moved = begun is not None and any(begun <= at <= self.led_since() + KNOWN for at in self.jumps)
        if begun is None or (now - begun < deadline - ROUNDING and not moved):
            self._accuse(course, "startup deadline", "is suspended before its startup deadline")
        if not self._late(course):
            self._accuse(course, "startup deadline", "is suspended although all its pods have started")

    # Pods -------------------------------------------------------------------------------------------------------------

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        now, value = self._setting.now(), new or old or {}
        course = self._courses.get((controller_of(value) or {}).get("uid", ""))
        if course is None:
            return
        uid = value["metadata"]["uid"]
        if old is None:
            if not self._living(course, but=uid):
                course.wanted_at = now
                course.started.clear()
            course.born[uid] = now
        if phase_of(value) == "Running":
            course.started.add(uid)
        gone = new is None or is_terminating(new)
        if gone and old is not None and not is_terminating(old) and not self._may_delete(course, uid):
            self._accuse(course, "restarts for a reason", f"lost {value['metadata']['name']} without a cause")

    def _may_delete(self, course: _Course, uid: str) -> bool:
        job = course.job
        over = _is_true(job, "Failed") or _is_true(job, "Suspended") or job["spec"]["runPolicy"].get("suspend")
        return bool(over) or course.born.get(uid, math.inf) < course.charged_at

    def _living(self, course: _Course, but: str = "") -> list[Json]:
        uid = course.job["metadata"]["uid"]
        pods = (stored.value for stored in self._objects("pods").values())
        mine = (pod for pod in pods if (controller_of(pod) or {}).get("uid") == uid)
        return [pod for pod in mine if not is_terminating(pod) and pod["metadata"]["uid"] != but]

    def _late(self, course: _Course) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._living(course) if pod["metadata"]["uid"] not in course.started]

    # At rest ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The faults are over, and nothing is due any more."""
        now = self._setting.now()
        for course in self._courses.values():
            job = course.job
            if _is_true(job, "Failed") or job["spec"]["runPolicy"].get("suspend"):
                continue
            after, heard = _seconds(course.asks("stalled-after")), course.heard
            stalled = _is_true(job, "Stalled")
            since = max(heard or now, course.ran_at or now, self.led_since())
            # one that came while no process led, or soon after, may be of the run before: its time is that of a pod
            led = heard is not None and heard > max(self.led_since(), self._elected_at) + KNOWN
            certain = heard is not None and (not course.anew or (led and heard > (course.ran_at or 0.0) + KNOWN))
            if after and certain and now - since > after + LISTENS and not stalled:
                self._accuse(course, "silence is noticed", f"has not reported for {now - since:.0f} s")
            if stalled and led and heard is not None and (course.stalled_at or 0.0) + KNOWN < heard < now - KNOWN:
                self._accuse(course, "stalls", "reports again, and still says that it has stalled")
            deadline = _seconds(course.asks("startup-deadline"))
            if deadline and (late := self._late(course)) and now - (course.wanted_at or now) > deadline + LISTENS:
                self._accuse(course, "startup deadline", f"waits for {late} long after its startup deadline")

    def _accuse(self, course: _Course, rule: str, fault: str) -> None:
        self._setting.flag(rule, f"{course.job['kind']} {course.job['metadata']['name']}: {fault}")


def _status(job: Json) -> Json:
    found: Json = job.get("status") or {}
    return found


def _holder(lease: Json | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def _condition(job: Json, type_: str) -> Json:
    found: list[Json] = [each for each in _status(job).get("conditions") or () if each["type"] == type_]
    return found[0] if found else {}


def _is_true(job: Json, type_: str) -> bool:
    return bool(_condition(job, type_).get("status") == "True")


def _failures(job: Json) -> int:
    """The restarts that are counted, by the annotation that docs/decisions/0001-restarts-in-an-annotation.md
    describes."""
    annotations: Mapping[str, str] = job["metadata"].get("annotations") or {}
    return int(json.loads(annotations.get(PREFIX + "restarts", "{}")).get("failures", 0))


def _seconds(text: str) -> float:
    """`1m`, `30s`; 0 if there is none."""
    units = {"s": 1.0, "m": 60.0}
    return float(text[:-1]) * units[text[-1]] if text else 0.0
