"""A plan in the making."""

from __future__ import annotations

from functools import cached_property

from trainop.engine.actions import Action, Count, Event, Notice, Plan
from trainop.engine.claim import Children
from trainop.engine.framework import Framework
from trainop.engine.job import Job
from trainop.engine.manifests import Manifests
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Snapshot
from trainop.engine.status import RESTARTING, RUNNING, Status

NAME_TAKEN_REQUEUE_DELAY = 30.0
"""Seconds until the next look at a name that somebody else's object occupies."""

MAX_UNREADABLE_WARNINGS = 20
"""Children that a plan calls unreadable; the same is mostly wrong with all of them."""


class PlanBuilder:
    """Gathers what one pass decides, beginning with whose the children are."""

    def __init__(self, framework: Framework, job: Job, seen: Snapshot, children: Children) -> None:
        self.framework = framework
        self.job = job
        self.seen = seen
        self.children = children
        self.status = Status(seen.job.raw.get("status"), seen.now)
        self.actions: list[Action] = [*children.pods.claims, *children.services.claims]
        self.annotations: dict[str, str | None] = {}
        self.notices: list[Notice] = []
        self._transitions: list[Event | Count] = []
        self._requeue_after: float | None = None
        self._unreadable: set[str] = set()

    @cached_property
    def manifests(self) -> Manifests:
        """Of the job's children; what they share is made when the first is asked for."""
        return Manifests(self.framework, self.job, self.seen.options)

    def reason(self, state: str) -> str:
        """Conditions and events say which kind they speak of: `PyTorchJobRunning`."""
        return f"{self.framework.kind}{state}"

    def event(self, reason: str, message: str, type_: str = "Normal") -> None:
        """Report this once the status is written."""
        self._transitions.append(Event(type_, reason, message))

    def count(self, counter: str, by: int = 1) -> None:
        self._transitions.append(Count(counter, by))

    def warn(self, identity: str, reason: str, message: str) -> None:
        """State what is so."""
        self.notices.append(Notice(identity, Event("Warning", reason, message)))

    def warn_name_taken(self, kind: str, name: str) -> None:
        """Somebody else's object has the name of a child that is wanted; nothing tells when it goes."""
        text = f"{kind} {name} already exists and does not belong to {self.framework.kind} {self.job.name}"
        self.warn(f"foreign/{kind}/{name}", f"FailedCreate{kind}", f"Error creating: {text}")
        self.requeue_after(NAME_TAKEN_REQUEUE_DELAY)

    def warn_unreadable(self, kind: str, name: str, fault: str) -> None:
        """An object that has the name of a wanted child may be that child."""
        if len(self._unreadable) < MAX_UNREADABLE_WARNINGS:
            self._unreadable.add(f"{kind} {name}")
            self.warn(f"unreadable/{kind}/{name}", f"Unreadable{kind}", f"{kind} {name} cannot be read: {fault}")

    def requeue_after(self, seconds: float | None) -> None:
        """At the latest after so many seconds, from now."""
        if seconds is not None:
            self._requeue_after = max(
                0.0, seconds if self._requeue_after is None else min(self._requeue_after, seconds)
            )

    @property
    def has_pods(self) -> bool:
        """Pods made for the job are there, also if they have lost its labels or its owner reference."""
        pods = self.children.pods
        return bool(pods.ours or pods.claims)

    def _had_pods(self) -> bool:
        """Whether the job, as it is stored, remembers pods that are not there any more. `startTime` alone is no proof:
        a quota may hold up the first pod. Of pods that never ran nothing remains, but then nothing is lost either."""
        stored = Status(self.seen.job.raw.get("status"), self.seen.now)
        if stored.find(RUNNING) or stored.find(RESTARTING) or stored.counts_pods:
            return True
        return RestartHistory(self.job.metadata.uid, self.job.metadata.annotations).used

    def plan(self, *, status_first: bool = False) -> Plan:
        return Plan(
            annotations=self.annotations,
            annotations_required=not self.status.finished,
            status=self.status.changed(),
            status_first=status_first,
            actions=tuple(self.actions),
            transitions=tuple(self._transitions),
            notices=tuple(self.notices),
            begun=self.has_pods or self._had_pods(),
            requeue_after=self._requeue_after,
        )
