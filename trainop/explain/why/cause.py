"""`Cause` and `Diagnosis`: the values that explain a job."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from trainop.runtime import Json


class State(enum.Enum):
    """The state of a job, and with it the exit code of `trainop why`."""

    SUCCEEDED = "Succeeded"
    RUNNING = "Running"
    FAILED = "Failed"
    WAITING = "Waiting"
    TROUBLED = "Troubled"
    """It runs, but not as it should."""

    @property
    def exit_code(self) -> int:
        return {"Succeeded": 0, "Running": 0, "Failed": 1, "Waiting": 3, "Troubled": 4}[self.value]


class Weight(enum.IntEnum):
    """How much a cause explains: a heavier one makes the lighter ones its consequences."""

    END = 90
    """The job has ended."""
    HELD = 80
    """Nobody may create pods now: suspended, queued, left to another controller."""
    OPERATOR = 70
    """No operator acts on the job."""
    CREATION = 60
    """Pods cannot be created."""
    PLACEMENT = 50
    """Pods cannot be placed on nodes."""
    START = 40
    """Containers cannot start."""
    FAILURE = 30
    """Containers fail and are restarted."""
    COURSE = 20
    """The job runs, or something about it is remarkable."""
    HINT = 10


@dataclass(frozen=True, slots=True)
class Cause:
    """One situation of a job. All texts are plain words; names and messages of the cluster in them are not yet cleaned
    of control characters: who prints them does that."""

    code: str
    """A constant word for programs, such as `Unschedulable`."""
    text: str
    """What is the matter, in one sentence without a full stop."""
    next: str = ""
    """What to do about it; empty if nothing is to be done."""
    evidence: tuple[str, ...] = ()
    """Messages of the cluster that show it."""
    weight: int = Weight.HINT
    """See `Weight`."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The explanation of a job."""

    state: State
    causes: tuple[Cause, ...]
    """The heaviest first. Never empty."""
    unread: tuple[str, ...] = field(default=())
    """What the user may not read, or what could not be read."""

    def as_json(self) -> Json:
        """For `-o json`."""
        causes = [
            {"code": each.code, "text": each.text, "evidence": list(each.evidence), "next": each.next}
            for each in self.causes
        ]
        return {"state": self.state.value, "causes": causes, "unread": list(self.unread)}
