"""What transport exec reads of an MPIJob, and what follows from it: the files and the permissions of the launcher."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from trainop.engine.fields import Fields
from trainop.engine.framework import Grant
from trainop.engine.job import UNKNOWN_REPLICAS, Job
from trainop.engine.seen import Snapshot
from trainop.engine.steps.rights import ROLE, rules_of
from trainop.kinds.mpi.hosts import LAUNCHER, WORKER
from trainop.runtime import PODS, HasMetadata, Json

T = TypeVar("T", bound=HasMetadata)

KUBECTL_FOLDER = "/opt/kube"

MAX_NAME = 253
"""Characters of a name of most objects (kubernetes `apimachinery/pkg/util/validation`, `DNS1123SubdomainMaxLength`)."""

_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_ACCOUNT = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


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
    """The service account of the launcher; empty while its template is invalid or names none that can exist."""
    spec = launcher_spec(job)
    given = spec.get("serviceAccountName")
    if spec and (given is None or given == ""):
        return f"{job.name}-launcher"
    return given if isinstance(given, str) and len(given) <= MAX_NAME and _ACCOUNT.fullmatch(given) else ""


def main_container(job: Job) -> str:
    """`spec.mainContainer`; empty if it is not given or not the name of a container. It becomes part of a script."""
    given = job.spec.get("mainContainer")
    return given if isinstance(given, str) and is_container_name(given) else ""


def is_container_name(text: str) -> bool:
    """Whether a container may have this name: a DNS label."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


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
    main = main_container(job)
    container = f" --container {main}" if main else ""
    command = f'{KUBECTL_FOLDER}/kubectl exec ${{POD_NAME}}{container} -- /bin/sh -c "$*"'
    return f"#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n{command}"


# Permissions of the launcher ------------------------------------------------------------------------------------------


def grant(job: Job, seen: Snapshot) -> Grant:
    """What the launcher may do."""
    name = f"{job.name}-launcher"
    rules = partial(role_rules, lists=_launcher_lists(name, seen))
    return Grant(name, account_of(job), WORKER, rules, labels={"app": job.name})


def role_rules(workers: Sequence[str], *, lists: bool = False) -> list[Json]:
    """Reading these workers, and executing commands in them, as `kubectl exec` does. `lists`: see `_launcher_lists`."""
    named = {"resourceNames": list(workers)}
    read: Json = {"verbs": ["get", "list", "watch"]} if lists else {"verbs": ["get"], **named}
    return [
        {"apiGroups": [""], "resources": [PODS.plural], **read},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"], **named},
    ]


def _launcher_lists(name: str, seen: Snapshot) -> bool:
    """Whether a launcher of a former version, which lists all pods of the namespace until its workers run, has not
    started yet. It keeps that right until then; no other launcher has it."""
    uid = seen.job.metadata.uid
    roles = _owned(uid, seen.companions.get(ROLE.resource, ()))
    listed = any("resourceNames" not in rule for role in roles for rule in rules_of(role))
    return listed and any(pod.metadata.name == name and pod.status.phase == "Pending" for pod in _owned(uid, seen.pods))


def _owned(uid: str, children: Iterable[T]) -> Iterator[T]:
    return (each for each in children if each.metadata.controller is not None and each.metadata.controller.uid == uid)
