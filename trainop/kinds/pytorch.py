"""PyTorchJob trains with torch.distributed or torchrun, which find their peers by `MASTER_*` and `PET_*`
(training-operator `pkg/controller.v1/pytorch`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trainop.engine.actions import Need
from trainop.engine.addresses import address
from trainop.engine.fields import Fields
from trainop.engine.framework import (
    GROUP,
    Companion,
    CompanionKind,
    Environment,
    Framework,
    PodAdditions,
    Progress,
    Replicas,
    RoleAdditions,
    Tally,
    variable,
)
from trainop.engine.job import Job, Role
from trainop.engine.leaders import (
    MASTER,
    WORKER,
    follow,
    leader,
    master_or_first,
    rank_after_masters,
    texts_by_master,
)
from trainop.engine.schema.openapi import text
from trainop.engine.seen import Options, Snapshot
from trainop.kinds.elastic import Elastic, autoscaler, check_elastic, outlives_if_elastic, read_elastic, rendezvous
from trainop.kinds.elastic_schema import TORCH_ELASTIC_POLICY
from trainop.kinds.init_container import DEFAULT_TEMPLATE, as_user, render
from trainop.runtime import HORIZONTAL_POD_AUTOSCALERS, Json, Resource

PORT_NAME = "pytorchjob-port"
PORT = 23456
RESOURCE = Resource(GROUP, "v1", "pytorchjobs", "PyTorchJob")
AUTOSCALER = CompanionKind(HORIZONTAL_POD_AUTOSCALERS, Need.NONE)


def check(job: Job, fields: Fields) -> None:
    """Validates the fields that only a PyTorchJob has."""
    processes = _read_processes(job, fields)
    elastic = check_elastic(job, fields, PYTORCH.replica_specs) if _is_elastic(job) else None
    if elastic is not None and elastic.processes is not None and processes:
        fields.forbidden("spec.elasticPolicy.nProcPerNode", "must not be used with spec.nprocPerNode")


def warnings(job: Job) -> Sequence[str]:
    """Upstream's warning about the deprecated field."""
    policy = job.spec.get("elasticPolicy")
    if not isinstance(policy, dict) or policy.get("nProcPerNode") is None:
        return ()
    return ["spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"]


def _is_elastic(job: Job) -> bool:
    return job.spec.get("elasticPolicy") is not None


def _read_processes(job: Job, fields: Fields) -> str:
    """`spec.nprocPerNode`: empty if not given, `auto` if invalid."""
    at, given = "spec.nprocPerNode", job.spec.get("nprocPerNode")
    processes = fields.text(at, given)
    if re.fullmatch("-[0-9]+|[+-]?0+", processes):
        fields.invalid(at, processes, "must be auto, cpu, gpu or a number from 1")
        return "auto"
    return processes or ("auto" if given else "")


def environment(job: Job, _options: Options) -> Environment:
    """The variables of torchrun, in upstream's order (`envvar.go`, `master.go`, `elastic.go`)."""
    elastic = read_elastic(job, Fields()) if _is_elastic(job) else None
    processes = _processes_per_node(job, elastic)
    master = job.role(MASTER)
    before = [variable("PYTHONUNBUFFERED", "1")]
    if master is not None:
        size = job.replicas * _number(processes)
        before += [
            *(variable(name, master.port(PORT_NAME)) for name in ("MASTER_PORT", "PET_MASTER_PORT")),
            *(variable(name, address(job, MASTER, 0)) for name in ("MASTER_ADDR", "PET_MASTER_ADDR")),
            variable("WORLD_SIZE", size),
        ]
    after = [] if processes is None else [variable("PET_NPROC_PER_NODE", processes)]
    after += [variable("PET_NNODES", job.replicas)] if elastic is None else rendezvous(job, elastic, PORT_NAME, PORT)

    def of_replica(role: Role, index: int) -> Sequence[Json]:
        rank = rank_after_masters(job, role, index)
        if rank is None:
            return [*before, *after]
        return [*before, variable("RANK", rank), variable("PET_NODE_RANK", rank), *after]

    return of_replica


def _processes_per_node(job: Job, elastic: Elastic | None) -> str | None:
    """`spec.nprocPerNode`. The default is `auto`, or None if the elastic policy has nProcPerNode."""
    given = _read_processes(job, Fields())
    if given:
        return given
    return "auto" if elastic is None or elastic.processes is None else None


def _number(processes: str | None) -> int:
    """The integer as parsed by Go's Atoi; words such as `auto` and `gpu` count as 1."""
    return int(processes) if processes is not None and re.fullmatch(r"[+-]?[0-9]{1,9}", processes) else 1


def needs_service(job: Job, role: Role, index: int) -> bool:
    """MASTER_ADDR contains the master's address, PET_RDZV_ENDPOINT that of the first worker of an elastic job."""
    first_worker = role.type == WORKER and index == 0
    return master_or_first(job, role, index) or (first_worker and _is_elastic(job))


def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
    """Follows the master or, without that role, the workers. One successful worker is enough in an elastic job."""
    role = leader(job, MASTER, WORKER)
    elastic = role is not None and role.type == WORKER and _is_elastic(job)
    return follow(role, tallies, enough=1 if elastic else None)


def additions(job: Job, options: Options) -> PodAdditions:
    """Variables for all containers, and an init container for workers."""
    return PodAdditions(
        environment(job, options),
        of_role=lambda role: RoleAdditions(init_containers=init_containers(job, role, options)),
    )


def init_containers(job: Job, role: Role, options: Options) -> Sequence[Json]:
    """The init container of workers in a job with a master. Raises `TemplateError` if the operator's template is
    invalid."""
    if role.type == MASTER or job.role(MASTER) is None:
        return ()
    master, image, tries = address(job, MASTER, 0), options.pytorch_init_image, options.pytorch_init_max_tries
    if options.pytorch_init_template is not None:
        return render(options.pytorch_init_template, master, image, tries)
    spec = role.template["spec"]
    return [as_user(each, image, spec, role.container) for each in render(DEFAULT_TEMPLATE, master, image, tries)]


def companions(job: Job, _seen: Snapshot) -> Sequence[Companion]:
    """The autoscaler of an elastic job with `metrics`."""
    policy = job.spec.get("elasticPolicy")
    if not isinstance(policy, dict) or not policy.get("metrics"):
        return ()
    elastic = read_elastic(job, Fields())
    return [autoscaler(AUTOSCALER, RESOURCE, job, elastic)] if elastic is not None and elastic.metrics else ()


PYTORCH = Framework(
    resource=RESOURCE,
    name="pytorch",
    controller="pytorchjob-controller",
    replica_specs="pytorchReplicaSpecs",
    roles={MASTER: Replicas(1, 1), WORKER: Replicas(1)},
    container="pytorch",
    port_name=PORT_NAME,
    port=PORT,
    restart_policy="OnFailure",
    is_master=master_or_first,
    needs_service=needs_service,
    rank=rank_after_masters,
    additions=additions,
    companion_kinds=(AUTOSCALER,),
    companions=companions,
    progress=progress,
    outlives=outlives_if_elastic,
    rules=check,
    warnings=warnings,
    texts=texts_by_master,
    spec_fields={
        "nprocPerNode": text("Processes per pod: auto, cpu, gpu or a number. auto if not given."),
        "elasticPolicy": TORCH_ELASTIC_POLICY,
    },
    scale=True,
)
