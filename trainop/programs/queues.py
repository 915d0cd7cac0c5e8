"""The kinds that the operator queues with Kueue itself."""

from __future__ import annotations

from dataclasses import replace

from trainop.engine.kind import Kind
from trainop.engine.queueing.queue import Queueing
from trainop.engine.queueing.roles import queueing_of
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.queueing import exec_queueing, ssh_queueing
from trainop.programs.schemes import FRAMEWORKS

QUEUED = (*FRAMEWORKS, "MPIJob")
"""What `--kueue` may name."""


def with_queue(kind: Kind) -> Kind:
    """The kind, whose jobs are planned as the Workloads of their queues permit."""
    return replace(kind, queued=_queueing(kind).plan)


def _queueing(kind: Kind) -> Queueing:
    if kind.kind in FRAMEWORKS:
        return queueing_of(FRAMEWORKS[kind.kind])
    return exec_queueing() if kind.controller == MPI_EXEC.controller else ssh_queueing()
