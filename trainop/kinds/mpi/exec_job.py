"""What transport exec reads of an MPIJob, and what follows from it: the files and the permissions of the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainop.engine.fields import Fields
from trainop.engine.job import UNKNOWN_REPLICAS, Job
from trainop.kinds.mpi.hosts import LAUNCHER, WORKER
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import PODS

KUBECTL_FOLDER = "/opt/kube"


def slots_of(job: Job) -> int:
    """`spec.slotsPerWorker`; 1 if it is not given or invalid."""
    slots = Fields().integer("", job.spec.get("slotsPerWorker"), minimum=0)
    return 1 if slots is None else slots


def workers_of(job: Job) -> int:
    """The number of workers; 0 while it is unreadable."""
    role = job.role(WORKER)
    return 0 if role is None or role.replicas == UNKNOWN_REPLICAS else role.replicas


def is_gpu_launcher(job: Job) -> bool:
    """Whether a container of the launcher has a limit for a GPU. Such a launcher is a host as well."""
    return any("gpu" in name for limits in _launcher_limits(job) for name in limits)


def _launcher_limits(job: Job) -> list[Json]:
    found: list[Any] = [(each.get("resources") or {}) for each in launcher_spec(job).get("containers") or ()]
    limits = [each.get("limits") for each in found if isinstance(each, dict)]
    return [each for each in limits if isinstance(each, dict)]


def launcher_spec(job: Job) -> Json:
    """The pod spec of the launcher's template; empty if the template is invalid."""
    role = job.role(LAUNCHER)
    return role.template["spec"] if role is not None and role.has_valid_template and role.container else {}


def account_of(job: Job) -> str:
    """The service account of the launcher."""
    given = launcher_spec(job).get("serviceAccountName")
    return given if isinstance(given, str) and given else f"{job.name}-launcher"


# The ConfigMap --------------------------------------------------------------------------------------------------------


def hostfile(job: Job) -> str:
    """One line per host, whatever the state of its pod."""
    after = f" slots={slots_of(job)}\n"
    first = [f"{job.name}-launcher{after}"] if is_gpu_launcher(job) else []
    return "".join([*first, *(f"{job.name}-worker-{index}{after}" for index in range(workers_of(job)))])


def discover_hosts(job: Job, running: Sequence[str]) -> str:
    """The script that prints the running hosts, as upstream without a newline at its end."""
    after = f":{slots_of(job)}"
    first = [f"\necho {job.name}-launcher{after}\n"] if is_gpu_launcher(job) else []
    return "".join(["#!/bin/sh", *first, *(f"\necho {name}{after}" for name in running)])


def kubexec(job: Job) -> str:
    """The remote shell of `mpirun`: it runs a command in a worker's pod."""
    main = job.spec.get("mainContainer")
    container = f" --container {main}" if isinstance(main, str) and main else ""
    command = f'{KUBECTL_FOLDER}/kubectl exec ${{POD_NAME}}{container} -- /bin/sh -c "$*"'
    return f"#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n{command}"


# Permissions of the launcher ------------------------------------------------------------------------------------------


def role_rules(job: Job) -> list[Json]:
    """What the launcher may do: read pods, and execute commands in the workers of its own job."""
    rules = [{"apiGroups": [""], "resources": [PODS.plural], "verbs": ["get", "list", "watch"]}]
    if workers := workers_of(job):  # an empty `resourceNames` would allow all pods
        names = [f"{job.name}-worker-{index}" for index in range(workers)]
        rules.append({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"], "resourceNames": names})
    return rules
