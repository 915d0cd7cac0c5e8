"""`PlanBuilder`: collects the parts of a Plan while the modules of the engine decide.

One per reconcile. It starts with the ownership of all children (`claim`) and a copy of the stored status.
"""

from __future__ import annotations

from functools import cached_property

from trainop.engine.actions import Action, Count, Event, Notice, Plan
from trainop.engine.claim import Children
from trainop.engine.framework import Framework
from trainop.engine.job import Job
from trainop.engine.manifests import Manifests
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Snapshot
from trainop.engine.status import RESTARTING, RUNNING, TRAINING_OPERATOR, ConditionRules, Status

NAME_TAKEN_REQUEUE_DELAY = 30.0
"""Seconds until a name that an object of another owner occupies is checked again; its deletion triggers no event."""

MAX_UNREADABLE_WARNINGS = 20
"""Undecodable children that one plan warns about; usually all of them have the same fault."""


class PlanBuilder:
    """Collects actions, status changes, events and the requeue delay of one reconcile; `plan` returns them."""

    def __init__(
        self,
        framework: Framework,
        job: Job,
        seen: Snapshot,
        children: Children,
        rules: ConditionRules = TRAINING_OPERATOR,
    ) -> None:
        self.framework = framework
        self.job = job
        self.seen = seen
        self.children = children
        self.status = Status(seen.job.raw.get("status"), seen.now, rules)
        self.actions: list[Action] = [*children.pods.claims, *children.services.claims]
        self.annotations: dict[str, str | None] = {}
        self.notices: list[Notice] = []
        self._transitions: list[Event | Count] = []
        self._requeue_after: float | None = None
        self._unreadable: set[str] = set()

    @cached_property
    def manifests(self) -> Manifests:
        """The manifests of the job's children. Created on first use, because most plans create nothing."""
        return Manifests(self.framework, self.job, self.seen.options)

    def reason(self, state: str) -> str:
        """The reason of a condition or event, prefixed with the kind: `PyTorchJobRunning`."""
        return f"{self.framework.kind}{state}"

    def event(self, reason: str, message: str, type_: str = "Normal") -> None:
        """Adds an event that is emitted after the status has been written."""
        self._transitions.append(Event(type_, reason, message))

    def count(self, counter: str, by: int = 1) -> None:
        self._transitions.append(Count(counter, by))

    def warn(self, identity: str, reason: str, message: str) -> None:
        """Adds a Warning about a state, emitted once per `identity` and message."""
        self.notices.append(Notice(identity, Event("Warning", reason, message)))

    def warn_name_taken(self, kind: str, name: str) -> None:
        """Warns that an object of another owner has the name of a needed child, and requeues: its deletion triggers no
        event."""
        taken, job = self.framework.name_taken, f"{self.framework.kind} {self.job.name}"
        text = taken.message.format(kind=kind, name=name, job=job)
        self.warn(f"foreign/{kind}/{name}", taken.reason.format(kind=kind), text)
        self.requeue_after(NAME_TAKEN_REQUEUE_DELAY)

    def warn_unreadable(self, kind: str, name: str, fault: str) -> None:
        """Warns about an undecodable object that may be a child of the job."""
        if len(self._unreadable) < MAX_UNREADABLE_WARNINGS:
            self._unreadable.add(f"{kind} {name}")
            self.warn(f"unreadable/{kind}/{name}", f"Unreadable{kind}", f"{kind} {name} cannot be read: {fault}")

    def requeue_after(self, seconds: float | None) -> None:
        """Requeues the job after at most this many seconds; the smallest delay of a plan counts. None: no requeue."""
        if seconds is not None:
            self._requeue_after = max(
                0.0, seconds if self._requeue_after is None else min(self._requeue_after, seconds)
            )

    @property
    def has_pods(self) -> bool:
        """Whether pods of the job exist, including pods that lost its labels or its owner reference."""
        pods = self.children.pods
        return bool(pods.owned or pods.claims)

    def had_pods(self) -> bool:
        """Whether the stored status or restart history shows that the job had pods. `startTime` alone is no proof,
        because a quota may delay the first pod. Pods that never ran leave no trace, and no work is lost with them."""
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
            begun=self.has_pods or self.had_pods(),
            requeue_after=self._requeue_after,
        )
