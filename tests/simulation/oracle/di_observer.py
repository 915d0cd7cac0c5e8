"""Compares what is stored of DIJobs with di-orchestrator, at each write and when the cluster is at rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.simulation.oracle.di import COUNTERS, GROUP, Ask, DiPod, DiRecord
from tests.simulation.oracle.kinds import Json, controller_of, is_terminating, owner_uid
from tests.simulation.oracle.observer import AT_ONCE, Setting

OF_LATE = 35.0
"""Seconds for which the operator may not know that a pod has ended, with faults."""


class DiObserver:
    """Listens to the store, and to the clients of di-server."""

    def __init__(self, setting: Setting, objects: Callable[[str], Mapping[Any, Any]]) -> None:
        """`objects` answers what a table holds now."""
        self._setting = setting
        self._objects = objects
        self._records: dict[str, DiRecord] = {}
        self._taken: set[str] = set()
        self._asks: dict[str, list[Ask]] = {}
        """By the name of the job."""

    def asked(self, ask: Ask) -> None:
        """A client is about to send a request. It names the coordinator, so that it may also reach a job that takes the
        name of this one."""
        name = self._records[ask.uid].name
        self._asks.setdefault(name, []).append(ask)
        for record in self._records.values():
            if record.name == name:
                record.asks.append(ask)

    def loses(self, uid: str) -> None:
        """Others are about to delete this pod."""
        self._taken.add(uid)

    def refuses(self, _name: str) -> None:
        """Refusals are not drawn."""

    def awaits_retry(self) -> bool:
        return False

    # What is written --------------------------------------------------------------------------------------------------

    def __call__(self, table: Any, change: Any) -> None:
        old, new = (stored.value if stored is not None else None for stored in (change.old, change.new))
        if table.name == f"dijobs.{GROUP}":
            self._on_job(old, new)
        elif table.name == "pods" and (record := self._records.get(owner_uid(new or old or {"metadata": {}}))):
            self._on_pod(record, new or old or {}, gone=new is None)

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            if old is not None:
                self._records[old["metadata"]["uid"]].gone = True
            return
        uid, name = new["metadata"]["uid"], new["metadata"]["name"]
        if uid not in self._records:
            is_first = all(each.name != name for each in self._records.values())
            self._records[uid] = DiRecord(new, asks=list(self._asks.get(name, ())), is_first=is_first)
        record = self._records[uid]
        before, record.job = record.phase, new
        if record.phase != before:
            self._accuse(record, "phase", _phase_faults(record, before))

    def _on_pod(self, record: DiRecord, value: Json, *, gone: bool) -> None:
        uid = value["metadata"]["uid"]
        pod = record.pods.get(uid)
        if pod is None:
            pod = record.pods[uid] = DiPod(uid, value["metadata"]["name"], value)
            pod.aggregators = _aggregators_of(value)
            if pod.role == "coordinator" and record.finished:
                self._accuse(record, "one coordinator", [f"{pod.name} is created, and the job has {record.phase}"])
        pod.value = value
        pod.taken = uid in self._taken
        pod.ran |= pod.phase == "Running"
        if pod.ended_at is None and pod.phase in {"Succeeded", "Failed"}:
            pod.ended_at = self._setting.now()
        was_living = pod.living
        pod.gone |= gone
        pod.left |= is_terminating(value)
        if was_living and not pod.living:
            self._accuse(record, "deletes for a reason", self._deletion_faults(record, pod))

    def _deletion_faults(self, record: DiRecord, pod: DiPod) -> Iterator[str]:
        if record.gone or record.terminating or pod.taken or any(not ask.done for ask in record.asks):
            return
        if pod.role == "coordinator" and not record.finished:
            yield f"lost its coordinator, {pod.phase}"
        late = self._setting.now() - (AT_ONCE if self._setting.fair_since() < self._setting.now() else OF_LATE)
        unseen = record.policy == "Running" and (pod.ended_at or 0.0) > late
        if record.finished and not unseen and not _is_cleaned_up(record, pod) and not _is_uncertain(record):
            yield f"lost {pod.name}, {pod.phase}, after its end with policy {record.policy}"

    # At rest ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The cluster is at rest without faults."""
        for record in self._records.values():
            owned = {
                table: [each.value for each in self._objects(table).values() if owner_uid(each.value) == uid]
                for table in ("pods", "services")
                for uid in (record.job["metadata"]["uid"],)
            }
            if record.gone:
                names = [each["metadata"]["name"] for found in owned.values() for each in found]
                self._accuse(record, "nothing stays behind", (f"left {name}" for name in names))
            elif not record.terminating:
                services = {each["metadata"]["name"] for each in owned["services"] if not is_terminating(each)}
                self._accuse(record, "nothing forgotten", _rest_faults(record, services))
                self._accuse(record, "requests", request_faults(record))

    def _accuse(self, record: DiRecord, rule: str, faults: Iterable[str]) -> None:
        for fault in faults:
            self._setting.flag(rule, f"DIJob {record.name}: {fault}")


def _phase_faults(record: DiRecord, before: str) -> Iterator[str]:
    """The coordinator alone decides the phase, and an end is for ever (§6.4, D1)."""
    coordinators, phase = record.coordinators(), record.phase
    if before in {"Succeeded", "Failed"} or (phase == "Created" and before):
        yield f"was {before} and is {phase}"
    elif phase == "Running" and not any(pod.ran for pod in coordinators):
        yield "Running, and its coordinator never ran"
    elif phase in {"Succeeded", "Failed"} and not any(pod.phase == phase for pod in coordinators):
        yield f"{phase}, and its coordinator has not"


def _is_cleaned_up(record: DiRecord, pod: DiPod) -> bool:
    """§6.6."""
    return record.policy == "All" or (record.policy == "Running" and pod.phase in {"Running", "Pending"})


def _rest_faults(record: DiRecord, services: set[str]) -> Iterator[str]:
    living = record.living()
    if record.finished:
        yield from (f"has to delete the service {name}" for name in sorted(services))
        yield from (f"has to clean up {pod.name}" for pod in living if _is_cleaned_up(record, pod))
        return
    names = {pod.name for pod in living}
    if services != names:
        yield f"has services {sorted(services)} for the pods {sorted(names)}"
    coordinators = [pod for pod in living if pod.role == "coordinator"]
    if [pod.name for pod in coordinators] != [f"{record.name}-coordinator"]:
        yield f"has the coordinators {[pod.name for pod in coordinators]}"
        return
    phase = coordinators[0].phase
    if phase not in {record.phase, "Pending"}:
        yield f"says {record.phase or 'nothing'}, and its coordinator is {phase}"
    counts: dict[str, dict[str, int]] = {name: {} for name in COUNTERS.values()}
    kinds = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    for pod in living:
        if pod.role in COUNTERS and pod.phase in kinds:
            entry = counts[COUNTERS[pod.role]]
            entry[kinds[pod.phase]] = entry.get(kinds[pod.phase], 0) + 1
    found = (record.job.get("status") or {}).get("replicaStatus")
    if found != counts:
        yield f"counts {found} instead of {counts}"


def _is_uncertain(record: DiRecord) -> bool:
    """A client does not know whether its request was carried out."""
    return any(not ask.succeeded and not ask.refused for ask in record.asks)


def request_faults(record: DiRecord) -> Iterator[str]:
    """What was answered was done once; what was not answered was done once, or not at all (§7, D39, D40)."""
    if record.finished:
        return
    created = {name for ask in record.asks if ask.succeeded and ask.kind != "remove" for name in ask.answered}
    deleted = {name for ask in record.asks if ask.succeeded and ask.kind == "remove" for name in ask.answered}
    deleted |= {name for ask in record.asks if ask.succeeded and ask.kind == "replace" for name in ask.named}
    by_name = {pod.name: pod for pod in record.pods.values()}
    living = {pod.name for pod in record.living() if pod.role != "coordinator"}
    yield from (f"{name} was deleted, and lives" for name in sorted(living & deleted))
    others = {ask.uid for ask in record.asks} - {record.job["metadata"]["uid"]}
    if not others and record.is_first:  # caches that lag may show the previous job of this name
        yield from (f"{name} was created, and never was" for name in sorted(created - by_name.keys()))
    unsure = [ask for ask in record.asks if not ask.succeeded and not ask.refused]
    lost = {name for name in created - deleted - living if name in by_name and not by_name[name].taken}
    may_go = sum(ask.demanded for ask in unsure if ask.kind == "remove")
    may_go += sum(len(ask.named) for ask in unsure if ask.kind == "replace")
    if len(lost) > may_go:
        yield f"{sorted(lost)} were created, and nobody has deleted them"
    uids = {pod.uid: pod.name for pod in record.pods.values()}
    tops = {name for name in living if by_name[name].role != "ddp-learner"}
    extra = len(tops - created)
    possible = {0}
    for ask in unsure:
        more = ask.demanded if ask.kind == "post" else len(ask.named) if ask.kind == "replace" else 0
        possible |= {count + more for count in possible}
    if extra not in possible:
        yield f"{sorted(tops - created)} live, and answers have {sorted(created)}; {len(unsure)} have no answer"
    for name in sorted(living - tops):
        above = {uids.get(uid, "") for uid in by_name[name].aggregators}
        if not above & living and not any(by_name[each].taken for each in above if each in by_name):
            yield f"{name} lives without its aggregator {sorted(above)}"


def _aggregators_of(pod: Json) -> list[str]:
    """UIDs of the aggregators that own a ddp learner besides its job."""
    owners = pod["metadata"].get("ownerReferences") or []
    controller = (controller_of(pod) or {}).get("uid")
    return [owner["uid"] for owner in owners if owner["uid"] != controller]
