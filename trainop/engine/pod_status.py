"""What the caches keep of the status of a pod: only the fields that plans read, because they hold tens of thousands."""

from __future__ import annotations

from datetime import timedelta
from sys import intern

import msgspec

from trainop.runtime.lowlevel import LONGEST_REASON, cut, read_time

ROUTINE_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})
"""Pod conditions that are dropped once there are container statuses."""

MAX_STATUS_MESSAGE_LENGTH = 768
"""Bytes that are kept of the message of a container or condition, so that an event has room for it and the names."""

CLOCK_TOLERANCE = timedelta(seconds=5)
"""Difference of two clocks that says nothing: they are not exactly synchronous, and times have whole seconds."""

_MESSAGE_END = 512
"""Bytes that are kept of the end of a termination message, where a log says why the program ended."""

MANY_CONTAINERS = 16
"""Number of container statuses of a pod above which only significant ones are kept."""


class Terminated(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """How a container ended. Of one that succeeded only the code and the reason are kept."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    """The termination message, by default the end of the log; of a long one mostly the end is kept."""
    signal: int = 0
    started_at: str | None = None
    finished_at: str | None = None

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        if self.exit_code or self.signal:
            _truncate(self, end=_MESSAGE_END)
            for name, text in (("started_at", self.started_at), ("finished_at", self.finished_at)):
                if text is not None:  # many pods of a job start and end in the same second
                    set_field(self, name, intern(text))
        else:
            set_field(self, "message", "")
            set_field(self, "started_at", None)
            set_field(self, "finished_at", None)
        set_field(self, "reason", intern(cut(self.reason, LONGEST_REASON)))

    @property
    def failed(self) -> bool:
        return bool(self.exit_code or self.signal)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        _truncate(self)


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    terminated: Terminated | None = None
    waiting: Waiting | None = None


_NOTHING_SPECIAL = ContainerState()
"""The state of running containers and the last state of those that have not been restarted: one object for all."""


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = _NOTHING_SPECIAL
    last_state: ContainerState = _NOTHING_SPECIAL
    """How its run before ended, if the kubelet has restarted it."""

    def __post_init__(self) -> None:
        state, last = self.state, self.last_state
        if state.terminated is None and state.waiting is None and state is not _NOTHING_SPECIAL:
            msgspec.structs.force_setattr(self, "state", _NOTHING_SPECIAL)
        if last.terminated is None and last is not _NOTHING_SPECIAL:
            msgspec.structs.force_setattr(self, "last_state", _NOTHING_SPECIAL)

    @property
    def has_failed(self) -> bool:
        """Whether its latest run that ended failed, or the one before."""
        ends = (self.state.terminated, self.last_state.terminated)
        return any(end is not None and end.failed for end in ends)

    @property
    def is_significant(self) -> bool:
        """Whether it says more than that the container is running or about to start."""
        state = self.state
        return bool(self.restart_count or state.terminated or (state.waiting and state.waiting.message))


class PodCondition(msgspec.Struct, frozen=True, rename="camel", gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    ready: bool = msgspec.field(default=False, name="")
    """Whether the condition Ready is true. No JSON field has this name: it is computed."""
    conditions: tuple[PodCondition, ...] = ()
    """Without `ROUTINE_CONDITIONS` once there are container statuses, which are more specific."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    """All, or above `MANY_CONTAINERS` the first one and the significant ones."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    """The same."""
    start_time: str | None = None
    """When the kubelet saw the pod, by the node's clock. Only kept of a pod with a failed container, and only if it
    differs from `scheduled_at` by more than `CLOCK_TOLERANCE`."""
    scheduled_at: str | None = msgspec.field(default=None, name=" ")
    """When the API server bound the pod to its node. Only kept together with `start_time`; it is computed."""

    def __post_init__(self) -> None:
        """Drops conditions and statuses that plans do not read: about a third of a pod's memory."""
        set_field = msgspec.structs.force_setattr
        if len(self.message) > MAX_STATUS_MESSAGE_LENGTH // 4:
            set_field(self, "message", cut(self.message, MAX_STATUS_MESSAGE_LENGTH))
        if any(condition.type == "Ready" and condition.status == "True" for condition in self.conditions):
            set_field(self, "ready", True)
        if self.start_time is not None:
            self._keep_clock()
        if self.container_statuses and self.conditions:
            kept = tuple(condition for condition in self.conditions if condition.type not in ROUTINE_CONDITIONS)
            set_field(self, "conditions", kept)
        for condition in self.conditions:
            _truncate(condition)
        if len(self.container_statuses) > MANY_CONTAINERS:
            set_field(self, "container_statuses", _some_of(self.container_statuses))
        if len(self.init_container_statuses) > MANY_CONTAINERS:
            set_field(self, "init_container_statuses", _some_of(self.init_container_statuses))

    @property
    def has_failed_container(self) -> bool:
        """Whether a run of a container has failed."""
        return any(each.has_failed for each in (*self.container_statuses, *self.init_container_statuses))

    def _keep_clock(self) -> None:
        """Keeps what shows that the clock of a failed pod's node is wrong."""
        set_field = msgspec.structs.force_setattr
        bound = next((each.last_transition_time for each in self.conditions if each.type == "PodScheduled"), None)
        if self.has_failed_container and _differ(self.start_time, bound):
            set_field(self, "scheduled_at", bound)
        else:
            set_field(self, "start_time", None)


def _differ(one: str | None, other: str | None) -> bool:
    """Whether two times differ by more than clocks may; an unknown one does."""
    first, second = read_time(one), read_time(other)
    return first is None or second is None or abs(first - second) > CLOCK_TOLERANCE


def _truncate(state: Terminated | Waiting | PodCondition, *, end: int = 0) -> None:
    """Truncates long texts at decoding, because thousands of pods may have hundreds of containers each."""
    if len(state.message) > MAX_STATUS_MESSAGE_LENGTH // 4:  # characters, each of at most four bytes
        msgspec.structs.force_setattr(state, "message", cut(state.message, MAX_STATUS_MESSAGE_LENGTH, end=end))
    if len(state.reason) > LONGEST_REASON // 4:
        msgspec.structs.force_setattr(state, "reason", cut(state.reason, LONGEST_REASON))


def _some_of(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    return (statuses[0], *(status for status in statuses[1:] if status.is_significant))
