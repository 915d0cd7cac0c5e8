"""TF_CONFIG (training-operator `pkg/controller.v1/tensorflow/tensorflow.go`): the cluster, and the task of one replica.

A cluster that is too large for an environment variable is stored in a ConfigMap (`docs/tf-config.md`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from trainop.engine.actions import Need
from trainop.engine.addresses import stem, subdomain_of, zone
from trainop.engine.framework import (
    Companion,
    CompanionKind,
    Environment,
    Mount,
    PodAdditions,
    RoleAdditions,
    numbered,
    variable,
)
from trainop.engine.job import Job, Role
from trainop.engine.leaders import WORKER
from trainop.engine.seen import Options, Snapshot
from trainop.runtime import CONFIG_MAPS

PS = "PS"
PORT_NAME = "tfjob-port"
PORT = 2222

MAX_CLUSTER_IN_ENVIRONMENT = 100 * 1024
"""Bytes of `cluster` in the variable. For a larger one, TF_CONFIG contains the path of a file instead."""
FOLDER, FILE = "/etc/trainop/tf-config", "cluster.json"
CLUSTER_FILE = f"{FOLDER}/{FILE}"
CLUSTER_CONFIG_MAP = CompanionKind(CONFIG_MAPS, Need.JOB, metadata_only=True)

Config: TypeAlias = Callable[[Role, int], str]
"""(role, index) -> the value of TF_CONFIG."""


def environment(job: Job, options: Options) -> Environment:
    """TF_CONFIG, unless the job is a single replica (`tensorflow.go`)."""
    if job.replicas == 1:
        return lambda _role, _index: ()
    config = _sparse(job, options) if job.spec.get("enableDynamicWorker") is True else _dense(job, options)
    return lambda role, index: [variable("TF_CONFIG", config(role, index))]


def _dense(job: Job, options: Options) -> Config:
    """TF_CONFIG with the addresses of all replicas."""
    cluster = f'"{CLUSTER_FILE}"' if _is_large(job, options) else _cluster(job, options)

    def config(role: Role, index: int) -> str:
        return f'{{"cluster":{cluster},{_task(role, index)},"environment":"cloud"}}'

    return config


def _cluster(job: Job, options: Options) -> str:
    roles = sorted(job.roles, key=lambda role: role.label)
    return "{" + ",".join(f'"{role.label}":{_endpoints(job, role, options)}' for role in roles) + "}"


def _sparse(job: Job, options: Options) -> Config:
    """TF_CONFIG for dynamic workers: a worker sees itself and the parameter servers, so that other workers may be added
    and removed."""
    servers = job.role(PS)
    all_servers = _endpoints(job, servers, options) if servers else "[]"

    def config(role: Role, index: int) -> str:
        before, after = _address_parts(job, role, options)
        own = f"{before}{index}{after}"
        workers = _compact({str(index): own} if role.type == WORKER else {})
        known = {WORKER: all_servers, PS: _compact([own])}.get(role.type, "[]")
        return f'{{"cluster":{{"worker":{workers},"ps":{known}}},{_task(role, index)}}}'

    return config


def _task(role: Role, index: int) -> str:
    return f'"task":{{"type":"{role.label}","index":{index}}}'


def _endpoints(job: Job, role: Role, options: Options) -> str:
    """The addresses of a role as a JSON list. Names of jobs and namespaces need no escaping."""
    before, after = _address_parts(job, role, options)
    return "[" + numbered(f'"{before}', role.replicas, f'{after}"') + "]"


def _address_parts(job: Job, role: Role, options: Options) -> tuple[str, str]:
    """The parts of a role's addresses before and after the index."""
    return stem(job, role.type), f"{zone(job, options)}:{role.port(PORT_NAME)}"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# A cluster too large for the environment ------------------------------------------------------------------------------


def _is_large(job: Job, options: Options) -> bool:
    """Whether the cluster is too large for an environment variable (Linux: 128 KiB)."""
    if job.spec.get("enableDynamicWorker") is True:
        return False
    size = 0
    for role in job.roles:
        around = sum(map(len, _address_parts(job, role, options))) + len('"",')
        size += role.replicas * around + _digits(role.replicas)
    return size > MAX_CLUSTER_IN_ENVIRONMENT


def _digits(count: int) -> int:
    """The number of digits of all numbers below `count` together."""
    return sum(count - power for power in (0, 10, 100, 1_000, 10_000) if count > power)


def additions(job: Job, options: Options) -> PodAdditions:
    """TF_CONFIG, as upstream only for the framework's container."""
    found = RoleAdditions(mounts=mounts(job, options))
    return PodAdditions(environment(job, options), in_all_containers=False, of_role=lambda _role: found)


def companions(job: Job, seen: Snapshot) -> Sequence[Companion]:
    """The ConfigMap with a large cluster, which all replicas mount."""
    options = seen.options
    if not _is_large(job, options):
        return ()
    roles = [(role.label, role.replicas, role.port(PORT_NAME)) for role in job.roles]
    subdomain = subdomain_of(job)
    inputs = _compact([job.name, job.namespace, options.cluster_domain, roles, *([subdomain] if subdomain else [])])
    return [Companion(CLUSTER_CONFIG_MAP, _shared_name(job), inputs, lambda: {"data": {FILE: _cluster(job, options)}})]


def mounts(job: Job, options: Options) -> Sequence[Mount]:
    """The mount of the ConfigMap, if there is one."""
    if not _is_large(job, options):
        return ()
    return [Mount("trainop-tf-config", {"configMap": {"name": _shared_name(job)}}, FOLDER)]


def _shared_name(job: Job) -> str:
    return f"{job.name}-tf-config"
