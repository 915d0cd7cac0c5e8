"""`Evidence`: everything that an explanation reads, reduced to what it needs. Malformed parts count as absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, read_time

MAX_MESSAGE = 600
"""Bytes of a message that are kept."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """The state of a container."""

    name: str
    init: bool = False
    image: str = ""
    state: str = ""
    """waiting, running or terminated; empty if the kubelet has not reported it."""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    """Of its last end."""
    restarts: int = 0
    last_reason: str = ""
    """Why its previous run ended."""
    log: str = ""
    """The message of its last end: with `FallbackToLogsOnError` the end of its log."""
    started: datetime | None = None
    finished: datetime | None = None
    """Of its latest run, by the clock of the node."""
    last_finished: datetime | None = None
    """When its run before ended, by the clock of the node."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, without what no explanation reads: there may be thousands."""

    name: str
    role: str = ""
    index: int | None = None
    node: str = ""
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    created: datetime | None = None
    deadline: datetime | None = None
    """When its deletion has to be complete; None if it is not being deleted."""
    scheduler: str = ""
    group: str = ""
    """The PodGroup by which kube-scheduler places it."""
    scheduling: tuple[str, str] | None = None
    """Reason and message of PodScheduled while it is false."""
    scheduled: bool = False
    ready: bool = False
    gates: tuple[str, ...] = ()
    containers: tuple[ContainerFacts, ...] = ()
    """Init containers first."""
    claims: tuple[str, ...] = ()
    """Names of PersistentVolumeClaims."""
    finalizers: tuple[str, ...] = ()
    uid: str = ""
    scheduled_at: datetime | None = None
    """By the clock of the API server, as `created`."""
    seen_at: datetime | None = None
    """When the kubelet saw the pod, by the clock of the node."""
    initialized_at: datetime | None = None
    """By the clock of the node; None of a pod whose init containers have not ended."""

    @property
    def label(self) -> str:
        """`worker-1`, or the name of the pod if its labels do not say."""
        if not self.role:
            return self.name
        return self.role if self.index is None else f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class EventFacts:
    """An event about the job or one of its objects."""

    type: str
    reason: str
    message: str
    kind: str
    """Of the object that it is about."""
    name: str
    at: datetime | None = None
    count: int = 1
    uid: str = ""
    """Of the object that it is about."""
    first: datetime | None = None
    """When it happened first, by the clock of who reports it, as `at`."""
    created: datetime | None = None
    """When the API server stored it first."""
    host: str = ""
    """The node whose kubelet reports it; empty for other reporters."""
    part: str = ""
    """The field path of the container that it is about."""


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """A Deployment that may be the operator."""

    name: str
    namespace: str
    image: str = ""
    ready: int = 0
    wanted: int = 1
    schemes: tuple[str, ...] = ()
    """Of --enable-scheme, in lower case; empty: all."""
    watched: str = ""
    """The namespace that it watches; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read about one job at one time."""

    kind: str
    job: Json
    now: datetime
    pods: tuple[PodFacts, ...] = ()
    events: tuple[EventFacts, ...] = ()
    """The newest last."""
    group: Json | None = None
    """Its PodGroup."""
    workloads: tuple[Json, ...] = ()
    """Workloads of Kueue that the job owns."""
    queues: tuple[str, ...] | None = None
    """Names of the LocalQueues of the namespace; None: they were not read."""
    nodes: Mapping[str, Json] = field(default_factory=dict)
    """Nodes that matter, by name. A node that does not exist is an empty object."""
    operators: tuple[OperatorFacts, ...] | None = None
    """None: Deployments were not read."""
    crd_fields: frozenset[str] | None = None
    """Fields of the status in the CRD; None: it was not read."""
    last_output: Mapping[str, datetime] = field(default_factory=dict)
    """Pod -> time of its last line of output."""
    unread: tuple[str, ...] = ()
    """What may not be read, or could not be."""
    vanished: bool = False
    """The job was deleted while the rest was read."""

    @property
    def spec(self) -> Json:
        return as_object(self.job.get("spec"))

    @property
    def status(self) -> Json:
        return as_object(self.job.get("status"))

    @property
    def policy(self) -> Json:
        """`runPolicy`; MPIJob v2beta1 has it, too, and DIJob none."""
        return as_object(self.spec.get("runPolicy"))

    @property
    def metadata(self) -> Json:
        return as_object(self.job.get("metadata"))

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def age(self) -> float:
        """Seconds since the creation of the job."""
        created = read_time(self.metadata.get("creationTimestamp"))
        return (self.now - created).total_seconds() if created else 0.0

    def conditions(self) -> list[Json]:
        """The conditions of the job, in their order."""
        return as_list(self.status.get("conditions"))

    def condition(self, type_: str) -> Json | None:
        """The condition of this type if it is true."""
        return next(
            (each for each in self.conditions() if (each.get("type"), each.get("status")) == (type_, "True")), None
        )

    @property
    def suspended(self) -> bool:
        return self.policy.get("suspend") is True or self.spec.get("suspend") is True

    @property
    def finished(self) -> str:
        """Succeeded or Failed; empty if the job has not finished."""
        phase = self.status.get("phase")
        if phase in {"Succeeded", "Failed"}:
            return str(phase)
        return next((type_ for type_ in ("Succeeded", "Failed") if self.condition(type_)), "")

    def about(self, *reasons: str, kind: str = "") -> list[EventFacts]:
        """The events with one of these reasons, the newest first."""
        return [each for each in reversed(self.events) if each.reason in reasons and (not kind or each.kind == kind)]


def as_texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def by(key: str, items: Iterable[Json]) -> dict[str, Json]:
    """The objects by the text of one field."""
    return {as_text(each.get(key)): each for each in items}


def as_text(value: object, limit: int = MAX_MESSAGE) -> str:
    return cut(value, limit) if isinstance(value, str) else ""


def as_number(value: object, default: int = 0) -> int:
    found = _number(value)
    return default if found is None else found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Reading --------------------------------------------------------------------------------------------------------------


def gang_size(spec: Json) -> object:
    """The number of pods that start together by the `spec` of a PodGroup; None if it has none."""
    policy = as_object(as_object(spec.get("schedulingPolicy")).get("gang"))
    return spec.get("minMember", policy.get("minCount"))


def read_pod(pod: Json) -> PodFacts:
    """Reduces a pod. Never raises."""
    metadata, spec, status = (as_object(pod.get(name)) for name in ("metadata", "spec", "status"))
    labels = as_object(metadata.get("labels"))
    role = labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or labels.get("replica-type") or ""
    index = labels.get(REPLICA_INDEX)
    conditions = by("type", as_list(status.get("conditions")))
    scheduled = conditions.get("PodScheduled", {})
    waits = scheduled.get("status") == "False"
    volumes = as_list(spec.get("volumes"))
    return PodFacts(
        name=as_text(metadata.get("name")),
        role=as_text(role),
        index=int(index)
        if isinstance(index, str) and index.isdecimal() and len(index) < 10 and role != "launcher"
        else None,
        node=as_text(spec.get("nodeName")),
        phase=as_text(status.get("phase")) or "Pending",
        reason=as_text(status.get("reason")),
        message=as_text(status.get("message")),
        created=read_time(metadata.get("creationTimestamp")),
        deadline=read_time(metadata.get("deletionTimestamp")),
        scheduler=as_text(spec.get("schedulerName")),
        group=as_text(as_object(spec.get("schedulingGroup")).get("podGroupName")),
        scheduling=(as_text(scheduled.get("reason")), as_text(scheduled.get("message"))) if waits else None,
        scheduled=scheduled.get("status") == "True" or bool(spec.get("nodeName")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        gates=tuple(as_text(each.get("name")) for each in as_list(spec.get("schedulingGates"))),
        containers=tuple(_read_containers(spec, status)),
        claims=tuple(
            as_text(as_object(each.get("persistentVolumeClaim")).get("claimName"))
            for each in volumes
            if "persistentVolumeClaim" in each
        ),
        finalizers=as_texts(metadata.get("finalizers")),
        uid=as_text(metadata.get("uid")),
        scheduled_at=_became_true(scheduled),
        seen_at=read_time(status.get("startTime")),
        initialized_at=_became_true(conditions.get("Initialized", {})),
    )


def _became_true(condition: Json) -> datetime | None:
    return read_time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _read_containers(spec: Json, status: Json) -> Iterator[ContainerFacts]:
    for init, field_, statuses in (
        (True, "initContainers", "initContainerStatuses"),
        (False, "containers", "containerStatuses"),
    ):
        known = by("name", as_list(status.get(statuses)))
        for container in as_list(spec.get(field_)):
            yield _read_container(container, known.get(as_text(container.get("name")), {}), init=init)


def _read_container(container: Json, status: Json, *, init: bool) -> ContainerFacts:
    states = as_object(status.get("state"))
    state = next((name for name in ("waiting", "running", "terminated") if name in states), "")
    now, before = as_object(states.get(state)), as_object(as_object(status.get("lastState")).get("terminated"))
    end: Mapping[str, Any] = now if state == "terminated" else before
    return ContainerFacts(
        name=as_text(container.get("name")),
        init=init,
        image=as_text(container.get("image")),
        state=state,
        reason=as_text(now.get("reason")),
        message=as_text(now.get("message")),
        exit_code=_number(end.get("exitCode")),
        restarts=_number(status.get("restartCount")) or 0,
        last_reason=as_text(before.get("reason")),
        log=as_text(end.get("message"), 2048),
        started=read_time(now.get("startedAt")),
        finished=read_time(now.get("finishedAt")),
        last_finished=read_time(before.get("finishedAt")),
    )


def read_events(items: Iterable[Json], job: Json, pods: Iterable[str]) -> tuple[EventFacts, ...]:
    """The events about the job and its objects, those without a time first. Objects of the job are recognized by the
    UID of the job, by the names of its pods, or by a name that begins with that of the job."""
    metadata = as_object(job.get("metadata"))
    uid, name, known = metadata.get("uid"), str(metadata.get("name")), set(pods)
    found = []
    for item in items:
        about = as_object(item.get("involvedObject"))
        target = as_text(about.get("name"))
        mine = about.get("uid") == uid or target in known or target == name or target.startswith(f"{name}-")
        if mine and not (about.get("kind") == job.get("kind") and about.get("uid") != uid):
            found.append(_read_event(item, about))
    return tuple(sorted(found, key=lambda each: each.at.timestamp() if each.at else 0.0))


def _read_event(item: Json, about: Json) -> EventFacts:
    series = as_object(item.get("series"))
    times = (
        series.get("lastObservedTime"),
        item.get("lastTimestamp"),
        item.get("eventTime"),
        item.get("firstTimestamp"),
    )
    return EventFacts(
        type=as_text(item.get("type")),
        reason=as_text(item.get("reason")),
        message=as_text(item.get("message"), 1024),
        kind=as_text(about.get("kind")),
        name=as_text(about.get("name")),
        at=next(filter(None, map(read_time, times)), None),
        count=_number(series.get("count")) or _number(item.get("count")) or 1,
        uid=as_text(about.get("uid")),
        first=read_time(item.get("firstTimestamp")) or read_time(item.get("eventTime")),
        created=read_time(as_object(item.get("metadata")).get("creationTimestamp")),
        host=as_text(as_object(item.get("source")).get("host")),
        part=as_text(about.get("fieldPath")),
    )
