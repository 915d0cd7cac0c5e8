"""What has become of the actions of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainop.controllers.companions import CompanionResult
from trainop.controllers.refused_children import OTHERS_AFTER, RefusedChild
from trainop.engine.actions import Apply

MOST_REFUSED = 4
"""RefusedChildren in a row that one pass accepts of the pods or the services of a job that goes on."""


@dataclass(slots=True)
class Outcome:
    """What a pass has to know of its actions."""

    errors: list[Exception] = field(default_factory=list)
    """Failures to be retried with back-off."""
    refused: str | None = None
    """Why the API server refuses the pod template, of a job that this ends."""
    held: list[RefusedChild] = field(default_factory=list)
    """What it refused of a job that goes on."""
    streak: int = 0
    """Of refusals, none made in between."""
    over_quota: bool = False
    requeue_after: float | None = None
    begun: bool = False
    """The job has had pods: no refusal ends it."""
    unfinished: bool = False
    """As much as one pass may do: more is probably left."""

    @property
    def troubled(self) -> bool:
        return bool(self.errors) or self.refused is not None or self.over_quota or self.streak >= MOST_REFUSED

    def wait(self, seconds: float) -> None:
        self.requeue_after = seconds if self.requeue_after is None else min(self.requeue_after, seconds)

    def note(self, action: Apply, result: CompanionResult) -> None:
        """What has become of a companion."""
        if result.refused and self.begun:
            self.hold(RefusedChild(action.resource.kind, action.manifest["metadata"]["name"], result.refused))
        else:
            self.refused = self.refused or result.refused
        if result.error is not None:
            self.errors.append(result.error)
        if result.requeue_after is not None:
            self.wait(result.requeue_after)

    def hold(self, refused: RefusedChild) -> None:
        self.held.append(refused)
        self.streak += 1
        if self.streak >= MOST_REFUSED:
            self.wait(OTHERS_AFTER)

    def merge(self, other: Outcome) -> None:
        self.errors += other.errors
        self.held += other.held
        self.refused = self.refused or other.refused
        self.over_quota |= other.over_quota
        if other.requeue_after is not None:
            self.wait(other.requeue_after)
