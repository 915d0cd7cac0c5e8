"""What kinds with a leading role share: whose state is the job's state, and which replicas are called master."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainop.engine.framework import PLAIN_TEXTS, QUALIFIED_TEXTS, Progress, Tally, Texts
from trainop.engine.job import Job, Role

MASTER = "Master"
WORKER = "Worker"


def leader(job: Job, *types: str) -> Role | None:
    """The first of these roles that the job has replicas of."""
    return next((role for type_ in types if (role := job.role(type_)) is not None and role.replicas), None)


def follow(role: Role | None, tallies: Mapping[str, Tally], *, enough: int | None = None) -> Progress:
    """The state of this role is that of the job; it has succeeded when all of its replicas have, or `enough` of them.
    No replicas are no success."""
    if role is None:
        return Progress(running=False, succeeded=False)
    tally = tallies[role.type]
    succeeded = tally.succeeded >= (enough or role.replicas) > 0
    return Progress(running=tally.active > 0 and not succeeded, succeeded=succeeded)


def follow_first(*types: str) -> Callable[[Job, Mapping[str, Tally]], Progress]:
    """The first of these roles that there is decides."""

    def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
        return follow(leader(job, *types), tallies)

    return progress


def only_master(_job: Job, role: Role, _index: int) -> bool:
    """The replicas of the role Master lead, and without that role nobody does."""
    return role.type == MASTER


def master_or_first(job: Job, role: Role, index: int) -> bool:
    """The replicas of the role Master lead, or without that role the first one."""
    return role.type == MASTER if leader(job, MASTER) else index == 0


def texts_by_master(job: Job) -> Texts:
    """Upstream says the namespace of jobs that no master leads."""
    return PLAIN_TEXTS if leader(job, MASTER) else QUALIFIED_TEXTS
