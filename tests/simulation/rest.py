"""Detects the end of a run: no changes happen, and no work is due that could cause one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from tests.simulation.facts import due_at
from tests.simulation.fault_rates import FAIR
from tests.simulation.loop import EPOCH, Pause
from tests.simulation.replica import metrics
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.runtime.controller.expectations import EXPECTATION_TIMEOUT
from trainop.runtime.objects.metadata import Json

if TYPE_CHECKING:
    from tests.simulation.world import World

QUIET = 3.0
"""Seconds without a change after which a cluster is at rest, if all watches stand and nothing is due: what was under
way has arrived by then."""

FAR = 35.0
"""The same if something is due within so many seconds: longer than any second look, which may go on for ever."""

LOOK_EVERY = 2.0

MOST_RESTLESS = 1500.0
"""Seconds after the faults within which it has to be at rest."""

RECOVERY = 100.0
"""Seconds after the faults within which everything may still be late: back-offs, elections."""

PATIENCE = 60.0
"""Seconds within which what a process has seen has to be looked at, longer than any back-off."""

CURRENT_WITHIN = 130.0
"""Seconds after the faults within which the caches are current (docs/runtime.md); a reconcile waits for that."""

UNIMPORTANT = {"leases.coordination.k8s.io", "events"}


class Rest:
    """Observes the changes in the store."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.changed_at = 0.0
        self._attentive_at = 0.0
        """When nobody waited for what was there."""
        self._expired_before = self._expired()

    def __call__(self, table: Table, change: Change) -> None:
        if table.name not in UNIMPORTANT:
            self.changed_at = self._world.loop.time()

    async def settle(self) -> None:
        """Run until the cluster is at rest."""
        world = self._world
        while not world.judge.violations:
            await Pause(world.loop, LOOK_EVERY)
            world.nodes.look()
            if world.loop.time() - world.calm_at > MOST_RESTLESS:
                world.judge.flag("comes to rest", f"after {MOST_RESTLESS:g} s something still happens or is awaited")
            elif self._rests():
                return

    def _rests(self) -> bool:
        """Whether nothing changes, nothing is due, and a replica leads."""
        world, now = self._world, self._world.loop.time()
        catches_up = now < world.calm_at + CURRENT_WITHIN and not all(each.is_current for each in world.replicas)
        if catches_up or not any(each.oversees for each in world.replicas):
            self._attentive_at = now
        elif now > max(self._attentive_at, world.calm_at) + PATIENCE:
            world.judge.flag("comes to rest", "own writes are awaited, although they have been seen")
        if not all(each.stands for each in world.replicas) or not any(each.is_master for each in world.replicas):
            self.changed_at = now
        quiet = FAR if any(each.has_due(FAR) for each in world.replicas) else QUIET
        if (
            world.observer.awaits_retry()
            or (world.job_controller is not None and not world.job_controller.rests)
            or (world.di is not None and not world.di.rests)
            or any(world.users.wishes.values())
            or world.nodes.busy
            or now < self.changed_at + quiet
        ):
            return False
        awaiting = [job for job in world.jobs() if self._awaits_time(job)]
        return not awaiting

    def _awaits_time(self, job: Json) -> bool:
        """Whether a limit of the job is still in the future; an overdue one is reported by another rule."""
        due = due_at(job)
        if due is None:
            return False
        jumps = self._world.script.jumps
        late = (self._world.clock.now() - due).total_seconds()
        if late > self.patience(due, 5.0) and not jumps:
            name = job["metadata"]["name"]
            self._world.judge.flag("limits on time", f"{name} is past its deadline or time to live by {late:.0f} s")
        return not jumps or -100 < late < 0

    def patience(self, due: datetime, usual: float) -> float:
        """Maximum delay of work that is due at `due`, longer shortly after faults. The longest case is a child deleted
        before it was observed, which is awaited until the expectation expires."""
        world = self._world
        if self._expired() > self._expired_before or any(replica.waits for replica in world.replicas):
            return EXPECTATION_TIMEOUT + RECOVERY
        recovered = world.calm_at + RECOVERY if world.script.chaos or world.script.fault_rates != FAIR else 0.0
        return max(usual, recovered - (due - EPOCH).total_seconds())

    def _expired(self) -> int:
        kinds = (metrics().controller(kind.controller) for kind in self._world.kinds)
        return sum(int(kind.expectations_expired._value.get()) for kind in kinds)
