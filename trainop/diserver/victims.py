"""Which pods a DELETE removes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainop.diserver.seen import PodId, SeenPod, in_order
from trainop.kinds.dijob.names import Role


class Victims(NamedTuple):
    """The chosen replicas, by what the answer calls them, and everything that is deleted for that, in order."""

    collectors: Sequence[SeenPod]
    learners: Sequence[SeenPod]
    pods: Sequence[PodId]


def choose_victims(pods: Iterable[SeenPod], collectors: int, learners: int) -> Victims:
    """Up to so many replicas of a job. Pods that do not run go first, then the newest; plain learners before
    aggregators, and the ddp learners of an aggregator after it."""
    present = [pod for pod in pods if not pod.metadata.terminating]
    chosen = _choose(present, Role.COLLECTOR, collectors)
    plain = _choose(present, Role.LEARNER, learners)
    aggregators = _choose(present, Role.AGGREGATOR, learners - len(plain))
    deleted = [_id(pod) for pod in (*chosen, *plain)]
    groups: dict[str, list[PodId]] = {}
    for pod in in_order(pod for pod in present if pod.role is Role.DDP_LEARNER and pod.aggregator is not None):
        groups.setdefault(pod.aggregator.name if pod.aggregator else "", []).append(_id(pod))
    for aggregator in aggregators:
        deleted += [_id(aggregator), *groups.get(aggregator.metadata.name, ())]
    return Victims(chosen, [*plain, *aggregators], deleted)


def _id(pod: SeenPod) -> PodId:
    return PodId(pod.metadata.name, pod.metadata.uid)


def _choose(pods: Iterable[SeenPod], role: Role, count: int) -> list[SeenPod]:
    newest = in_order(pod for pod in pods if pod.role is role)[::-1]
    return sorted(newest, key=lambda pod: pod.phase == "Running")[: max(count, 0)]
