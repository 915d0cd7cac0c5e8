"""The two kinds of MPIJob: one resource, of which each controller has the jobs of its transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from trainop.engine import plan as engine
from trainop.engine.actions import Plan
from trainop.engine.admission import Judgement
from trainop.engine.children import ChildEvents
from trainop.engine.failures import seconds_to_due
from trainop.engine.kind import Kind, kind_of
from trainop.engine.parse import ignored
from trainop.engine.seen import Options, Snapshot
from trainop.engine.steps.rights import BINDING, ROLE, withdraw
from trainop.kinds.mpi.admission import judge_mpi
from trainop.kinds.mpi.exec.kind import ACCOUNT, MPI_EXEC
from trainop.kinds.mpi.hosts import CONFIG, LAUNCHER
from trainop.kinds.mpi.ssh.finish import release
from trainop.kinds.mpi.ssh.plan import plan_ssh, reject_ssh
from trainop.kinds.mpi.ssh.restart import give_up_ssh, restart_ssh
from trainop.kinds.mpi.ssh.world import LAUNCHER_JOB, WORDS
from trainop.kinds.mpi.transport import (
    EXEC,
    LAUNCHER_JOBS,
    SSH,
    choose,
    decode_mpi_job,
    known_transport,
    leave_to_other,
    lookups,
    watched_version,
)
from trainop.runtime import SECRETS, Unstructured

Judge = Callable[[Unstructured, Unstructured | None], Judgement]

COMPONENTS = {
    "": ("mpi-exec", "mpi-ssh"),
    "namespaced": ("mpi-exec-namespaced", "mpi-ssh-namespaced"),
    "mpi-operator": ("overlays/mpi-operator/exec", ""),
}
"""Installation -> the components that grant the rights for each transport; empty: every installation has them."""


def mpi_kinds(options: Options) -> tuple[Kind, Kind]:
    """Transport exec, and transport ssh, which also decides about jobs without a recorded transport."""
    judge = partial(judge_mpi, options)
    exec_component, ssh_component = COMPONENTS[options.installation]
    by_exec = replace(
        kind_of(MPI_EXEC, options),
        plan=plan_exec,
        judge=judge,
        due=_due,
        watched=watched_version(options),
        decode=decode_mpi_job,
        concerns=_is_exec,
        rights_component=exec_component,
        component_resources=frozenset({ACCOUNT.resource, ROLE.resource, BINDING.resource}),
        lookups=lookups,
        release=withdraw,
        shows_taken=True,
    )
    return by_exec, _by_ssh(options, judge, ssh_component)


def _by_ssh(options: Options, judge: Judge, component: str) -> Kind:
    return Kind(
        resource=WORDS.resource,
        name=MPI_EXEC.name,
        controller=WORDS.controller,
        component="mpi-job-controller",
        child_events=ChildEvents(not_created=("MPIJobFailed", "worker pod created failed: {error}")),
        companion_kinds=(CONFIG, LAUNCHER_JOB),
        plan=plan_ssh,
        reject=reject_ssh,
        restart=restart_ssh,
        give_up=give_up_ssh,
        judge=judge,
        name_taken=WORDS.name_taken,
        watched=watched_version(options),
        decode=decode_mpi_job,
        concerns=lambda job: not _is_exec(job),
        rights_component=component,
        component_resources=frozenset({SECRETS, LAUNCHER_JOBS}),
        lookups=lookups,
        release=release,
        launcher=launcher_of,
    )


def plan_exec(seen: Snapshot) -> Plan:
    """Plans one reconcile of a job with transport exec. A job of the other transport is left to its controller, and one
    without a transport to that of ssh, which records it: two writes at once would conflict."""
    if ignored(seen.job, MPI_EXEC.managers) or known_transport(seen.job) is None:
        return Plan()
    choice = choose(seen)
    if choice.transport != EXEC:
        return leave_to_other(choice)
    made = engine.plan(MPI_EXEC, seen)
    if not choice.record or seen.job.metadata.terminating:
        return made
    return replace(
        made, annotations={**made.annotations, **choice.annotations()}, notices=(*choice.notices(), *made.notices)
    )


def launcher_of(job: Unstructured) -> str:
    """The name of the launcher's Job; empty before there is one, and with transport exec."""
    status = job.raw.get("status")
    counts = status.get("replicaStatuses") if isinstance(status, dict) else None
    has_launcher = isinstance(counts, dict) and LAUNCHER in counts
    return f"{job.metadata.name}-launcher" if has_launcher and known_transport(job) == SSH else ""


def _is_exec(job: Unstructured) -> bool:
    return known_transport(job) == EXEC


def _due(job: Unstructured, now: datetime) -> float | None:
    return seconds_to_due(job, now) if _is_exec(job) else None
