"""The names that DI-orchestrator, its operator, di-server and DI-engine's clients agree on.

Source: DI-orchestrator v0.2.2 `common/const.go`, `utils/util.go`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.seen import Options
from trainop.runtime import Resource

GROUP = "diengine.opendilab.org"
DIJOBS = Resource(GROUP, "v1alpha1", "dijobs", "DIJob")
AGGREGATOR_CONFIGS = Resource(GROUP, "v1alpha1", "aggregatorconfigs", "AggregatorConfig")

MAIN_CONTAINER = "di-container"
MAIN_PORT = "di-port"
MASTER_PORT_NAME = "master-port"
MASTER_PORT = 10314
GPU_PORT_PREFIX = "gpu-port-"
GPU = "nvidia.com/gpu"
SERVER_URL = Options().di_server_address
"""The default of `--server-address`, passed to the pods verbatim."""

SUFFIX_LENGTH = 5
SUFFIX_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of the random part of a pod's name: no vowels, and nothing that looks like another character."""

GROUP_NAME = "group-name"
JOB_NAME = "dijob-name"
CONTROLLER_NAME = "controller-name"
REPLICA_TYPE = "replica-type"
POD_NAME = "pod-name"
DDP_TYPE = "ddp-learner-type"
"""Only on the ddp learners of a group of several pods: `DDP_MASTER` or `DDP_WORKER`."""
LABELS = (GROUP_NAME, JOB_NAME, CONTROLLER_NAME, REPLICA_TYPE, POD_NAME, DDP_TYPE)
"""The labels of pods and services, by which services select their pod."""
CONTROLLER = "di-operator"
DDP_MASTER = "ddp-learner-master"
DDP_WORKER = "ddp-learner-worker"
OUR_PODS = f"{GROUP_NAME}={GROUP},{CONTROLLER_NAME}={CONTROLLER}"
"""Label selector of the pods and services of all DIJobs."""
DI_SERVER = "di-server"
LEASES_OF_REQUESTS = f"{CONTROLLER_NAME}={DI_SERVER}"
"""Label selector of the Leases of di-server."""

REQUESTED = ANNOTATION_PREFIX + "di-resources"
"""On an aggregator: the resources that its ddp learners were requested with, as JSON."""
REQUEST = ANNOTATION_PREFIX + "di-request"
"""On the pods that di-server created: the request that they belong to."""
JOURNAL = ANNOTATION_PREFIX + "di-journal"
"""On a Lease of di-server: the state of the request that holds it, as JSON."""

REPLICAS = ANNOTATION_PREFIX + "di-replicas"
"""On a DIJob with a queue: how many collectors and learners it may have, such as `collector=4,learner=1`."""
ADMISSION = ANNOTATION_PREFIX + "di-admission"
"""On the pod of a coordinator: what the queue has admitted besides it, as JSON: role -> `Placement`."""

NAMESPACE_VARIABLE = "KUBERNETES_POD_NAMESPACE"
NAME_VARIABLE = "KUBERNETES_POD_NAME"
SERVER_VARIABLE = "KUBERNETES_SERVER_URL"
COORDINATOR_VARIABLE = "KUBERNETES_COORDINATOR_URL"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
START_RANK = "START_RANK"
MASTER_ADDRESS = "MASTER_ADDR"
MASTER_PORT_VARIABLE = "MASTER_PORT"


class _Facts(NamedTuple):
    port: int
    variable: str


class Role(enum.Enum):
    """The role of a pod; the value is that of the label `replica-type`."""

    COORDINATOR = "coordinator"
    COLLECTOR = "collector"
    LEARNER = "learner"
    AGGREGATOR = "aggregator"
    DDP_LEARNER = "ddp-learner"

    @property
    def default_port(self) -> int:
        return _FACTS[self].port

    @property
    def port_variable(self) -> str:
        """The environment variable with the pod's own port."""
        return _FACTS[self].variable


_FACTS = {
    Role.COORDINATOR: _Facts(22273, "COORDINATOR_PORT"),
    Role.COLLECTOR: _Facts(22270, "COLLECTOR_PORT"),
    Role.LEARNER: _Facts(22271, "LEARNER_PORT"),
    Role.AGGREGATOR: _Facts(22272, "AGGREGATOR_PORT"),
    Role.DDP_LEARNER: _Facts(22271, "LEARNER_PORT"),
}


def role_of(labels: Mapping[str, str]) -> Role | None:
    """The role of a pod or service; None if the label is absent or unknown."""
    try:
        return Role(labels.get(REPLICA_TYPE, ""))
    except ValueError:
        return None


def default_port(labels: Mapping[str, str]) -> int:
    """The port of a pod that names none; that of the coordinator for an unknown role."""
    return (role_of(labels) or Role.COORDINATOR).default_port


def coordinator_name(job_name: str) -> str:
    return f"{job_name}-{Role.COORDINATOR.value}"


def url(name: str, namespace: str, port: int) -> str:
    """The address of a pod as clients expect it: without scheme and `.svc`, because they cut off the last dot part to
    get the pod's name."""
    return f"{name}.{namespace}:{port}"


def job_selector(job_name: str) -> str:
    """Label selector of the pods and services of jobs of this name; their owner is decided by UID."""
    return f"{OUR_PODS},{JOB_NAME}={job_name.replace('/', '-')}"
