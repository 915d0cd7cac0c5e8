"""Shared by kinds with a leading role: which role determines the state of the job, and which replicas are masters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from trainop.engine.framework import PLAIN_TEXTS, QUALIFIED_TEXTS, Framework, Progress, Tally, Texts
from trainop.engine.job import Job, Role

MASTER = "Master"
WORKER = "Worker"


def leader(job: Job, *types: str) -> Role | None:
    """The first of these roles that has replicas in the job, or None."""
    return next((role for type_ in types if (role := job.role(type_)) is not None and role.replicas), None)


def follow(role: Role | None, tallies: Mapping[str, Tally], *, enough: int | None = None) -> Progress:
    """Progress of the job by the state of one role. It succeeds when all replicas of the role, or `enough` of them,
    have succeeded. A role without replicas never succeeds."""
    if role is None:
        return Progress(running=False, succeeded=False)
    tally = tallies[role.type]
    succeeded = tally.succeeded >= (enough or role.replicas) > 0
    return Progress(running=tally.active > 0 and not succeeded, succeeded=succeeded)


def follow_first(*types: str) -> Callable[[Job, Mapping[str, Tally]], Progress]:
    """A `progress` function that follows the first of these roles that has replicas."""

    def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
        return follow(leader(job, *types), tallies)

    return progress


def only_master(_job: Job, role: Role, _index: int) -> bool:
    """Masters are the replicas of the role Master; a job without that role has none."""
    return role.type == MASTER


def master_or_first(job: Job, role: Role, index: int) -> bool:
    """Masters are the replicas of the role Master, or replica 0 of a job without that role."""
    return role.type == MASTER if leader(job, MASTER) else index == 0


def texts_by_master(job: Job) -> Texts:
    """Upstream's messages include the namespace for jobs without a master."""
    return PLAIN_TEXTS if leader(job, MASTER) else QUALIFIED_TEXTS


def rank_after_masters(job: Job, role: Role, index: int) -> int | None:
    """The only master is rank 0, and workers follow. None in a job without a master, where the framework assigns
    ranks at run time."""
    if job.role(MASTER) is None:
        return None
    return index if role.type == MASTER else index + 1


def rank_by_index(_job: Job, _role: Role, index: int) -> int | None:
    """All replicas have the same role."""
    return index


def missing_leaders(framework: Framework, job: Job) -> list[str]:
    """The roles of which one would decide when the job runs and has ended, if it has none of them; otherwise empty.
    Such a job is valid, as upstream, and never ends by itself."""

    def decides(*roles: Role) -> bool:
        all_active = {role.type: Tally(active=role.replicas) for role in roles}
        return framework.progress(replace(job, roles=roles), all_active).running

    if decides(*job.roles):
        return []
    others = [type_ for type_ in framework.roles if (role := job.role(type_)) is None or not role.replicas]
    kept = {type_: tuple(role for role in job.roles if role.type != type_) for type_ in others}
    return [type_ for type_ in others if decides(*kept[type_], Role(type_, 1, "Never", {}))]
