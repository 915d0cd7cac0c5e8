"""`PlanBuilder`: collects the parts of a Plan while the modules of the engine, or of a kind, decide.

One per reconcile. It starts with a copy of the stored status and knows of a kind only how it is named. That of a job
with replica types, `ReplicasBuilder`, also starts with the ownership of all children (`claim`).
"""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

from trainop.engine.actions import LOOK_AGAIN, Action, Count, Event, Notice, Plan, Unstarted, Wait
from trainop.engine.bad_nodes import read_avoidance
from trainop.engine.children import Children
from trainop.engine.extensions import AVOID_BAD_NODES
from trainop.engine.framework import Framework, Grant, Words
from trainop.engine.job import Job
from trainop.engine.manifests import Manifests
from trainop.engine.restart_history import RestartHistory
from trainop.engine.root_cause import LAST_FAILURE, Failure, append_cause, read_failure
from trainop.engine.seen import Snapshot
from trainop.engine.status import RESTARTING, RUNNING, TRAINING_OPERATOR, ConditionRules, Status
from trainop.engine.waiting import NAME_TAKEN, UNREADABLE
from trainop.runtime import HasMetadata, Json, Metadata, owner_reference

MAX_UNREADABLE_WARNINGS = 20
"""Undecodable children that one plan warns about; usually all of them have the same fault."""


class PlanBuilder:
    """Collects actions, status changes, events and the requeue delay of one reconcile; `plan` returns them."""

    def __init__(self, words: Words, seen: Snapshot, *, begun: bool, rules: ConditionRules = TRAINING_OPERATOR) -> None:
        self.words = words
        self.seen = seen
        self.metadata = seen.job.metadata
        self.status = Status(seen.job.raw.get("status"), seen.now, rules)
        self.begun = begun or self._had_pods()
        """The job has, or once had, pods."""
        self.actions: list[Action] = []
        self.annotations: dict[str, str | None] = {}
        self.notices: list[Notice] = []
        self.cause: Failure | None = None
        """The root cause of what this plan does about failures."""
        self.unstarted: Unstarted | None = None
        self._transitions: list[Event | Count] = []
        self._requeue_after: float | None = None
        self._waits: list[Wait] = []
        self._unreadable: set[str] = set()

    def reason(self, state: str) -> str:
        """The reason of a condition or event, prefixed with the kind: `PyTorchJobRunning`."""
        return f"{self.words.kind}{state}"

    def fill(self, text: str, **facts: object) -> str:
        """A format string with the kind, name and namespace of the job and other `facts`."""
        name, namespace = self.metadata.name, self.metadata.namespace
        return text.format(kind=self.words.kind, name=name, namespace=namespace, **facts)

    def blame(self, cause: Failure | None) -> None:
        """Records the root cause in the status. It stays there, and a later `with_cause` appends it."""
        if cause is not None:
            self.cause = cause
            self.status.put(LAST_FAILURE, cause.as_json())

    @property
    def remembered(self) -> Failure | None:
        """The root cause that the stored status has."""
        return read_failure(self.status.get(LAST_FAILURE))

    def with_cause(self, text: str) -> str:
        """Upstream's text, and the words for the root cause behind it."""
        return append_cause(text, self.cause)

    def event(self, reason: str, message: str, type_: str = "Normal") -> None:
        """Adds an event that is emitted after the status has been written."""
        self._transitions.append(Event(type_, reason, message))

    def count(self, counter: str, by: int = 1) -> None:
        self._transitions.append(Count(counter, by))

    def warn(self, identity: str, reason: str, message: str, *, holds_up: str = "") -> None:
        """Adds a Warning about a state, emitted once per `identity` and message. `holds_up`: see `Notice`."""
        self.notices.append(Notice(identity, Event("Warning", reason, message), holds_up=holds_up))

    def wait(self, reason: str, what: str, why: str = "", *, since: datetime | None = None) -> None:
        """Adds something that the job waits for, besides its pods (`Wait`)."""
        self._waits.append(Wait(reason, what, why, since))

    def warn_name_taken(self, kind: str, name: str) -> None:
        """Warns that an object of another owner has the name of a needed child, and requeues: its deletion triggers no
        event."""
        event = self.words.name_taken.event(kind, name, f"{self.words.kind} {self.metadata.name}")
        self.notices.append(Notice(f"foreign/{kind}/{name}", event, holds_up=NAME_TAKEN))
        self.requeue_after(LOOK_AGAIN)

    def warn_unreadable(self, kind: str, name: str, fault: str) -> None:
        """Warns about an undecodable object that may be a child of the job."""
        if len(self._unreadable) < MAX_UNREADABLE_WARNINGS:
            self._unreadable.add(f"{kind} {name}")
            text = f"{kind} {name} cannot be read: {fault}"
            self.warn(f"unreadable/{kind}/{name}", f"Unreadable{kind}", text, holds_up=UNREADABLE)

    def drop_annotation(self, name: str) -> None:
        """Removes an annotation of the job, if it has it."""
        if name in self.metadata.annotations:
            self.annotations[name] = None

    def requeue_after(self, seconds: float | None) -> None:
        """Requeues the job after at most this many seconds; the smallest delay of a plan counts. None: no requeue."""
        if seconds is not None:
            self._requeue_after = max(
                0.0, seconds if self._requeue_after is None else min(self._requeue_after, seconds)
            )

    @property
    def owner(self) -> Json:
        """The owner reference of the job's objects."""
        resource, job = self.words.resource, self.metadata
        return owner_reference(resource.api_version, resource.kind, job.name, job.uid)

    def owns(self, found: HasMetadata) -> bool:
        """Whether the job controls the object."""
        return found.metadata.controlled_by(self.metadata.uid)

    def is_going(self, found: Metadata) -> bool:
        """Whether the name of the object becomes free: it is terminating, or a previous job of this name has it."""
        is_ours = found.controlled_by(self.metadata.uid)
        return found.terminating or (not is_ours and self.words.owned_by_namesake(found, self.metadata.name))

    def _had_pods(self) -> bool:
        """Whether the stored status or restart history shows that the job had pods. `startTime` alone is no proof,
        because a quota may delay the first pod. Pods that never ran leave no trace, and no work is lost with them."""
        stored = self.status
        if stored.find(RUNNING) or stored.find(RESTARTING) or stored.counts_pods:
            return True
        return RestartHistory(self.metadata.uid, self.metadata.annotations).used

    def plan(self, *, status_first: bool = False, waits: bool = False) -> Plan:
        """The plan. `waits`: the job is to go on, and waits for what was collected."""
        return Plan(
            annotations=self.annotations,
            annotations_required=not self.status.finished,
            status=self.status.changed(),
            status_first=status_first,
            actions=tuple(self.actions),
            transitions=tuple(self._transitions),
            notices=tuple(self.notices),
            begun=self.begun,
            waits=tuple(self._waits) if waits else None,
            unstarted=self.unstarted,
            cause=self.cause,
            requeue_after=self._requeue_after,
        )


class ReplicasBuilder(PlanBuilder):
    """The builder for a job with replica types."""

    def __init__(self, framework: Framework, job: Job, seen: Snapshot, children: Children) -> None:
        super().__init__(framework, seen, begun=children.has_pods)
        self.framework = framework
        self.job = job
        self.children = children
        self.actions += (*children.pods.claims, *children.services.claims)

    @cached_property
    def manifests(self) -> Manifests:
        """The manifests of the job's children. Created on first use, because most plans create nothing."""
        avoids = AVOID_BAD_NODES in self.metadata.annotations
        avoidance = read_avoidance(self.metadata, self.seen.now) if avoids else None
        return Manifests(self.framework, self.job, self.seen.options, avoidance)

    @property
    def grant(self) -> Grant | None:
        """The rights of a service account of the job; None if it needs none."""
        return self.framework.grant(self.job, self.seen) if self.framework.grant else None
