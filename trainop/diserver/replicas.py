"""Which pods di-server creates for a request. All are decided before the first one is created.

A client asks for replicas: collectors and learners. A replica is one pod; or, for a learner with more than one GPU, an
aggregator with its ddp learners, which are created one after the other because each needs the names of those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from trainop.diserver.bodies import Demand, Wanted
from trainop.diserver.replies import Refusal
from trainop.diserver.seen import PodId
from trainop.engine.queueing.placement import Placement
from trainop.kinds.dijob.gpus import gpu_count, pod_count, split
from trainop.kinds.dijob.names import DDP_MASTER, DDP_TYPE, REPLICA_TYPE, REQUEST, REQUESTED, Role
from trainop.kinds.dijob.pods import (
    JobFacts,
    PodOptions,
    Resources,
    aggregator_owner,
    build_pod,
    ddp_place,
    read_job,
    template_of,
)
from trainop.kinds.dijob.recreate import recreate, requested_of
from trainop.runtime import Json

COLLECTORS, LEARNERS = "collectors", "learners"


PodBuilder: TypeAlias = Callable[[str, Sequence[PodId]], Json]
"""Builds the manifest of one pod from a random suffix for its name and the pods of the replica that exist already."""


class NewReplica(NamedTuple):
    """One replica that is to be created."""

    section: str
    """`COLLECTORS` or `LEARNERS`: the list of the response that gets its addresses."""
    builders: Sequence[PodBuilder]
    """One per pod, in the order of creation."""
    answers: Sequence[int] = (0,)
    """Indices of the pods whose addresses are in the response: by default that of the first, which clients connect
    to."""
    replaces: Sequence[PodId] = ()
    """The failed pods that are deleted once all new ones exist."""


class PodSources(NamedTuple):
    """What all pods of one request are built from."""

    job: Json
    """The DIJob."""
    options: PodOptions
    request: str
    """Identifies the request; the value of the annotation `REQUEST` of its pods."""
    aggregator: Json | None = None
    """The AggregatorConfig, if learners need an aggregator."""
    placements: Mapping[str, Placement] = {}
    """Role -> what the queue of the job adds to its pods."""
    block: int = 0
    """The number of GPUs that most nodes have, by which ddp learners are sized."""

    @property
    def facts(self) -> JobFacts:
        return read_job(self.job)

    @property
    def annotations(self) -> Mapping[str, str]:
        return {REQUEST: self.request}


def check_demand(demand: Demand, job: Json, block: int, max_pods: int) -> None:
    """Raises `Refusal` if there is no template for a replica, or if the request would create more than `max_pods`."""
    if demand.collectors.replicas:
        _require_template(job, Role.COLLECTOR)
    if demand.learners.replicas:
        _require_template(job, Role.LEARNER)
    each = 1 + pod_count(demand.learners.gpus, block) if needs_aggregator(demand.learners) else 1
    total = demand.collectors.replicas + demand.learners.replicas * each
    _check_total(total, max_pods)


def _check_total(total: int, max_pods: int) -> None:
    if total > max_pods:
        raise Refusal(400, f"the request would create {total} pods, and at most {max_pods} are allowed")


def needs_aggregator(wanted: Wanted) -> bool:
    """Whether each learner has more than one GPU, so that it is an aggregator with ddp learners."""
    return wanted.replicas > 0 and wanted.gpus > 1


def plan_creation(demand: Demand, sources: PodSources) -> list[NewReplica]:
    """The replicas of a checked request, in the order of its response."""
    collectors = [NewReplica(COLLECTORS, [_pod_of(sources, Role.COLLECTOR, demand.collectors.resources)])]
    wanted = demand.learners
    if needs_aggregator(wanted):
        learners = [NewReplica(LEARNERS, _aggregator_with_learners(sources, wanted.resources))]
    else:
        learners = [NewReplica(LEARNERS, [_pod_of(sources, Role.LEARNER, wanted.resources)])]
    return collectors * demand.collectors.replicas + learners * wanted.replicas


def _require_template(job: Json, role: Role) -> Json:
    template = template_of(job, role)
    if template is None:
        metadata = job["metadata"]
        raise Refusal(400, f"DIJob {metadata['namespace']}/{metadata['name']} has no {role.value} template")
    return template


def _pod_of(sources: PodSources, role: Role, resources: Resources) -> PodBuilder:
    facts, template = sources.facts, template_of(sources.job, role) or {}
    if placement := sources.placements.get(role.value):
        template = placement.add_to(template)

    def build(suffix: str, _made: Sequence[PodId]) -> Json:
        return build_pod(
            facts, role, template, sources.options, suffix=suffix, resources=resources, annotations=sources.annotations
        )

    return build


def _aggregator_with_learners(sources: PodSources, resources: Resources) -> list[PodBuilder]:
    template = template_of(sources.aggregator or {}, Role.AGGREGATOR) or {}
    annotations = {**sources.annotations, REQUESTED: write_requested(resources)}

    def first(suffix: str, _made: Sequence[PodId]) -> Json:
        return build_pod(
            sources.facts, Role.AGGREGATOR, template, sources.options, suffix=suffix, annotations=annotations
        )

    return [first, *_ddp_learners(sources, resources)]


def _ddp_learners(sources: PodSources, resources: Resources) -> list[PodBuilder]:
    """Builders of the ddp learners of an aggregator. `made` begins with the aggregator; the learner after it is the
    master of the others."""
    template = _require_template(sources.job, Role.LEARNER)
    shares = split(gpu_count(resources.gpus), sources.block)

    def member(index: int, suffix: str, made: Sequence[PodId]) -> Json:
        owner = aggregator_owner(*made[0])
        place = ddp_place(shares, index, owner, made[1].name if index else "")
        return build_pod(
            sources.facts,
            Role.DDP_LEARNER,
            template,
            sources.options,
            suffix=suffix,
            resources=resources,
            place=place,
            annotations=sources.annotations,
        )

    return [partial(member, index) for index in range(len(shares))]


# Failed replicas ------------------------------------------------------------------------------------------------------


class FailedReplica(NamedTuple):
    """A pod that a client reports as failed."""

    section: str
    """`COLLECTORS` or `LEARNERS`: the list of the request that names it."""
    pod: Json
    group: Sequence[Json] = ()
    """The pods that are replaced with it, in order: the ddp learners of an aggregator, or the whole
    group of a ddp master."""


def check_replacement(failed: Iterable[FailedReplica], sources: PodSources, max_pods: int) -> None:
    """Raises `Refusal` if their replacements would be more than `max_pods`. The size of a group is read from its pods,
    where a user may have written any number."""
    total = 0
    for old in failed:
        resources = _requested(old) if _is_aggregator(old) else None
        total += 1 + (pod_count(gpu_count(resources.gpus), sources.block) if resources else len(old.group))
    _check_total(total, max_pods)


def _is_aggregator(old: FailedReplica) -> bool:
    return labels_of(old.pod).get(REPLICA_TYPE) == Role.AGGREGATOR.value


def _requested(old: FailedReplica) -> Resources | None:
    """What the ddp learners of an aggregator were requested with; None if that is not known."""
    resources = read_requested(old.pod) or (requested_of(old.group[0]) if old.group else None)
    return resources if resources is not None and gpu_count(resources.gpus) > 0 else None


def plan_replacement(old: FailedReplica, sources: PodSources, wanted: Iterable[str]) -> NewReplica:
    """The replica that replaces a failed pod. `wanted`: names of failed pods whose replacements are in the response."""
    labels = labels_of(old.pod)
    if _is_aggregator(old):
        return _replace_aggregator(old, sources)
    pods = [old.pod]
    if labels.get(DDP_TYPE) == DDP_MASTER:
        pods += [each for each in old.group if _name(each) != _name(old.pod)]
    asked = set(wanted)
    answers = [index for index, pod in enumerate(pods) if _name(pod) in asked]
    return NewReplica(old.section, [_rebuilt(sources, pod) for pod in pods], answers, [_id(pod) for pod in pods])


def _rebuilt(sources: PodSources, pod: Json, more: Mapping[str, str] | None = None) -> PodBuilder:
    """Builds a failed pod again, under a new name. `more`: additional annotations."""

    def build(suffix: str, made: Sequence[PodId]) -> Json:
        return recreate(pod, suffix, {**sources.annotations, **(more or {})}, master=made[0].name if made else "")

    return build


def _replace_aggregator(old: FailedReplica, sources: PodSources) -> NewReplica:
    replaced = [_id(old.pod), *map(_id, old.group)]
    resources = _requested(old)
    if resources is None:
        return NewReplica(old.section, [_rebuilt(sources, old.pod)], replaces=replaced[:1])
    builders = [_rebuilt(sources, old.pod, {REQUESTED: write_requested(resources)}), *_ddp_learners(sources, resources)]
    return NewReplica(old.section, builders, replaces=replaced)


def labels_of(pod: Json) -> Mapping[str, str]:
    """The labels of a raw pod."""
    return pod["metadata"].get("labels") or {}


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _id(pod: Json) -> PodId:
    return PodId(_name(pod), str(pod["metadata"]["uid"]))


class _Requested(msgspec.Struct, frozen=True):
    cpus: str = ""
    gpus: str = ""
    memory: str = ""


def write_requested(resources: Resources) -> str:
    """The annotation of an aggregator with the resources of its ddp learners."""
    return msgspec.json.encode(_Requested(resources.cpu, resources.gpus, resources.memory)).decode()


def read_requested(pod: Json) -> Resources | None:
    """The content of that annotation; None if there is none."""
    try:
        found = msgspec.json.decode((pod["metadata"].get("annotations") or {}).get(REQUESTED, ""), type=_Requested)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Resources(found.cpus, found.memory, found.gpus)
