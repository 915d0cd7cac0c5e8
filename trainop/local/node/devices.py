"""Which container has which GPU, as kubelet's device manager assigns them.

A container keeps its devices until its pod has ended, also when it restarts. Those of init containers are used again by
the containers after them. Source: kubernetes `pkg/kubelet/cm/devicemanager/manager.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from trainop.engine.pod_resources import Resources, container_requests, pod_requests
from trainop.runtime import Json

GPU = "nvidia.com/gpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_INDICES = re.compile(r"\d+(,\d+)*")


class DeviceError(Exception):
    """Too few devices are free; the message is kubelet's."""


class Devices:
    """The GPUs of the node. `known` is empty if none were found: then containers see what the machine has."""

    def __init__(self, known: Sequence[str] = (), *, allow_cpu: bool = False) -> None:
        """`known` are names that `CUDA_VISIBLE_DEVICES` may have. With `allow_cpu`, a pod that requests more GPUs than
        are known gets none."""
        self.known = tuple(known)
        self._allow_cpu = allow_cpu
        self._held: dict[str, dict[str, tuple[str, ...]]] = {}
        """By UID of the pod and name of the container."""

    def allocate(self, uid: str, spec: Json) -> None:
        """Assigns devices to all containers of a pod that has none yet. Raises `DeviceError`."""
        if uid not in self._held:
            self._held[uid] = self._assign(spec)

    def release(self, uid: str) -> None:
        """Makes the devices of a pod that has ended available to others."""
        self._held.pop(uid, None)

    def assigned(self, uid: str, container: str) -> tuple[str, ...]:
        """The devices of a container."""
        return self._held.get(uid, {}).get(container, ())

    def variables(self, uid: str, container: str, given: Mapping[str, str]) -> dict[str, str]:
        """The variable that shows a container its devices only, or none. `given` are the variables of its spec: an
        index in `CUDA_VISIBLE_DEVICES` is one among the devices of the container, as in a cluster."""
        if not self.known:
            return {}
        mine = self.assigned(uid, container)
        if not (wanted := given.get(VISIBLE)):
            return {} if VISIBLE in given else {VISIBLE: ",".join(mine)}
        if not mine or not _INDICES.fullmatch(wanted):
            return {}
        chosen = [int(each) for each in wanted.split(",")]
        return {VISIBLE: ",".join(mine[each] for each in chosen if each < len(mine))}

    def _assign(self, spec: Json) -> dict[str, tuple[str, ...]]:
        taken = {each for held in self._held.values() for devices in held.values() for each in devices}
        free = [each for each in self.known if each not in taken]
        without = self._allow_cpu and _count(pod_requests(spec)) > len(self.known)
        reusable: list[str] = []
        assigned: dict[str, tuple[str, ...]] = {}
        for container, keeps in _containers(spec):
            count = 0 if without else _count(container_requests(container))
            available = [*reusable, *(each for each in free if each not in reusable)]
            if count > len(available):
                raise DeviceError(
                    f"Allocate failed due to requested number of devices unavailable for {GPU}. "
                    f"Requested: {count}, Available: {len(available)}, which is unexpected"
                )
            mine = available[:count]
            assigned[container["name"]] = tuple(mine)
            free = [each for each in free if each not in mine]
            reusable = [each for each in reusable if each not in mine] if keeps else [*dict.fromkeys(reusable + mine)]
        return assigned


def _count(resources: Resources) -> int:
    return int(resources[GPU].amount) if GPU in resources else 0


def _containers(spec: Json) -> Iterator[tuple[Json, bool]]:
    """The containers in their order, and whether each keeps its devices while those after it run."""
    for each in spec.get("initContainers") or ():
        yield each, each.get("restartPolicy") == "Always"
    for each in spec["containers"]:
        yield each, True
