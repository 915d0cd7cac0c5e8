"""What has become of the actions of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainop.controllers.companions import Verdict
from trainop.controllers.refused import OTHERS_AFTER, Refused
from trainop.engine.actions import Apply

MOST_REFUSED = 4
"""Refusals in a row that one pass accepts of the pods or the services of a job that goes on."""


@dataclass(slots=True)
class Outcome:
    """What a pass has to know of its actions."""

    errors: list[Exception] = field(default_factory=list)
    """Failures to be retried with back-off."""
    refused: str | None = None
    """Why the API server refuses the pod template, of a job that this ends."""
    held: list[Refused] = field(default_factory=list)
    """What it refused of a job that goes on."""
    streak: int = 0
    """Of refusals, none made in between."""
    over_quota: bool = False
    again_in: float | None = None
    begun: bool = False
    """The job has had pods: no refusal ends it."""
    unfinished: bool = False
    """As much as one pass may do: more is probably left."""

    @property
    def troubled(self) -> bool:
        return bool(self.errors) or self.refused is not None or self.over_quota or self.streak >= MOST_REFUSED

    def wait(self, seconds: float) -> None:
        self.again_in = seconds if self.again_in is None else min(self.again_in, seconds)

    def note(self, action: Apply, verdict: Verdict) -> None:
        """What has become of a companion."""
        if verdict.refused and self.begun:
            self.hold(Refused(action.resource.kind, action.manifest["metadata"]["name"], verdict.refused))
        else:
            self.refused = self.refused or verdict.refused
        if verdict.error is not None:
            self.errors.append(verdict.error)
        if verdict.again_in is not None:
            self.wait(verdict.again_in)

    def hold(self, refused: Refused) -> None:
        self.held.append(refused)
        self.streak += 1
        if self.streak >= MOST_REFUSED:
            self.wait(OTHERS_AFTER)

    def merge(self, other: Outcome) -> None:
        self.errors += other.errors
        self.held += other.held
        self.refused = self.refused or other.refused
        self.over_quota |= other.over_quota
        if other.again_in is not None:
            self.wait(other.again_in)
