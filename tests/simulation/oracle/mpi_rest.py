"""What an MPIJob has to look like when the cluster is at rest (mpi-v2beta1 §4 to §6, frameworks-v1 §10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.simulation.oracle.kinds import Json, is_terminating
from tests.simulation.oracle.mpi import MpiRecord, is_done, is_ready, is_suspended, owner_of
from tests.simulation.oracle.rights import ROLES

TABLES = (
    "pods",
    "services",
    "configmaps",
    "secrets",
    "jobs.batch",
    "serviceaccounts",
    ROLES,
    "rolebindings.rbac.authorization.k8s.io",
)


class Children:
    """The objects that a job controls."""

    def __init__(self, record: MpiRecord, objects: Callable[[str], Mapping[Any, Any]]) -> None:
        uids = {record.job.uid, *record.launchers}
        self.found: dict[str, dict[str, Json]] = {
            table: {
                stored.value["metadata"]["name"]: stored.value
                for stored in objects(table).values()
                if owner_of(stored.value)[1] in uids and not is_terminating(stored.value)
            }
            for table in TABLES
        }

    def names(self) -> list[str]:
        return [f"{table} {name}" for table, found in self.found.items() for name in sorted(found)]


def rest_faults(record: MpiRecord, children: Children) -> Iterator[str]:
    job = record.job
    if job.foreign:
        yield from (f"has {name}, and another controller manages it" for name in children.names())
    elif job.transport not in {"ssh", "exec"}:
        yield "has no transport"
    elif job.finished:
        yield from _finished(record)
        yield from _no_rights(children)
    else:
        if not job.is_true("Created"):
            yield "does not say that it is created"
        if job.find("RightsGranted") is not None:
            yield "says that names are taken"
        yield from (_suspended if job.suspended else _active)(record, children)
        if job.suspended:
            yield from _no_rights(children)
        if job.transport == "ssh" or not job.suspended:
            yield from _files(record, children)
        if job.transport == "ssh":
            yield from _ssh(record, children)


def _finished(record: MpiRecord) -> Iterator[str]:
    """What cleanPodPolicy keeps; with transport ssh it concerns workers only."""
    policy = record.job.clean_pod_policy
    roles = ("worker",) if record.transport == "ssh" else ("worker", "launcher")
    for pod in (each for role in roles for each in record.of(role) if each.living):
        if policy == "All" or (policy == "Running" and pod.phase in {"Running", "Pending"}):
            yield f"has to clean up {pod.name}"
    if record.launcher is not None and not is_done(record.launcher) and not is_suspended(record.launcher):
        yield "has finished, and its launcher goes on"


def _suspended(record: MpiRecord, _children: Children) -> Iterator[str]:
    job = record.job
    yield from (f"has to take back {pod.name}" for pod in record.members.values() if pod.living and pod.alive)
    yield from (f"has to take back {pod.name}" for pod in record.of("worker") if pod.living)
    if not job.is_true("Suspended"):
        yield "does not say that it is suspended"
    if job.transport == "ssh" and (record.launcher is None or not is_suspended(record.launcher)):
        yield "its launcher is not suspended"


def _active(record: MpiRecord, children: Children) -> Iterator[str]:
    job = record.job
    if job.is_true("Suspended"):
        yield "still says that it is suspended"
    wanted, found = set(job.worker_names()), {each.name for each in record.of("worker") if each.living}
    if any(pod.living and pod.value["status"].get("reason") == "Evicted" for pod in record.of("worker")):
        yield "goes on, and a worker was evicted"
    if wanted != found:
        yield f"has the workers {sorted(found)} instead of {sorted(wanted)}"
    yield from (f"{pod.name} cannot start" for pod in record.members.values() if pod.living and pod.phase == "Pending")
    running = record.running_workers()
    launchers = [pod for pod in record.of("launcher") if pod.living]
    is_running = len(running) == job.workers and any(pod.phase == "Running" for pod in launchers)
    if is_running and not job.is_true("Running"):
        yield "does not say that it runs"
    if job.transport == "exec":
        if not launchers:
            yield "has no launcher"
        return
    if is_done(record.launcher):
        yield "its launcher has ended, and it has not"
    ready = {pod.name for pod in record.of("worker") if pod.living and pod.phase == "Running" and is_ready(pod.value)}
    if (record.launcher is None or is_suspended(record.launcher)) and (not job.waits or ready >= wanted):
        yield "has no launcher that may run"
    yield from _counts(record)


def _counts(record: MpiRecord) -> Iterator[str]:
    """replicaStatuses (§6.7)."""
    found = record.job.status.get("replicaStatuses") or {}
    counts: dict[str, int] = {}
    names = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    for pod in record.of("worker"):
        if pod.living and pod.phase in names:
            counts[names[pod.phase]] = counts.get(names[pod.phase], 0) + 1
    if (found.get("Worker") or {}) != counts:
        yield f"counts the workers {found.get('Worker')} instead of {counts}"
    active = sum(pod.living and pod.phase == "Running" for pod in record.of("launcher"))
    if (found.get("Launcher") or {}).get("active", 0) != active:
        yield f"counts the launchers {found.get('Launcher')} instead of {active} active"


def _files(record: MpiRecord, children: Children) -> Iterator[str]:
    """The hostfile names exactly the workers that exist, and the script those that run."""
    job = record.job
    config = children.found["configmaps"].get(f"{job.name}-config")
    if config is None:
        yield "has no ConfigMap"
        return
    data = config.get("data") or {}
    if data.get("hostfile") != (wanted := job.hostfile(job.transport)):
        yield f"the hostfile is {data.get('hostfile')!r} instead of {wanted!r}"
    script = job.discover_hosts(job.transport, record.running_workers())
    if data.get("discover_hosts.sh") != script:
        yield f"discover_hosts.sh is {data.get('discover_hosts.sh')!r} instead of {script!r}"
    if job.transport == "exec":
        yield from _permissions(record, children)


def _permissions(record: MpiRecord, children: Children) -> Iterator[str]:
    """The launcher may execute commands in all workers of its job; `rights` shows what it may do elsewhere."""
    name = f"{record.job.name}-launcher"
    for table in TABLES[-3:] if record.job.workers else ():
        if name not in children.found[table]:
            yield f"has no {table} {name}"
    for resource in ("pods", "pods/exec"):
        allowed = [each.get("resourceNames") for each in _rules(children) if resource in each["resources"]]
        if record.job.workers and allowed != [list(record.job.worker_names())]:
            yield f"the launcher has rights for {resource} in {allowed}"


def _no_rights(children: Children) -> Iterator[str]:
    if rules := _rules(children):
        yield f"is not running, and its launcher still has the rights {rules}"


def _rules(children: Children) -> list[Json]:
    return [rule for role in children.found[ROLES].values() for rule in role.get("rules") or ()]


def _ssh(record: MpiRecord, children: Children) -> Iterator[str]:
    job = record.job
    service = children.found["services"].get(job.name)
    if service is None:
        yield "has no Service"
    elif bool(service["spec"].get("publishNotReadyAddresses")) != job.launcher_works:
        yield f"the Service publishes addresses {service['spec'].get('publishNotReadyAddresses')}"
