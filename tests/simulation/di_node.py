"""Nodes that play the pods of DIJobs. A coordinator runs until it is ended; other pods may end at any time."""

from __future__ import annotations

from tests.simulation.facts import phase, terminating
from tests.simulation.node import Nodes
from trainop.local.api.storage.versioned_store import Stored


class DiNodes(Nodes):
    def _progress(self, stored: Stored) -> None:
        value = stored.value
        if terminating(value) or phase(value) != "Running" or value["spec"].get("restartPolicy") != "Never":
            return
        if value["metadata"]["labels"].get("replica-type") == "coordinator":
            return
        if self._rng.random() < 0.3:
            code = self._rng.choice((0, 1))
            self.end(stored, "Failed" if code else "Succeeded", code=code)
