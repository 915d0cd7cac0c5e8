"""PodGroups as job-engine §4 and mpi-v2beta1 §9 describe them, at each write and when the cluster is at rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.oracle.kinds import KINDS, Json, is_terminating, owner_uid
from tests.simulation.oracle.mpi import OURS, MpiJob
from tests.simulation.oracle.observer import AT_LAST, AT_ONCE, Setting

WAITING = {None, "", "Pending"}
"""Phases in which Volcano has no room for a group yet."""
FIELDS = {**{name: kind.field for name, kind in KINDS.items()}, "MPIJob": "mpiReplicaSpecs"}
MANAGERS = {None, "kubeflow.org/training-operator"}


@dataclass(slots=True)
class GangRecord:
    """One job by UID."""

    job: Json
    versions: list[tuple[float, Json]] = field(default_factory=list)
    group: Json | None = None
    open_at: float = -math.inf
    """When the group last let pods be created; infinite while it does."""
    gone: bool = False


class GangObserver:
    """Listens to the store."""

    def __init__(
        self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]], scheduler: str, groups: str
    ) -> None:
        """`scheduler` is the name that pods ask for, `groups` the table of PodGroups."""
        self._setting = setting
        self._objects = objects
        self._scheduler = scheduler
        self._groups = groups
        self._is_volcano = "volcano" in groups
        self._records: dict[str, GangRecord] = {}
        self._by_launcher: dict[str, GangRecord] = {}
        """By UID of a batch Job."""
        self.by_others = False
        """The present write is that of a user."""
        self._jobs = {f"{kind.lower()}s.kubeflow.org" for kind in FIELDS}

    def __call__(self, table: Any, change: Any) -> None:
        old, new = (stored.value if stored is not None else None for stored in (change.old, change.new))
        if table.name in self._jobs:
            self._on_job(old, new)
        elif table.name == self._groups:
            self._on_group(old, new)
        elif table.name == "jobs.batch" and new is not None and owner_uid(new) in self._records:
            self._by_launcher[new["metadata"]["uid"]] = self._records[owner_uid(new)]
        elif table.name == "pods" and old is None and new is not None:
            self._on_pod(new)

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            if old is not None:
                self._records[old["metadata"]["uid"]].gone = True
            return
        record = self._records.setdefault(new["metadata"]["uid"], GangRecord(new))
        if not record.versions or _essence(record.job) != _essence(new):
            record.versions.append((self._setting.now(), new))
        record.job = new

    def _on_group(self, old: Json | None, new: Json | None) -> None:
        now, value = self._setting.now(), new or old or {}
        record = self._records.get(owner_uid(value))
        if record is None:
            return
        record.group = new
        phase = ((new or {}).get("status") or {}).get("phase")
        is_open = new is not None and not (self._is_volcano and _gates(record.job) and phase in WAITING)
        if is_open:
            record.open_at = math.inf
        elif record.open_at == math.inf:
            record.open_at = now
        if new is None or self.by_others or (old or {}).get("spec") == new["spec"]:
            return
        wanted = {self._min_member(each) for each in self._known(record)}
        if new["spec"].get("minMember", 0) not in wanted:
            self._accuse(record, "minMember", f"minMember became {new['spec'].get('minMember')}, not one of {wanted}")

    def _on_pod(self, pod: Json) -> None:
        owner = owner_uid(pod)
        record = self._records.get(owner) or self._by_launcher.get(owner)
        if record is None:
            return
        name, job_name = pod["metadata"]["name"], record.job["metadata"]["name"]
        if record.open_at < self._setting.now() - self._window:
            self._accuse(record, "no pod without its group", f"{name} is created, and its group does not let it")
        metadata = pod["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        named = annotations.get("scheduling.k8s.io/group-name") or labels.get("scheduling.x-k8s.io/pod-group")
        if named != job_name or pod["spec"].get("schedulerName") != self._scheduler:
            self._accuse(record, "pods of the group", f"{name} names {named} and {pod['spec'].get('schedulerName')}")

    def look(self) -> None:
        """The cluster is at rest."""
        for record in self._records.values():
            if not record.gone and not is_terminating(record.job):
                for fault in self._rest_faults(record):
                    self._accuse(record, "groups at rest", fault)

    def _rest_faults(self, record: GangRecord) -> Iterator[str]:
        job, group = record.job, record.group
        policy = job["spec"].get("runPolicy") or {}
        managers = OURS if job["kind"] == "MPIJob" else MANAGERS
        if policy.get("managedBy") not in managers or policy.get("suspend") or _finished(job):
            if group is not None and not is_terminating(group):
                yield "its PodGroup is still there"
        elif group is None:
            yield "it has no PodGroup"
        elif group["spec"].get("minMember", 0) != (wanted := self._min_member(job)):
            yield f"minMember is {group['spec'].get('minMember')} instead of {wanted}"

    def _min_member(self, job: Json) -> int:
        """§4.2; a launcher that waits for its workers is no member (mpi-v2beta1 D2)."""
        specs = job["spec"][FIELDS[job["kind"]]]
        counted = {role: _replicas(job, role, spec) for role, spec in specs.items()}
        total = sum(counted.values())
        policy = (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") or {}
        wanted = policy.get("minAvailable")
        if counted.get("Launcher") == 0 and wanted == total + 1:  # all, of which the launcher comes later
            wanted = total
        least = 0 if self._is_volcano else 1
        return max(total if wanted is None else int(wanted), least)

    @property
    def _window(self) -> float:
        return AT_ONCE if self._setting.fair_since() < self._setting.now() - AT_ONCE else AT_LAST

    def _known(self, record: GangRecord) -> Iterator[Json]:
        """The versions that the operator may act upon now."""
        moment = self._setting.now() - self._window
        for number, (_, job) in enumerate(record.versions):
            if number + 1 == len(record.versions) or record.versions[number + 1][0] >= moment:
                yield job

    def _accuse(self, record: GangRecord, rule: str, fault: str) -> None:
        self._setting.flag(rule, f"{record.job['kind']} {record.job['metadata']['name']}: {fault}")


def _replicas(job: Json, role: str, spec: Json) -> int:
    if job["kind"] == "MPIJob" and role == "Launcher":
        seen = MpiJob(job)
        return 0 if seen.waits and seen.transport == "ssh" else 1
    return int(spec.get("replicas", 1))


def _essence(job: Json) -> tuple[object, object]:
    """What the group depends on; the transport of an MPIJob is an annotation."""
    return job["spec"], job["metadata"].get("annotations")


def _gates(job: Json) -> bool:
    """The phase of the group holds up pods, unlike with transport ssh (mpi-v2beta1 §9)."""
    return job["kind"] != "MPIJob" or MpiJob(job).transport == "exec"


def _finished(job: Json) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in {"Succeeded", "Failed"} and each["status"] == "True" for each in conditions)
