"""XGBoostJob trains with XGBoost or LightGBM, with the master as tracker
(training-operator `pkg/controller.v1/xgboost`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.engine.addresses import address, stem
from trainop.engine.framework import (
    GROUP,
    PLAIN_TEXTS,
    Environment,
    Framework,
    Progress,
    Replicas,
    Tally,
    all_fail,
    numbered,
    only_variables,
    variable,
)
from trainop.engine.job import Job, Role
from trainop.engine.leaders import MASTER, WORKER, follow, only_master, rank_after_masters
from trainop.engine.seen import Options
from trainop.runtime import Json, Resource

PORT_NAME = "xgboostjob-port"
PORT = 9999


def environment(job: Job, _options: Options) -> Environment:
    """The tracker address and rank for XGBoost, and the machine list for LightGBM, in upstream's order
    (`xgboost.go`)."""
    ports = {role.type: role.port(PORT_NAME) for role in job.roles}
    before = [
        variable("MASTER_PORT", ports.get(MASTER, PORT)),
        variable("MASTER_ADDR", address(job, MASTER, 0)),
        variable("WORLD_SIZE", job.replicas),
    ]
    after = [variable("PYTHONUNBUFFERED", 1)]
    if job.replicas > 1:
        workers = numbered(stem(job, WORKER), job.replicas - 1, "")
        after += [variable("WORKER_PORT", ports.get(WORKER, PORT)), variable("WORKER_ADDRS", workers)]

    def of_replica(role: Role, index: int) -> Sequence[Json]:
        rank = rank_after_masters(job, role, index)
        return [*before, variable("RANK", index if rank is None else rank), *after]

    return of_replica


def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
    """Follows the master. Running is also set before Succeeded or Failed if no reconcile saw the job running."""
    found = follow(job.role(MASTER), tallies)
    failed = any(tally.failed for tally in tallies.values())
    return Progress(running=found.running or found.succeeded or failed, succeeded=found.succeeded)


XGBOOST = Framework(
    resource=Resource(GROUP, "v1", "xgboostjobs", "XGBoostJob"),
    name="xgboost",
    controller="xgboostjob-controller",
    replica_specs="xgbReplicaSpecs",
    roles={MASTER: Replicas(1, 1), WORKER: Replicas()},
    required_roles=(MASTER,),
    container="xgboost",
    port_name=PORT_NAME,
    port=PORT,
    is_master=only_master,
    needs_service=only_master,
    rank=rank_after_masters,
    additions=only_variables(environment),
    progress=progress,
    outlives=all_fail,
    texts=lambda _job: PLAIN_TEXTS,
    deleted_as="Job",
)
