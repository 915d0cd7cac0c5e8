"""Compares what is stored of MPIJobs with the specification, at each write and when the cluster is at rest.

A companion of `observer.py`, with whose rules it shares that it reads objects and their history alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.simulation.oracle.kinds import Json, is_terminating
from tests.simulation.oracle.mpi import (
    Member,
    MpiJob,
    MpiRecord,
    has_condition,
    is_ready,
    is_suspended,
    owner_of,
    role_of,
)
from tests.simulation.oracle.mpi_objects import launcher_differences, worker_differences
from tests.simulation.oracle.mpi_rest import Children, rest_faults
from tests.simulation.oracle.mpi_statuses import condition_faults, end_faults
from tests.simulation.oracle.observer import AT_LAST, AT_ONCE, Setting
from tests.simulation.oracle.rights import BINDINGS, ROLES, RightsWatch

KEYS = {"ssh-privatekey", "ssh-publickey"}


class MpiObserver:
    """Listens to the store."""

    def __init__(self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]]) -> None:
        """`objects` answers what a table holds now."""
        self._setting = setting
        self._objects = objects
        self._records: dict[str, MpiRecord] = {}
        self._by_launcher: dict[str, MpiRecord] = {}
        """By UID of a batch Job."""
        self._taken: set[str] = set()
        self._rights = RightsWatch(objects)
        self.by_others = False
        """The present write is that of a user."""
        self._takers = {
            "mpijobs.kubeflow.org": self._on_job,
            "pods": self._on_pod,
            "jobs.batch": self._on_launcher,
            "configmaps": self._on_config,
            "secrets": self._on_secret,
        }

    # What others do ---------------------------------------------------------------------------------------------------

    def loses(self, uid: str) -> None:
        """Others are about to delete this pod."""
        self._taken.add(uid)

    def refuses(self, name: str) -> None:
        """An admission policy has just refused a pod of that name."""
        for record in self._records.values():
            if name.startswith(record.job.name + "-"):
                record.refused = True

    def awaits_retry(self) -> bool:
        return False

    # What is written --------------------------------------------------------------------------------------------------

    def __call__(self, table: Any, change: Any) -> None:
        take = self._takers.get(table.name)
        if table.name in {"pods", ROLES, BINDINGS}:
            self._look_at_rights(self._window)
        if take is not None:
            take(*(stored.value if stored is not None else None for stored in (change.old, change.new)))

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        now = self._setting.now()
        if new is None:
            if old is not None and (record := self._records.get(old["metadata"]["uid"])) is not None:
                record.gone = True
            return
        job = MpiJob(new)
        record = self._records.get(job.uid)
        if record is None:
            self._records[job.uid] = MpiRecord(job, [(now, job)], transport=job.transport or job.origin)
            return
        before = record.job
        record.take(now, job)
        if not self.by_others and record.transport and job.transport not in {"", record.transport}:
            self._accuse(job, "one transport", [f"became {job.transport}, was {record.transport}"])
        if before.status != job.status:
            self._accuse(job, "conditions", condition_faults(record, before, job))
            if job.finished and not before.finished:
                self._accuse(job, "ends for a reason", end_faults(record))

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        value = new or old or {}
        record = self._record_of(value)
        if record is None:
            return
        uid = value["metadata"]["uid"]
        member = record.members.get(uid)
        if member is None:
            member = record.members[uid] = Member(uid, value["metadata"]["name"], role_of(value), value)
            self._on_new_member(record, member)
        if new is None:
            self._on_left(record, member)
            member.gone = True
            return
        member.value = new
        if member.phase == "Running" and member.ran_at is None:
            member.ran_at = self._setting.now()
        if is_terminating(new):
            self._on_left(record, member)
        elif is_ready(new) and member.phase == "Running":
            member.ready_at = math.inf
        if member.phase == "Failed" and (new["status"].get("reason") == "Evicted") and member.role == "worker":
            record.evicted = True
        if member.phase not in {"Pending", "Running"} and member.ready_at == math.inf:
            member.ready_at = self._setting.now()

    def _on_new_member(self, record: MpiRecord, member: Member) -> None:
        job = record.job
        is_ssh = owner_of(member.value)[0] == "Job" or "mpi-operator" in str(member.value["metadata"].get("labels"))
        self._choose(record, "ssh" if is_ssh else "exec", f"pod {member.name}")
        if member.role == "launcher":
            now = self._setting.now()
            alive = [each.name for each in record.of("launcher") if each.alive and not each.is_lost(now)]
            if len(alive) > 1:
                self._accuse(job, "one launcher", [f"{sorted(alive)} run at the same time"])
        elif is_ssh:
            versions = self._known(record)
            self._accuse(
                job, "workers as specified", _least(worker_differences(each, member.value) for each in versions)
            )

    def _on_left(self, record: MpiRecord, member: Member) -> None:
        """Somebody has deleted the pod."""
        if member.left:
            return
        member.left, member.left_at = True, self._setting.now()
        if member.ready_at == math.inf:
            member.ready_at = self._setting.now()
        if record.gone or record.job.terminating or member.uid in self._taken or member.role != "worker":
            return
        known = self._known(record)
        wanted = any(member.name in each.worker_names() for each in known[:1])
        if wanted and not any(
            each.suspended or each.finished or member.name not in each.worker_names() for each in known
        ):
            if member.phase == "Failed":
                return  # it is replaced
            why = [f"lost {member.name}, {member.phase}, without a pause, an end or a change of replicas"]
            self._accuse(record.job, "deletes for a reason", why)

    def _on_launcher(self, old: Json | None, new: Json | None) -> None:
        """The batch Job of a launcher."""
        value = new or old or {}
        record = self._records.get(owner_of(value)[1])
        if record is None:
            return
        if new is None:
            if record.launcher is not None and record.launcher["metadata"]["uid"] == value["metadata"]["uid"]:
                record.launcher = None
            return
        job, uid = record.job, new["metadata"]["uid"]
        record.launcher = new
        record.ended_as |= {type_ for type_ in ("Complete", "Failed") if has_condition(new, type_)}
        if uid not in record.launchers:
            record.launchers.add(uid)
            self._by_launcher[uid] = record
            self._choose(record, "ssh", "a batch Job")
            self._accuse(
                job, "launcher as specified", _least(launcher_differences(each, new) for each in self._known(record))
            )
        if not is_suspended(new) and (old is None or is_suspended(old)):
            self._on_start(record)

    def _on_start(self, record: MpiRecord) -> None:
        """The launcher may run from now on."""
        since = self._setting.now() - self._window
        ready = {each.name for each in record.members.values() if (each.ready_at or -math.inf) >= since}
        if not any(not each.waits or ready >= set(each.worker_names()) for each in self._known(record)):
            why = f"its launcher starts, and only {sorted(ready)} of {record.job.workers} workers are ready"
            self._accuse(record.job, "workers before the launcher", [why])

    def _on_config(self, old: Json | None, new: Json | None) -> None:
        record = self._records.get(owner_of(new)[1]) if new is not None else None
        if record is None or new is None or self.by_others:
            return
        found = (new.get("data") or {}).get("hostfile")
        if old is not None and (old.get("data") or {}).get("hostfile") == found:
            return
        transport = record.transport or record.job.transport or "ssh"
        if not any(found == each.hostfile(transport) for each in self._known(record)):
            self._accuse(record.job, "hosts", [f"the hostfile became {found!r}"])

    def _on_secret(self, old: Json | None, new: Json | None) -> None:
        """A usable key does not change once a child exists that needs it, and a new one is made only when a pod needs
        it. Before that, the operator cannot know whether it has made the key itself."""
        record = self._records.get(owner_of(new or old or {})[1]) if new or old else None
        if record is None:
            return
        if new is None:
            record.keyless = True
            return
        before, record.key = record.key, new.get("data") or {}
        lost, record.keyless = record.keyless, False
        if self.by_others or before == record.key:
            return
        self._choose(record, "ssh", "a Secret")
        if set(record.key) != KEYS:
            self._accuse(record.job, "key", [f"the Secret has {sorted(record.key)}"])
        needed = record.launcher is not None or any(not each.gone for each in record.members.values())
        if needed and before is not None and set(before) == KEYS and not lost:
            self._accuse(record.job, "key", ["a usable key has changed"])
        elif before is not None and self._all_run(record):
            self._accuse(record.job, "key", ["the key has changed, and all pods run"])

    def _all_run(self, record: MpiRecord) -> bool:
        """Nothing has been missing or pending for a while."""
        since = self._setting.now() - self._window
        running = [each for each in record.members.values() if each.living and each.phase == "Running"]
        settled = {each.name for each in running if (each.ran_at or math.inf) < since}
        launched = any(each.role == "launcher" and each.name in settled for each in running)
        return launched and settled >= {*record.job.worker_names()}

    def _choose(self, record: MpiRecord, transport: str, why: str) -> None:
        """A child belongs to one transport; all others are of the same."""
        record.transport = record.transport or transport
        if record.transport != transport:
            self._accuse(record.job, "one transport", [f"is {record.transport}, and has {why} of {transport}"])

    # At rest ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The cluster is at rest without faults: everything has to be as specified."""
        self._look_at_rights(-1.0)
        for record in self._records.values():
            children = Children(record, self._objects)
            if record.gone:
                self._accuse(record.job, "nothing stays behind", (f"left {name}" for name in children.names()))
            elif not record.job.terminating:
                self._accuse(record.job, "nothing forgotten", rest_faults(record, children))

    def _look_at_rights(self, window: float) -> None:
        for each in self._rights.look(self._setting.now(), window):
            record = self._records.get(each.job)
            if record is not None:
                self._accuse(record.job, "rights follow ownership", [f"{each.account} {each.what}"])

    # What is known ----------------------------------------------------------------------------------------------------

    @property
    def _window(self) -> float:
        return AT_ONCE if self._setting.fair_since() < self._setting.now() - AT_ONCE else AT_LAST

    def _known(self, record: MpiRecord) -> list[MpiJob]:
        """The versions that the operator may act upon now, the latest first."""
        return record.since(self._setting.now() - self._window)

    def _record_of(self, pod: Json) -> MpiRecord | None:
        """The job of a pod: its controller, or that of the batch Job."""
        kind, uid = owner_of(pod)
        return self._by_launcher.get(uid) if kind == "Job" else self._records.get(uid)

    def _accuse(self, job: MpiJob, rule: str, faults: Iterable[str]) -> None:
        for fault in faults:
            self._setting.flag(rule, f"MPIJob {job.name}: {fault}")


def _least(answers: Iterable[Iterator[str]]) -> list[str]:
    """The differences from that of several versions which has none, or else from the first."""
    first: list[str] | None = None
    for answer in answers:
        found = list(answer)
        if not found:
            return []
        first = found if first is None else first
    return first or []
