"""A gang scheduler, of Volcano or with the coscheduling plugin: it starts pods only together with their whole group."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.facts import terminating
from tests.simulation.script import NAMESPACE
from tests.simulation.wire import at_once
from trainop.engine.gang_scheduler import GROUP_NAME, POD_GROUP_LABEL, choose_scheduler
from trainop.local.api.registry.crds import kinds_of_crd
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.storage.versioned_store import Change, Stored, Table
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import Json, Resource

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTS = {"no room", "delete group", "edit group"}
"""What befalls groups: a full cluster, and users."""


class GangScheduler:
    """Observes pods and PodGroups in the store."""

    def __init__(self, world: World) -> None:
        found = choose_scheduler(world.script.gang)
        assert found is not None, "a script without a gang scheduler"
        self.scheduler = found
        self._world = world
        self._rng = random.Random(f"{world.script.seed}/gang")
        self._admitted: set[str] = set()
        self._full_until = 0.0
        self._looks = False

    @property
    def groups(self) -> Resource:
        return self.scheduler.groups

    def __call__(self, table: Table, _change: Change) -> None:
        if table.name in {"pods", str(self.groups)}:
            self._look_soon(self._rng.uniform(0.05, 0.6))

    def _look_soon(self, delay: float) -> None:
        if not self._looks:
            self._looks = True
            self._world.nodes.busy += 1
            self._world.loop.outside(delay, self._look)

    def _look(self) -> None:
        self._looks = False
        self._world.nodes.busy -= 1
        left = self._full_until - self._world.loop.time()
        if left > 0:
            self._look_soon(left + 0.01)
            return
        for stored in list(self._world.store.table(str(self.groups)).objects.values()):
            if not terminating(stored.value):
                self._look_at(stored)

    def _look_at(self, group: Stored) -> None:
        name = group.key[1]
        phase = (group.value.get("status") or {}).get("phase")
        if self._is_volcano and phase in {None, "", "Pending"}:
            self._set_phase(group, "Inqueue")
            return
        pods = [stored for stored in self._world.store.table("pods").objects.values() if self._is_member(stored, name)]
        if len(pods) < (group.value["spec"].get("minMember") or 0):
            return
        for stored in sorted(pods, key=lambda pod: pod.key):
            if stored.uid not in self._admitted:
                self._admitted.add(stored.uid)
                self._world.nodes.admit(stored)
        if self._is_volcano and phase == "Inqueue":
            self._set_phase(group, "Running")

    def _set_phase(self, group: Stored, phase: str) -> None:
        value = msgspec.json.decode(group.body, type=dict)
        value["status"] = {**(value.get("status") or {}), "phase": phase}
        self._world.happened += 1
        self._world.store.put(str(self.groups), group.key, value)

    def _is_member(self, stored: Stored, group: str) -> bool:
        metadata, spec = stored.value["metadata"], stored.value["spec"]
        named = (metadata.get("annotations") or {}).get(GROUP_NAME) or (metadata.get("labels") or {}).get(
            POD_GROUP_LABEL
        )
        return named == group and spec.get("schedulerName") == self.scheduler.name and not terminating(stored.value)

    @property
    def _is_volcano(self) -> bool:
        return self.groups.group == "scheduling.volcano.sh"

    # Fate -------------------------------------------------------------------------------------------------------------

    def strike(self, act: str, rng: random.Random, seconds: float) -> bool:
        """Returns False if there is no group yet."""
        if act == "no room":
            self._full_until = self._world.loop.time() + seconds
            for stored in list(self._world.store.table(str(self.groups)).objects.values()):
                if self._is_volcano and rng.random() < 0.5:
                    self._set_phase(stored, "Pending")
            return True
        groups = sorted(self._world.store.table(str(self.groups)).objects)
        if not groups:
            return False
        name = rng.choice(groups)[1]
        self._world.note("user", f"{act} {name}")
        self._world.happened += 1
        try:
            self._meddle(act, name, rng)
        except NotFoundError:
            return False
        return True

    def _meddle(self, act: str, name: str, rng: random.Random) -> None:
        client, observer = self._world.users.client, self._world.gang_observer
        if act == "delete group":
            at_once(client.delete(self.groups, name, NAMESPACE))
            return
        if observer is not None:
            observer.by_others = True
        at_once(client.patch(self.groups, name, NAMESPACE, {"spec": {"minMember": rng.randint(1, 9)}}))
        if observer is not None:
            observer.by_others = False

    def recover(self) -> None:
        """The faults are over."""
        self._full_until = min(self._full_until, self._world.loop.time())


def kinds_of_groups(groups: Resource) -> list[Kind]:
    """PodGroups, as if their CRD had been created."""
    schema: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": groups.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": groups.plural, "kind": groups.kind}
    spec = {"group": groups.group, "scope": "Namespaced", "names": names, "versions": [version]}
    return kinds_of_crd({"metadata": {"name": str(groups)}, "spec": spec})
