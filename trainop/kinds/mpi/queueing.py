"""The queueing of MPIJobs: a pod set for the launcher and one for the workers, with either transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from trainop.engine.parse import ignored
from trainop.engine.queueing.placement import place_roles
from trainop.engine.queueing.pod_sets import PodSet
from trainop.engine.queueing.queue import Queueing
from trainop.engine.queueing.roles import queueing_of
from trainop.engine.seen import Snapshot
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.hosts import LAUNCHER, REPLICA_SPECS, WORKER
from trainop.kinds.mpi.ssh.job import MANAGERS, SshJob, parse_ssh
from trainop.kinds.mpi.ssh.objects import launcher_template, worker_encoder
from trainop.kinds.mpi.ssh.world import WORDS
from trainop.kinds.mpi.transport import EXEC, SSH, choose, known_transport
from trainop.runtime import Json


def exec_queueing() -> Queueing:
    """How jobs with transport exec are queued."""
    return replace(queueing_of(MPI_EXEC), leaves=_leaves_exec)


def ssh_queueing() -> Queueing:
    """How jobs with transport ssh are queued. Their pods end with the launcher."""
    return Queueing(
        words=WORDS,
        pod_sets=_pod_sets,
        place=partial(place_roles, REPLICA_SPECS),
        leaves=_leaves_ssh,
        done=_none_done,
    )


def _leaves_exec(seen: Snapshot) -> bool:
    """The controller of ssh records the transport."""
    return ignored(seen.job, MPI_EXEC.managers) or known_transport(seen.job) != EXEC


def _leaves_ssh(seen: Snapshot) -> bool:
    """The pass that records the transport also starts the job, so that it has to ask the queue already."""
    return ignored(seen.job, MANAGERS) or choose(seen).transport != SSH


def _none_done(_seen: Snapshot) -> Mapping[str, int]:
    return {}


def _pod_sets(seen: Snapshot) -> Sequence[PodSet]:
    job, errors = parse_ssh(seen.job, seen.options)
    if job is None or errors:
        return ()
    launcher = PodSet(LAUNCHER.lower(), 1, job.launcher.template, partial(launcher_template, job, seen.options))
    if job.worker is None:
        return (launcher,)
    make = partial(_make_worker, job, seen)
    return launcher, PodSet(WORKER.lower(), job.worker.count, job.worker.template, make)


def _make_worker(job: SshJob, seen: Snapshot) -> Json:
    assert job.worker is not None  # noqa: S101  # as in `_pod_sets`
    made: Json = msgspec.json.decode(worker_encoder(job, job.worker, seen.options)(0)())
    return made
