"""The interface of a reconciler and its result (controller-runtime `pkg/reconcile`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainop.runtime.objects.metadata import Key


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a reconcile (controller-runtime `reconcile.Result`).

    `requeue_after`: reconcile again within this many seconds. An earlier reconcile discards it, so every reconcile must
    return its next deadline. `requeue`: reconcile again almost at once (within 0.25 s), not counted as an error; for a
    write conflict.
    """

    requeue_after: float | None = None
    requeue: bool = False


DONE = Result()
"""The result without a requeue."""


class Reconciler(Protocol):
    """Moves the actual state towards the desired state of one object."""

    async def reconcile(self, key: Key) -> Result:
        """Reconciles the object of `key`, which may have been deleted. An exception causes a retry with back-off;
        `TerminalError` does not. Calls for the same key never overlap."""
        ...
