"""Plans for a job that would go on as it is: the restart of all its pods, and its end at the startup deadline."""

from __future__ import annotations

from trainop.engine.actions import Plan
from trainop.engine.assess import assess_job
from trainop.engine.failures import Limit
from trainop.engine.framework import Framework, selector
from trainop.engine.plan import begin, complete, fail_at_limit, write_history
from trainop.engine.restart_history import RestartHistory
from trainop.engine.root_cause import Failure
from trainop.engine.seen import Snapshot
from trainop.engine.steps.restarts import restart


def restart_all(framework: Framework, seen: Snapshot, cause: Failure) -> Plan | None:
    """Plans the restart of all pods of a job that goes on, whatever its restart scope, as one failure of the user's
    code; the job fails if that exceeds `backoffLimit`. None if the job cannot be restarted as it is."""
    builder = begin(framework, seen)
    status = builder.status
    found = assess_job(framework, builder.job, builder.children, seen, status, restart_all=True)
    if not found.findings.restarts:
        return None
    builder.job = found.job
    builder.blame(cause)
    status.record(found.tallies, labels=selector(framework, builder.job.name) if framework.scale else None)
    if found.limit is not None:
        return fail_at_limit(builder, found.limit, found.history)
    restart(builder, found, why=cause.reason)
    write_history(builder, found.history)
    builder.requeue_after(found.deadline_in)
    return complete(builder, waits=True)


def give_up(framework: Framework, seen: Snapshot, cause: Failure) -> Plan:
    """Plans the end of a job at its startup deadline."""
    builder = begin(framework, seen)
    builder.blame(cause)
    history = RestartHistory(builder.job.metadata.uid, builder.job.metadata.annotations)
    return fail_at_limit(builder, Limit.STARTUP, history)
