"""Which pods a request makes, as functions from names to pods: decided before the first one is created."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from trainop.diserver.bodies import Demand, Wanted
from trainop.diserver.replies import Refusal
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
from trainop.runtime.objects.metadata import Json

COLLECTORS, LEARNERS = "collectors", "learners"


class Made(NamedTuple):
    """A pod that was created."""

    name: str
    uid: str


Step: TypeAlias = Callable[[str, Sequence[Made]], Json]
"""(suffix of the name, pods that the unit made before) -> pod."""


class Unit(NamedTuple):
    """Pods that are created one after the other, such as an aggregator and its ddp learners. The first is what clients
    connect to."""

    section: str
    """`COLLECTORS` or `LEARNERS`: where the answer has its address."""
    steps: Sequence[Step]
    answers: Sequence[int] = (0,)
    """The steps whose addresses are in the answer."""
    replaces: Sequence[str] = ()
    """Names of the pods that are deleted once the new ones exist."""


class World(NamedTuple):
    """What pods are made from."""

    job: Json
    """The DIJob."""
    options: PodOptions
    request: str
    """The value of the annotation on all pods."""
    aggregator: Json | None = None
    """The AggregatorConfig, if the request needs it."""
    block: int = 0
    """The majority of GPUs per node."""

    @property
    def facts(self) -> JobFacts:
        return read_job(self.job)

    @property
    def annotations(self) -> Mapping[str, str]:
        return {REQUEST: self.request}


def check_demand(demand: Demand, job: Json, block: int, most: int) -> None:
    """Raises `Refusal` if there is no template for a replica, or if the request would create more than `most` pods."""
    if demand.collectors.replicas:
        _require_template(job, Role.COLLECTOR)
    if demand.learners.replicas:
        _require_template(job, Role.LEARNER)
    each = 1 + pod_count(demand.learners.gpus, block) if needs_aggregator(demand.learners) else 1
    total = demand.collectors.replicas + demand.learners.replicas * each
    _check_total(total, most)


def _check_total(total: int, most: int) -> None:
    if total > most:
        raise Refusal(400, f"the request would create {total} pods, and at most {most} are allowed")


def needs_aggregator(wanted: Wanted) -> bool:
    """Whether each replica is an aggregator with ddp learners."""
    return wanted.replicas > 0 and wanted.gpus > 1


def plan_creation(demand: Demand, world: World) -> list[Unit]:
    """The units of a request, in the order of its answer."""
    collectors = [Unit(COLLECTORS, [_single(world, Role.COLLECTOR, demand.collectors.resources)])]
    wanted = demand.learners
    if needs_aggregator(wanted):
        learners = [Unit(LEARNERS, _group(world, wanted.resources))]
    else:
        learners = [Unit(LEARNERS, [_single(world, Role.LEARNER, wanted.resources)])]
    return collectors * demand.collectors.replicas + learners * wanted.replicas


def _require_template(job: Json, role: Role) -> Json:
    template = template_of(job, role)
    if template is None:
        metadata = job["metadata"]
        raise Refusal(400, f"DIJob {metadata['namespace']}/{metadata['name']} has no {role.value} template")
    return template


def _single(world: World, role: Role, resources: Resources) -> Step:
    facts, template = world.facts, template_of(world.job, role) or {}

    def step(suffix: str, _made: Sequence[Made]) -> Json:
        return build_pod(
            facts, role, template, world.options, suffix=suffix, resources=resources, annotations=world.annotations
        )

    return step


def _group(world: World, resources: Resources) -> list[Step]:
    template = template_of(world.aggregator or {}, Role.AGGREGATOR) or {}
    annotations = {**world.annotations, REQUESTED: write_requested(resources)}

    def first(suffix: str, _made: Sequence[Made]) -> Json:
        return build_pod(world.facts, Role.AGGREGATOR, template, world.options, suffix=suffix, annotations=annotations)

    return [first, *_members(world, resources)]


def _members(world: World, resources: Resources) -> list[Step]:
    """The ddp learners of an aggregator, which is the first pod of the unit."""
    template = _require_template(world.job, Role.LEARNER)
    shares = split(gpu_count(resources.gpus), world.block)

    def member(index: int, suffix: str, made: Sequence[Made]) -> Json:
        owner = aggregator_owner(*made[0])
        place = ddp_place(shares, index, owner, made[1].name if index else "")
        return build_pod(
            world.facts,
            Role.DDP_LEARNER,
            template,
            world.options,
            suffix=suffix,
            resources=resources,
            place=place,
            annotations=world.annotations,
        )

    return [partial(member, index) for index in range(len(shares))]


# Failed replicas ------------------------------------------------------------------------------------------------------


class Old(NamedTuple):
    """A failed pod, and if it is an aggregator or ddp learner the pods of its group in their order."""

    section: str
    pod: Json
    group: Sequence[Json] = ()


def check_replacement(olds: Iterable[Old], world: World, most: int) -> None:
    """Raises `Refusal` if the successors would be more than `most` pods. The size of a group is read from its pods,
    where a user may have written any number."""
    total = 0
    for old in olds:
        resources = _requested(old) if _is_aggregator(old) else None
        total += 1 + (pod_count(gpu_count(resources.gpus), world.block) if resources else len(old.group))
    _check_total(total, most)


def _is_aggregator(old: Old) -> bool:
    return labels_of(old.pod).get(REPLICA_TYPE) == Role.AGGREGATOR.value


def _requested(old: Old) -> Resources | None:
    """What the ddp learners of an aggregator were requested with; None if that is not known."""
    resources = read_requested(old.pod) or (requested_of(old.group[0]) if old.group else None)
    return resources if resources is not None and gpu_count(resources.gpus) > 0 else None


def plan_replacement(old: Old, world: World, wanted: Iterable[str]) -> Unit:
    """The unit that replaces a failed pod; `wanted` are the names whose successors the answer has."""
    labels = labels_of(old.pod)
    if _is_aggregator(old):
        return _replace_aggregator(old, world)
    pods = [old.pod]
    if labels.get(DDP_TYPE) == DDP_MASTER:
        pods += [each for each in old.group if _name(each) != _name(old.pod)]
    asked = set(wanted)
    answers = [index for index, pod in enumerate(pods) if _name(pod) in asked]
    return Unit(old.section, [_again(world, pod) for pod in pods], answers, [_name(pod) for pod in pods])


def _again(world: World, pod: Json, more: Mapping[str, str] | None = None) -> Step:
    def step(suffix: str, made: Sequence[Made]) -> Json:
        return recreate(pod, suffix, {**world.annotations, **(more or {})}, master=made[0].name if made else "")

    return step


def _replace_aggregator(old: Old, world: World) -> Unit:
    names = [_name(old.pod), *map(_name, old.group)]
    resources = _requested(old)
    if resources is None:
        return Unit(old.section, [_again(world, old.pod)], replaces=names[:1])
    steps = [_again(world, old.pod, {REQUESTED: write_requested(resources)}), *_members(world, resources)]
    return Unit(old.section, steps, replaces=names)


def labels_of(pod: Json) -> Mapping[str, str]:
    """The labels of a raw pod."""
    return pod["metadata"].get("labels") or {}


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


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
