"""The kinds that the operator queues with Kueue itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainop.engine.kind import Kind
from trainop.engine.queueing.queue import Queueing
from trainop.engine.queueing.roles import queueing_of
from trainop.errors import StartError
from trainop.kinds.dijob.names import DIJOBS
from trainop.kinds.dijob.queueing import dijob_queueing
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.queueing import exec_queueing, ssh_queueing
from trainop.programs.schemes import FRAMEWORKS

QUEUED = (*FRAMEWORKS, "MPIJob", "DIJob")
"""What `--kueue` may name."""


def with_queues(kinds: Iterable[Kind], names: Sequence[str]) -> list[Kind]:
    """These kinds, of which those with one of the names, in any case, are queued. Raises `StartError` about a name that
    is none of `QUEUED`."""
    known = {name.lower() for name in QUEUED}
    chosen = {name.lower() for name in names}
    if wrong := sorted(name for name in names if name.lower() not in known):
        raise StartError(f"--kueue: {', '.join(wrong)} cannot be queued; kinds: {', '.join(QUEUED)}")
    return [with_queue(kind) if kind.kind.lower() in chosen else kind for kind in kinds]


def with_queue(kind: Kind) -> Kind:
    """The kind, whose jobs are planned as the Workloads of their queues permit."""
    return replace(kind, queued=_queueing(kind).plan)


def _queueing(kind: Kind) -> Queueing:
    if kind.kind in FRAMEWORKS:
        return queueing_of(FRAMEWORKS[kind.kind])
    if kind.resource == DIJOBS:
        return dijob_queueing()
    return exec_queueing() if kind.controller == MPI_EXEC.controller else ssh_queueing()
