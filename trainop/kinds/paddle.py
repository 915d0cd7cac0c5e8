"""PaddleJob trains with Paddle, collectively or with masters as parameter servers
(training-operator `pkg/controller.v1/paddlepaddle`)."""

from __future__ import annotations

from collections.abc import Sequence

from trainop.engine.addresses import address
from trainop.engine.fields import Fields
from trainop.engine.framework import GROUP, Environment, Framework, Replicas, only_variables, variable
from trainop.engine.job import Job, Role
from trainop.engine.leaders import MASTER, WORKER, follow_first, leader, only_master, texts_by_master
from trainop.engine.seen import Options
from trainop.kinds.elastic import check_elastic
from trainop.kinds.elastic_schema import elastic_policy
from trainop.runtime import Json, Resource

PORT_NAME = "master"
PORT = 36543
OWN_ADDRESS = {"name": "POD_IP_DUMMY", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
"""The leader binds to its pod IP, not to its service name. The name of the variable is upstream's."""


def environment(job: Job, _options: Options) -> Environment:
    """The variables of `paddle.distributed.launch`, in upstream's order (`envvar.go`)."""
    chief = leader(job, MASTER, WORKER)
    type_, port = (chief.type, chief.port(PORT_NAME)) if chief else (WORKER, PORT)
    shared = [
        variable("PYTHONUNBUFFERED", 1),
        variable("PADDLE_JOB_ID", job.name),
        variable("PADDLE_NNODES", job.replicas),
    ]
    by_address = [OWN_ADDRESS, variable("PADDLE_MASTER", f"$(POD_IP_DUMMY):{port}")]
    by_name = [variable("PADDLE_MASTER", f"{address(job, type_, 0)}:{port}")]
    counts = {MASTER: "PADDLE_SERVER_NUM", WORKER: "PADDLE_TRAINER_NUM"} if type_ == MASTER else {}

    def of_replica(role: Role, index: int) -> Sequence[Json]:
        master = by_address if role.type == type_ and index == 0 else by_name
        count = [variable(counts[role.type], 1)] if counts else []
        return [*shared, *master, *count]

    return of_replica


def check(job: Job, fields: Fields) -> None:
    """Validates the elastic policy. As upstream, it has no other effect."""
    check_elastic(job, fields, PADDLE.replica_specs)


def needs_service(job: Job, role: Role, index: int) -> bool:
    """PADDLE_MASTER contains the address of the first master or, without masters, of the first worker."""
    chief = leader(job, MASTER, WORKER)
    return index == 0 and chief is not None and chief.type == role.type


def outlives(job: Job) -> str:
    """With masters, the job trains with parameter servers."""
    return "its masters, the parameter servers, run on when a worker fails" if leader(job, MASTER) else ""


PADDLE = Framework(
    resource=Resource(GROUP, "v1", "paddlejobs", "PaddleJob"),
    name="paddle",
    controller="paddlejob-controller",
    replica_specs="paddleReplicaSpecs",
    roles={MASTER: Replicas(), WORKER: Replicas()},
    container="paddle",
    container_rule='must have at least one container with name "{}"',
    port_name=PORT_NAME,
    port=PORT,
    restart_policy="OnFailure",
    is_master=only_master,
    needs_service=needs_service,
    additions=only_variables(environment),
    progress=follow_first(MASTER, WORKER),
    outlives=outlives,
    rules=check,
    texts=texts_by_master,
    spec_fields={"elasticPolicy": elastic_policy()},
    scale=True,
)
