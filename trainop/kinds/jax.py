"""JAXJob trains with `jax.distributed`, whose coordinator is worker 0 (training-operator `pkg/controller.v1/jax`)."""

from __future__ import annotations

from collections.abc import Sequence

from trainop.engine.addresses import address
from trainop.engine.framework import (
    GROUP,
    QUALIFIED_TEXTS,
    Environment,
    Framework,
    Replicas,
    all_fail,
    only_variables,
    variable,
)
from trainop.engine.job import Job, Role
from trainop.engine.leaders import WORKER, follow_first, master_or_first, rank_by_index
from trainop.engine.seen import Options
from trainop.runtime import Json, Resource

PORT_NAME = "jaxjob-port"
PORT = 6666


def environment(job: Job, _options: Options) -> Environment:
    """The variables for `jax.distributed.initialize`, in upstream's order (`envvar.go`)."""
    worker = job.role(WORKER)
    shared = [
        variable("PYTHONUNBUFFERED", 1),
        variable("COORDINATOR_PORT", worker.port(PORT_NAME) if worker else PORT),
        variable("COORDINATOR_ADDRESS", address(job, WORKER, 0)),
        variable("NUM_PROCESSES", job.replicas),
    ]

    def of_replica(_role: Role, index: int) -> Sequence[Json]:
        return [*shared, variable("PROCESS_ID", index)]

    return of_replica


JAX = Framework(
    resource=Resource(GROUP, "v1", "jaxjobs", "JAXJob"),
    name="jax",
    controller="jaxjob-controller",
    replica_specs="jaxReplicaSpecs",
    roles={WORKER: Replicas()},
    container="jax",
    port_name=PORT_NAME,
    port=PORT,
    is_master=master_or_first,
    needs_service=master_or_first,
    rank=rank_by_index,
    additions=only_variables(environment),
    progress=follow_first(WORKER),
    outlives=all_fail,
    texts=lambda _job: QUALIFIED_TEXTS,
    scale=True,
)
