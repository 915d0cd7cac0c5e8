"""What a controller remembers of each job between passes, in one `JobState` per job UID.

Everything here is an optimization or a rate limit that may be lost: a restarted operator works without it. What must
survive a restart is in the job's status or annotations. The components that use a part keep the logic, and this module
keeps the lifetime: a job is forgotten in one step, together with its expectations, which the runtime keeps by UID.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from trainop.engine.actions import Count, Event, Wait
from trainop.runtime import Expectations, Json, Key

MAX_OBSERVED = 1000
"""Limit of states for jobs that this replica has not reconciled."""


@dataclass(slots=True)
class LastWrite:
    """The operator's last write to the job itself (`OwnWrites`)."""

    at: float
    """When it was sent, monotonic seconds."""
    version: str = ""
    """The resourceVersion in the response; an older object does not include the write."""
    stale: str = ""
    """A resourceVersion that a conflict has shown to be outdated."""
    status: Json | None = None
    """The last status sent, also while the response is outstanding; None once the cache has shown it."""
    pending_since: float | None = None
    """Since when a progress-only status update has been pending, monotonic seconds."""
    awaited: bool = False
    """A pass was postponed until the cache shows the write, so its event must trigger a reconcile."""


@dataclass(slots=True)
class RefusedWrites:
    """Owned objects that the API server refused while the job goes on (`Refusals`)."""

    edition: int
    """Identifies the spec and annotations of the job at the time."""
    until: float = 0.0
    """When they are retried, monotonic seconds."""
    failures: int = 0
    """Consecutive passes with refusals."""
    objects: dict[tuple[str, str], str] = field(default_factory=dict)
    """Kind and name of each refused object -> the API server's message."""
    messages: set[str] = field(default_factory=set)
    """Messages that were already reported in an event."""


@dataclass(frozen=True, slots=True)
class HeldStatus:
    """The first status of a job, complete and not yet written."""

    base: Json
    """The status that the job had."""
    generation: int
    """That of the job's spec, from which the status follows."""
    status: Json
    transitions: tuple[Event | Count, ...]
    """To be reported after the write."""
    version: str
    """The job's resourceVersion after the operator's last write to it."""


@dataclass(slots=True)
class FirstStatus:
    """Since when the first status of a job waits (`FirstStatuses`)."""

    since: float
    """Monotonic seconds."""
    held: HeldStatus | None = None


@dataclass(frozen=True, slots=True)
class RefusedStatus:
    """A status that the API server refused (`StatusWriter`)."""

    version: str
    """The job's resourceVersion: another version may have room for the status."""
    until: float
    """When the write is retried, monotonic seconds."""
    failures: int
    """Consecutive refusals."""


@dataclass(frozen=True, slots=True)
class RepeatedWrite:
    """The last successful write of the job's PodGroup (`Disputes`), or of `spec.runPolicy.suspend`."""

    edition: int
    """Identifies the spec and annotations of the job at the time; of `suspend`, the value."""
    until: float
    """When the same edition may be written again, monotonic seconds."""
    repeats: int
    """Consecutive writes for one edition. Each of them was undone by another client."""


@dataclass(slots=True)
class Listening:
    """What is heard of one run of a job that is watched for stalls (`Silences`). All times are monotonic seconds."""

    run: object
    """The transition time of the condition Running, which identifies the run."""
    since: float
    """When this process first saw that it runs."""
    heard: float | None = None
    """The last report, of this run or late ones of the one before."""
    reported: float | None = None
    """The last report that is surely of this run."""
    pod: str = ""
    """That has sent one."""
    suspected: float | None = None
    """Since when the silence lasts too long."""


@dataclass(frozen=True, slots=True)
class EarlyReport:
    """A report of a job that has never run yet as far as its status says (`Silences`)."""

    pod: str
    at: float
    """Monotonic seconds."""


@dataclass(slots=True)
class JobState:
    """What the controller remembers of one job. Unused parts are None, so that an idle job costs little memory."""

    last_write: LastWrite | None = None
    refused: RefusedWrites | None = None
    first_status: FirstStatus | None = None
    refused_status: RefusedStatus | None = None
    repeated: RepeatedWrite | None = None
    suspended: RepeatedWrite | None = None
    """The last write of `spec.runPolicy.suspend`, whose value is the edition (`StatusWriter`)."""
    filled: frozenset[str] = frozenset()
    """UIDs of objects whose `Content` this process has made (`Consequences`)."""
    obstacle: Wait | None = None
    """Why children could not be written (`Passes`)."""
    notices: OrderedDict[str, str] | None = None
    """The last message per notice identity, least recently used first (`Reporter`)."""
    dropped_fields: dict[str, tuple[str, ...]] | None = None
    """`Snapshot.dropped_fields` (`Reporter`)."""
    deleting: set[str] | None = None
    """UIDs of children that the operator deletes itself (`OwnerCheck`)."""
    owner_unconfirmed: bool = False
    """A child disappeared that the operator did not delete, so the job may be deleted too (`OwnerCheck`)."""
    serves_rules: bool | None = None
    """`Snapshot.serves_rules` (`Consequences`)."""
    early: EarlyReport | None = None
    listening: Listening | None = None
    clock_offset: float | None = None
    """Wall clock minus monotonic clock, in seconds (`JobClock`)."""
    blocked_passes: int = 0
    """Consecutive passes that were `Outcome.blocked`."""
    unfinished: bool = False
    """The last pass reached its limit of writes."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """Kinds and names of children that the last pass could not create, because of objects of other owners."""


class JobStates:
    """The states of one controller, by job UID.

    A state is in use from the first reconcile of its job on, until the job is forgotten. Jobs that are only observed,
    because this replica is on standby or because they were deleted, may never be reconciled and so never be
    forgotten; of these at most `MAX_OBSERVED` states are kept, and the oldest is dropped first.
    """

    def __init__(self, expectations: Expectations) -> None:
        self.expectations = expectations
        self._uids: dict[Key, str] = {}
        """The UID that each key had in its last pass, to detect a recreated job."""
        self._in_use: dict[str, JobState] = {}
        self._observed: dict[str, JobState] = {}
        """In order of creation."""

    def follow(self, key: Key, uid: str | None) -> None:
        """Makes the state of the job that the key has now, and forgets that of a former one. None: there is no job."""
        known = self._uids.get(key)
        if known is not None and known != uid:
            self.forget(known)
            del self._uids[key]
        if uid is not None:
            self._uids[key] = uid
            self.ensure(uid)

    def find(self, uid: str) -> JobState | None:
        """The state, if there is one. Does not mark it as in use."""
        return self._in_use.get(uid) or self._observed.get(uid)

    def ensure(self, uid: str) -> JobState:
        """Finds or makes the state, which is in use from now on."""
        state = self._in_use.get(uid)
        if state is None:
            state = self._in_use[uid] = self._observed.get(uid) or JobState()
            self._observed.pop(uid, None)
        return state

    def observe(self, uid: str) -> JobState:
        """Finds the state, or makes one of limited lifetime."""
        state = self.find(uid)
        if state is None:
            state = self._observed[uid] = JobState()
            if len(self._observed) > MAX_OBSERVED:
                del self._observed[next(iter(self._observed))]
        return state

    def forget(self, uid: str) -> None:
        """Drops all that is known of the job, including its expectations."""
        self._in_use.pop(uid, None)
        self._observed.pop(uid, None)
        self.expectations.forget(uid)

    def __len__(self) -> int:
        """The number of states, in use or observed."""
        return len(self._in_use) + len(self._observed)
