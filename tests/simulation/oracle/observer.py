"""Compares what is stored with the specification, at each write and when the cluster is at rest.

The observer is independent of the operator: it reads objects and their history, and is notified of pods that other
clients delete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

from tests.simulation.oracle.children import (
    has_shared_name,
    is_in_place,
    is_selected,
    name_of,
    pod_differences,
    service_differences,
)
from tests.simulation.oracle.duties import LATEST_RETRY, Duty, Others, bound, duties_of, keeps
from tests.simulation.oracle.history import Pod, Record
from tests.simulation.oracle.kinds import KINDS, Job, Json, is_terminating, owner_uid, slot_of
from tests.simulation.oracle.losses import count_restart, counted_twice, lonely_faults, overcounted, undercounted
from tests.simulation.oracle.root_cause import cause_faults
from tests.simulation.oracle.statuses import (
    condition_faults,
    count_faults,
    end_faults,
    suspension_faults,
    time_faults,
)

AT_ONCE = 5.0
"""Seconds after which a fact counts as known while nothing goes wrong."""

SHOWN = 1.0
"""Seconds within which every watch shows a fact while nothing goes wrong."""

AT_LAST = 400.0
"""The same with faults: longer than any of them keeps a fact from the operator."""


class Setting(Protocol):
    """What the observer has to know of the run besides the objects."""

    zero: datetime
    """The time of day at second 0."""
    exact: bool
    """The clocks of the operator are right."""
    gang: bool
    """There is a gang scheduler."""

    def now(self) -> float:
        """Virtual seconds."""
        ...

    def fair_since(self) -> float:
        """The end of the last fault that affects the operator; infinite while one is active."""
        ...

    def flag(self, rule: str, text: str) -> None: ...


class Observer:
    """Listens to the store."""

    def __init__(self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]]) -> None:
        """`objects` answers what a table holds now."""
        self._setting = setting
        self._objects = objects
        self._records: dict[str, Record] = {}
        self._taken: set[str] = set()
        """UIDs of pods that others delete."""
        self._duties: dict[str, dict[Duty, float]] = {}
        """By job UID: since when there is what to do."""
        self._takers = {"pods": self._on_pod, "services": self._on_service}
        self._takers |= {f"{kind.lower()}s.kubeflow.org": self._on_job for kind in KINDS}

    # What others do ---------------------------------------------------------------------------------------------------

    def loses(self, uid: str) -> None:
        """Others are about to delete this pod, or to remove it without a trace."""
        self._taken.add(uid)
        for record in self._records.values():
            if uid in record.pods:
                record.pods[uid].taken = True

    def refuses(self, name: str) -> None:
        """An admission policy has just refused a pod of that name."""
        for record in self._records.values():
            if not record.gone and any(name_of(record.job, slot) == name for slot in record.job.slots()):
                record.refused[name] = self._setting.now()

    def awaits_retry(self) -> bool:
        """A pod that was refused is to be tried again, some time later."""
        now = self._setting.now()
        return any(
            duty.what == "make" and now < record.refused.get(duty.subject, -math.inf) + LATEST_RETRY
            for record in self._records.values()
            if record.refused
            for duty in duties_of(record, self._others(record))
        )

    # What is written --------------------------------------------------------------------------------------------------

    def __call__(self, table: Any, change: Any) -> None:
        take = self._takers.get(table.name)
        if take is None:
            if table.name.endswith(".kubeflow.org"):
                self._setting.flag("every kind is known", f"{table.name} have no row in oracle/kinds.py: nobody judges")
            return
        old, new = (stored.value if stored is not None else None for stored in (change.old, change.new))
        take(old, new)
        concerned = {owner_uid(value) or value["metadata"]["uid"] for value in (old, new) if value}
        for uid in sorted(concerned & self._records.keys()):  # two where an owner has changed
            if self._setting.fair_since() < math.inf:
                self._time_duties(self._records[uid])

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        now = self._setting.now()
        if new is None:
            if old is not None and (record := self._records.get(old["metadata"]["uid"])) is not None:
                record.gone = True
            return
        job = Job(new)
        if old is None or old["metadata"]["uid"] != job.uid:
            self._records[job.uid] = Record(job, now, [(now, job)], resumed_at=now, counted_from=now)
            return
        record = self._records[job.uid]
        before, was_finished = record.job, record.job.finished
        record.take(now, job)
        if before.status != job.status:
            self._judge_status(record, before)
        if before.extension("restarts") != job.extension("restarts"):
            self._accuse(job, "restarts counted", overcounted(record))
            self._accuse(job, "one disruption", counted_twice(record, before, now))
        if job.finished and not was_finished:
            record.ended_before = [
                pod.uid for pod in record.living() if pod.ended_at is not None and pod.ended_at < now - SHOWN
            ]

    def _judge_status(self, record: Record, old: Job) -> None:
        new = record.job
        if new.foreign:
            self._accuse(new, "foreign job", ["has got a status, and another controller manages it"])
        self._accuse(new, "conditions", condition_faults(old, new))
        setting = self._setting
        times = time_faults(record, old, new, exact=setting.exact, zero=setting.zero, gang=setting.gang)
        self._accuse(new, "startTime", times)
        self._accuse(new, "replicaStatuses", count_faults(new))
        self._accuse(new, "suspension", suspension_faults(old, new))
        self._accuse(new, "root cause", cause_faults(record, old, new, setting.zero))
        if new.finished and not old.finished:
            self._accuse(new, "ends for a reason", end_faults(record, old, new, self._window))

    def _on_service(self, old: Json | None, service: Json | None) -> None:
        record = self._records.get(owner_uid(service)) if service and not old else None
        if record is not None and service is not None:
            versions = self._known(record, self._setting.now())
            self._accuse(record.job, "services", _least(service_differences(job, service) for job in versions))

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        now = self._setting.now()
        if new is None:
            self._on_removed(now, old or {})
            return
        record = self._records.get(owner_uid(new))
        if old is not None and owner_uid(old) != owner_uid(new):
            self._on_owner_changed(now, record, old, new)
        elif record is not None and old is None:
            self._on_created(now, record, new)
        elif record is not None and (pod := record.pods.get(new["metadata"]["uid"])) is not None:
            living = pod.living
            record.update(now, pod, new)
            if living and not pod.living:
                self._on_deleted(now, record, pod)

    def _on_created(self, now: float, record: Record, value: Json) -> None:
        pod = record.add(now, value)
        versions = self._known(record, now)
        self._accuse(record.job, "pods as specified", _least(pod_differences(job, value) for job in versions))
        self._accuse(record.job, "service mode", self._mode_faults(now, record, pod, versions))
        if self._setting.fair_since() < math.inf:
            self._accuse(record.job, "one for all", lonely_faults(record, pod, self._setting.fair_since(), SHOWN))
        rivals = [other.name for other in record.living() if other.slot == pod.slot and other is not pod]
        if rivals:
            self._accuse(record.job, "one pod a slot", [f"has {rivals} and {pod.name} for {pod.slot}"])

    def _mode_faults(self, now: float, record: Record, pod: Pod, versions: list[Job]) -> Iterator[str]:
        """A new pod has the service mode of the other pods, those to be adopted included, or without any, that of the
        job (docs/annotations.md)."""
        recent = now - self._window
        others = [other for other in record.pods.values() if other is not pod]
        shown = [other for other in others if other.gone_at is None or other.gone_at > recent]
        allowed = {has_shared_name(record.job, other.value) for other in shown}
        allowed |= {has_shared_name(record.job, orphan) for orphan in self._orphans(record)}
        if not any(other.there and other.born < recent for other in others):
            allowed |= {job.service_mode == "job" for job in versions}
        if has_shared_name(record.job, pod.value) not in allowed:
            yield f"{pod.name} has another service mode than {'the other pods' if shown else 'its job'}"

    def _on_owner_changed(self, now: float, record: Record | None, old: Json, new: Json) -> None:
        """A pod is adopted, or released: only one that has the name of its slot and is no older than the job may be
        adopted (design 17). It counts while it is the job's, and no longer."""
        before = self._records.get(owner_uid(old))
        if before is not None and (left := before.pods.get(old["metadata"]["uid"])) is not None:
            left.gone_at = now
        if record is None:
            return
        pod = record.take_back(now, new) or record.add(now, new)
        pod.taken = pod.uid in self._taken
        if pod.slot is None or pod.name != name_of(record.job, pod.slot):
            self._accuse(record.job, "adoption", [f"adopted {pod.name}, labelled as {pod.slot}"])
        if not _is_young(record.job, new):
            self._accuse(record.job, "adoption", [f"adopted {pod.name}, which is older than the job"])

    def _on_removed(self, now: float, value: Json) -> None:
        record = self._records.get(owner_uid(value))
        pod = record.pods.get(value["metadata"]["uid"]) if record else None
        if record is None or pod is None:
            return
        if pod.living:
            pod.leaves_at = now
            self._on_deleted(now, record, pod)
        pod.gone_at = now

    def _on_deleted(self, now: float, record: Record, pod: Pod) -> None:
        """A pod was deleted: by the operator or the garbage collector, unless another client was noted."""
        if record.gone or record.job.terminating or pod.uid in self._taken:
            return
        known = self._known(record, pod.ended_at if pod.ended_at is not None else now)
        count_restart(record, pod, known)
        if not self._may_delete(now, record, pod, known):
            why = f"lost {pod.name}, {pod.phase}, without a restart, a pause, an end or a change of replicas"
            self._accuse(record.job, "deletes for a reason", [why])

    def _may_delete(self, now: float, record: Record, pod: Pod, known: list[Job]) -> bool:
        job = record.job
        if any(each.suspended or each.is_true("Suspended") or not is_in_place(each, pod.value) for each in known):
            return True
        if job.finished:
            fresh = pod.ended_at is not None and pod.ended_at > now - self._window
            return fresh or not keeps(record, pod)
        if pod.phase == "Failed" and pod.retryable(job):
            return True
        if job.together and any(other.taken or other.disrupted for other in record.pods.values()):
            return True
        if job.scope == "pod":
            return False
        circle = [
            other
            for other in record.pods.values()
            if job.scope == "job" or (other.slot and pod.slot and other.slot[0] == pod.slot[0])
        ]
        return any(other.taken or (other.phase == "Failed" and other.retryable(job)) for other in circle)

    # What has to be done ----------------------------------------------------------------------------------------------

    @property
    def _window(self) -> float:
        return AT_ONCE if self._setting.fair_since() < self._setting.now() - AT_ONCE else AT_LAST

    def _known(self, record: Record, moment: float) -> list[Job]:
        """The versions that the operator may act upon when it does what was right at `moment`, the latest first."""
        return list(record.since(moment - self._window))[::-1]

    def _time_duties(self, record: Record) -> None:
        """Report duties that took too long."""
        now, fair_since = self._setting.now(), self._setting.fair_since()
        before = self._duties.get(record.job.uid, {})
        present = duties_of(record, self._others(record))
        after = self._duties[record.job.uid] = {duty: before.get(duty, now) for duty in present}
        for duty, since in before.items():
            late = now - max(since, fair_since)
            if duty not in after and late > bound(record, duty):
                self._accuse(record.job, "in good time", [f"took {late:.1f} s to {duty.what} {duty.subject}"])

    def _others(self, record: Record) -> Others:
        job = record.job
        strangers = [stored.value for stored in self._objects("pods").values() if owner_uid(stored.value) != job.uid]
        names = [pod["metadata"]["name"] for pod in self._orphans(record) if is_in_place(job, pod)]
        return Others({pod["metadata"]["name"] for pod in strangers}, names)

    def _orphans(self, record: Record) -> list[Json]:
        """The pods that the job may adopt, also those that are too many then."""
        job, pods = record.job, [stored.value for stored in self._objects("pods").values()]
        free = [pod for pod in pods if not owner_uid(pod) and not is_terminating(pod) and _is_young(job, pod)]
        mine = [pod for pod in free if is_selected(job, pod["metadata"].get("labels") or {})]
        return [pod for pod in mine if (slot := slot_of(pod)) and pod["metadata"]["name"] == name_of(job, slot)]

    # At rest ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The cluster is at rest without faults: everything has to be as specified."""
        for record in self._records.values():
            if record.gone or record.job.terminating:
                continue
            left = duties_of(record, self._others(record))
            job = record.job
            self._accuse(job, "nothing forgotten", (f"has to {duty.what} {duty.subject}" for duty in left))
            if job.foreign:
                continue
            self._accuse(job, "services at rest", self._service_faults(record))
            if job.finished:
                self._accuse(job, "clean-up", self._kept_faults(record))
            self._accuse(job, "restarts counted", undercounted(record))

    def _service_faults(self, record: Record) -> Iterator[str]:
        job = record.job
        services = [
            stored.value
            for stored in self._objects("services").values()
            if owner_uid(stored.value) == job.uid and not is_terminating(stored.value)
        ]
        found = {service["metadata"]["name"] for service in services}
        if job.finished:
            kept = {pod.name for pod in record.living()}
            kept |= {job.shared_service} if kept else set()
            if job.clean_pod_policy != "None" and not found <= kept:
                yield f"{sorted(found - kept)} are left without a pod"
            return
        wanted = self._services_of(record)
        also = {name_of(job, slot) for slot in job.slots()} if self._has_others(record) else set()
        if not wanted <= found <= wanted | also:
            yield f"{sorted(found)} instead of {sorted(wanted)}"

    def _services_of(self, record: Record) -> set[str]:
        """The services of an active job: of the mode of its pods, or without any, of its own mode."""
        job = record.job
        modes = {has_shared_name(job, pod.value) for pod in record.there()} or {job.service_mode == "job"}
        if job.suspended:
            return set()
        if True in modes:
            return {job.shared_service}
        return {name_of(job, slot) for slot in job.slots() if job.serves(slot)}

    def _has_others(self, record: Record) -> bool:
        """Services of replicas may be left: some pods have names in the service of the job, and others, which somebody
        else created, need their own; or the mode was once replica, whose services the mode leader keeps."""
        shared = {has_shared_name(record.job, pod.value) for pod in record.there()}
        return len(shared) > 1 or (True not in shared and len({job.service_mode for _, job in record.versions}) > 1)

    def _kept_faults(self, record: Record) -> Iterator[str]:
        """Pods that ended long before the job must exist unless the clean-up policy deletes them."""
        if self._setting.fair_since() == math.inf:
            return
        for uid in record.ended_before:
            pod = record.pods[uid]
            if not pod.living and not pod.taken and keeps(record, pod):
                yield f"{pod.name}, which had {pod.phase}, is gone"

    def _accuse(self, job: Job, rule: str, faults: Iterable[str]) -> None:
        for fault in faults:
            self._setting.flag(rule, f"{job.kind_name} {job.name}: {fault}")


def _is_young(job: Job, pod: Json) -> bool:
    """No older than the job; both times are of the same form, in whole seconds."""
    born, job_born = (str(value["metadata"]["creationTimestamp"]) for value in (pod, job.value))
    return born >= job_born


def _least(answers: Iterable[Iterator[str]]) -> list[str]:
    """The differences from that of several versions which has none, or else from the first."""
    first: list[str] | None = None
    for answer in answers:
        found = list(answer)
        if not found:
            return []
        first = found if first is None else first
    return first or []
