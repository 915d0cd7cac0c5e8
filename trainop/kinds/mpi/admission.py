"""Validation of MPIJobs at admission: the rules of the transport that the job has, or will have."""

from __future__ import annotations

from trainop.engine.admission import Judgement, judge, judge_by
from trainop.engine.fields import Fields
from trainop.engine.seen import Options
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.ssh.job import parse_ssh
from trainop.kinds.mpi.transport import EXEC, SSH, TRANSPORT, expect
from trainop.runtime import Unstructured
from trainop.runtime.lowlevel import FieldError


def judge_mpi(options: Options, new: Unstructured, old: Unstructured | None) -> Judgement:
    """Validates an MPIJob of either version that is created or, with `old`, updated. Never raises."""
    transport = expect(new, old)
    if transport == EXEC:
        found = judge(MPI_EXEC, new, old, options)
    else:
        found = judge_by(lambda job: Judgement(parse_ssh(job, options)[1]), new, old)
    return found._replace(errors=(*_check_transport(new, old), *found.errors))


def _check_transport(new: Unstructured, old: Unstructured | None) -> tuple[FieldError, ...]:
    """An invalid annotation is refused. A valid one may be changed: the controller sets it to the transport of the
    children again."""
    value = new.metadata.annotations.get(TRANSPORT)
    before = old.metadata.annotations.get(TRANSPORT) if old is not None else None
    if value in {None, EXEC, SSH, before}:
        return ()
    fields = Fields()
    fields.unsupported(f"metadata.annotations[{TRANSPORT}]", value, (EXEC, SSH))
    return fields.errors
