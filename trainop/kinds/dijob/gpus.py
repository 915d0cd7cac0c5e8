"""How the GPUs of one logic learner are divided among pods (DI-orchestrator `common/gpuallocator/gpu_allocator.go`,
policy `simple`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from trainop.kinds.dijob.names import GPU
from trainop.runtime.lowlevel import exact_amount

POLICIES = ("simple",)
"""The values of `--gpu-alloc-policy`."""


class NodeGpus(NamedTuple):
    """What the division depends on of a node."""

    gpus: int
    usable: bool
    """Ready and schedulable."""


def counted_gpus(nodes: Iterable[NodeGpus]) -> list[int]:
    """The GPUs of the usable nodes, or of all nodes if none is usable."""
    every = list(nodes)
    return [node.gpus for node in every if node.usable] or [node.gpus for node in every]


def majority(gpus: Sequence[int]) -> int:
    """The most frequent number of GPUs of a node, the larger one on a tie; the maximum if that is 0. No nodes: 0."""
    if not gpus:
        return 0
    found = max(Counter(gpus).items(), key=lambda item: (item[1], item[0]))[0]
    return found or max(gpus)


def pod_count(gpus: int, block: int) -> int:
    """The length of `split`, without building it: a request may ask for any number."""
    return 1 if block <= 0 or gpus < block else -(-gpus // block)


def split(gpus: int, block: int) -> list[int]:
    """The GPUs of each pod of one ddp learner, where `block` is the majority."""
    if block <= 0 or gpus < block:
        return [gpus]
    return [block] * (gpus // block) + [gpus % block] * (gpus % block > 0)


def gpu_count(value: object) -> int:
    """A quantity rounded up to whole GPUs; 0 if it is no quantity."""
    try:
        return -int(-exact_amount(value) // 1)
    except ValueError:
        return 0


def gpus_of(resources: Any) -> int:
    """The GPUs of a container's `resources`: of the limits if there are any, else of the requests."""
    if not isinstance(resources, dict):
        return 0
    chosen = resources.get("limits") or resources.get("requests")
    value = chosen.get(GPU) if isinstance(chosen, dict) else None
    return 0 if value is None else gpu_count(value)
