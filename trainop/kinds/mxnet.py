"""MXJob trains with the parameter servers of MXNet, or tunes operators with TVM
(training-operator v1.7.0 `pkg/controller.v1/mxnet`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trainop.engine.addresses import address, stem
from trainop.engine.fields import Fields
from trainop.engine.framework import (
    GROUP,
    Environment,
    Framework,
    Progress,
    Replicas,
    Tally,
    Texts,
    numbered,
    only_variables,
    variable,
)
from trainop.engine.job import Job, Role
from trainop.engine.leaders import WORKER, follow, leader
from trainop.engine.schema.openapi import text
from trainop.engine.seen import Options
from trainop.runtime import Json, Resource

SCHEDULER = "Scheduler"
SERVER = "Server"
TUNER = "Tuner"
PORT_NAME = "mxjob-port"
PORT = 9091
TUNER_SERVER_KEY = "tuner-server-key"
"""Annotation of a pod template whose value becomes the label of the role in MX_CONFIG."""


def environment(job: Job, _options: Options) -> Environment:
    """MX_CONFIG and the variables of ps-lite, in upstream's order (`mxnet.go`)."""
    scheduler = leader(job, SCHEDULER)
    counts = {role.type: role.replicas for role in job.roles}
    shared = [
        variable("DMLC_PS_ROOT_PORT", scheduler.port(PORT_NAME) if scheduler else 0),
        variable("DMLC_PS_ROOT_URI", address(job, SCHEDULER, 0) if scheduler else ""),
        variable("DMLC_NUM_SERVER", counts.get(SERVER, 0)),
        variable("DMLC_NUM_WORKER", counts.get(WORKER, 0)),
    ]
    everyone = _describe(job)

    def of_replica(role: Role, index: int) -> Sequence[Json]:
        task = f'"task":{{"type":"{role.label}","index":{index}}}'
        own = [variable("DMLC_ROLE", role.label), variable("DMLC_USE_KUBERNETES", 1)]
        if role.type == WORKER:
            own.append(variable("DMLC_WORKER_ID", index))
        return [variable("MX_CONFIG", f"{{{everyone},{task}}}"), *shared, *own]

    return of_replica


def _describe(job: Job) -> str:
    """The members of MX_CONFIG that all replicas share, as JSON without braces."""
    cluster, labels = [], {}
    for role in sorted(job.roles, key=lambda role: role.label):
        urls = numbered(f'{{"url":"{stem(job, role.type)}', role.replicas, f'","port":{role.port(PORT_NAME)}}}')
        cluster.append(f'"{role.label}":[{urls}]')
        annotations = (role.template.get("metadata") or {}).get("annotations") or {}
        labels[role.label] = annotations.get(TUNER_SERVER_KEY, "")
    described = json.dumps(labels, separators=(",", ":"), ensure_ascii=False)
    return f'"cluster":{{{",".join(cluster)}}},"labels":{described}'


def is_master(_job: Job, role: Role, _index: int) -> bool:
    """Masters are all servers, as upstream."""
    return role.type == SERVER


def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
    """Follows the scheduler, in tuning jobs the tuners, and in jobs without servers the workers. Upstream supports only
    the scheduler and a single worker."""
    first = (TUNER, SCHEDULER) if job.spec.get("jobMode") == "MXTune" else (SCHEDULER, TUNER)
    alone = leader(job, SERVER) is None
    return follow(leader(job, *first, *([WORKER] if alone else [])), tallies)


def check(job: Job, fields: Fields) -> None:
    """Validates the fields that only an MXJob has."""
    fields.text("spec.jobMode", job.spec.get("jobMode"))


MXNET = Framework(
    resource=Resource(GROUP, "v1", "mxjobs", "MXJob"),
    name="mxnet",
    controller="mxjob-controller",
    replica_specs="mxReplicaSpecs",
    roles={type_: Replicas() for type_ in (SCHEDULER, SERVER, WORKER, "TunerTracker", "TunerServer", TUNER)},
    container="mxnet",
    port_name=PORT_NAME,
    port=PORT,
    is_master=is_master,
    additions=only_variables(environment),
    progress=progress,
    rules=check,
    texts=lambda _job: Texts(
        restarting="mxjob {name} is restarting because {count} {role} replica(s) failed.",
        failed="mxjob {name} is failed because {count} {role} replica(s) failed.",
    ),
    template_warnings="SettedPodTemplate",
    spec_fields={"jobMode": text("The mode of the job: MXTrain or MXTune.")},
    required_fields=("jobMode",),
)
