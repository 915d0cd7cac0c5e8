"""Collects the results of the actions of one pass, from which the reconciler computes when to requeue the job."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainop.controllers.companion_writer import CompanionResult
from trainop.controllers.refused_children import NEXT_BATCH_AFTER, RefusedChild
from trainop.engine.actions import CompanionAction, Patch

MAX_REFUSALS = 4
"""Consecutive refusals after which a pass creates no more pods or services of a begun job."""


@dataclass(slots=True)
class Outcome:
    """The results of some or all actions of a pass; `merge` combines groups that ran concurrently."""

    errors: list[Exception] = field(default_factory=list)
    """Failures that are retried with back-off."""
    refused: str | None = None
    """The API server's message, if its refusal fails the job."""
    refused_children: list[RefusedChild] = field(default_factory=list)
    """Children that the API server refused while the job goes on."""
    consecutive_refusals: int = 0
    """Refusals since the last successful create."""
    blocked: bool = False
    """The namespace's quota is exhausted, or the operator's role lacks a permission."""
    requeue_after: float | None = None
    """Seconds until the next pass at the latest; None if nothing requires one."""
    pods_wait: bool = False
    """The PodGroup could not be created, so that no pod may be."""
    begun: bool = False
    """The job has had pods: no refusal fails it."""
    unfinished: bool = False
    """The pass reached its limit of writes, so more actions are probably left."""
    halted: bool = False
    """A companion that the pods need could not be written, or a patch failed: no later action is carried out."""

    @property
    def should_stop(self) -> bool:
        """Whether no further action should be started."""
        return (
            bool(self.errors)
            or self.refused is not None
            or self.blocked
            or self.halted
            or self.consecutive_refusals >= MAX_REFUSALS
        )

    @property
    def undisturbed(self) -> bool:
        """Whether all actions that were started have succeeded."""
        return not (self.should_stop or self.refused_children or self.pods_wait)

    def wait(self, seconds: float) -> None:
        """Requeues the job after `seconds` at the latest."""
        self.requeue_after = seconds if self.requeue_after is None else min(self.requeue_after, seconds)

    def add_companion(self, action: CompanionAction, result: CompanionResult) -> None:
        """Adds the result of writing a companion."""
        if isinstance(action, Patch) or action.essential:
            self.halted |= result.taken or result.error is not None
        if result.refused and self.begun and not isinstance(action, Patch):
            self.refuse(RefusedChild(action.resource.kind, action.manifest["metadata"]["name"], result.refused))
        else:
            self.refused = self.refused or result.refused
        if result.error is not None:
            self.errors.append(result.error)
        if result.requeue_after is not None:
            self.wait(result.requeue_after)

    def refuse(self, refused: RefusedChild) -> None:
        """Adds a child that the API server refused while the job goes on."""
        self.refused_children.append(refused)
        self.consecutive_refusals += 1
        if self.consecutive_refusals >= MAX_REFUSALS:
            self.wait(NEXT_BATCH_AFTER)

    def merge(self, other: Outcome) -> None:
        """Adds the results of another group of actions."""
        self.errors += other.errors
        self.refused_children += other.refused_children
        self.refused = self.refused or other.refused
        self.blocked |= other.blocked
        self.pods_wait |= other.pods_wait
        self.halted |= other.halted
        if other.requeue_after is not None:
            self.wait(other.requeue_after)
