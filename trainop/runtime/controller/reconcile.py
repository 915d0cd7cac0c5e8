"""What a controller asks of a reconciler, and what the reconciler answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainop.runtime.objects.metadata import Key


@dataclass(frozen=True, slots=True)
class Result:
    """`requeue_after` in seconds: look again then at the latest. It is not remembered across an earlier run: every
    reconcile returns its next deadline anew (controller-runtime `reconcile.Result`). `requeue`: look again at once,
    without back-off and without being an error (a conflict: somebody else wrote first)."""

    requeue_after: float | None = None
    requeue: bool = False


DONE = Result()


class Reconciler(Protocol):
    """Brings the world of one key nearer to what its object asks for. Raises to be retried with back-off."""

    async def reconcile(self, key: Key) -> Result: ...
