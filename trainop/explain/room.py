"""Whether quotas and nodes have room for jobs: each alone, and all that are created together.

Pure: what jobs ask for and what the cluster has go in, lines `field: what is missing` come out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from trainop.engine.fields import as_object
from trainop.engine.kueue import QUEUE
from trainop.engine.placement import capacity
from trainop.engine.pod_resources import Resources, add_multiple, pod_requests, read_resources
from trainop.explain.nodes import nodes_for
from trainop.explain.rehearsal import Made, Rehearsal
from trainop.explain.requirements import Group, Reference, group_pods, limits_of
from trainop.runtime import PODS, Json
from trainop.runtime.lowlevel import Quantity, read_quantity

_PODS = "pods"
_WITHOUT_PREFIX = {"cpu", "memory", "ephemeral-storage"}
"""Requests that quotas also count under their plain names."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one job asks for."""

    groups: Sequence[Group]
    """All its pods, those that exist already included."""
    counted: Resources = field(default_factory=dict)
    """What it adds to the use of quotas, by their names of resources."""
    is_continued: bool = False
    """Some of its objects exist already, and are not in `counted`."""
    waits: bool = False
    """It does not start when it is created, because it is suspended or in a queue of Kueue."""


def demand_of(job: Json, found: Rehearsal, existing: Collection[Reference] = ()) -> Demand:
    """What a job asks for. The quotas' use has the `existing` objects of the job already."""
    remaining = tuple(made for made in found.made if Reference(made.resource, made.name) not in existing)
    counted = _counted(group_pods(job, replace(found, made=remaining)), remaining)
    labels = job["metadata"].get("labels")
    queued = isinstance(labels, dict) and bool(labels.get(QUEUE))
    is_continued = len(remaining) < len(found.made)
    return Demand(group_pods(job, found), counted, is_continued, waits=queued or found.suspended)


def counted_objects(quotas: Iterable[Json], found: Rehearsal) -> list[Made]:
    """The objects of a job that a quota counts: those of which it matters whether they exist."""
    names = {name for quota in quotas if _is_for_all(quota) for name in read_resources(_spec(quota).get("hard"))}
    pods_count = bool(names & _counted(group_pods({}, found), ()).keys())
    return [made for made in found.made if names & _names_of(made) or (pods_count and _has_pods(made))]


def describe_quotas(quotas: Iterable[Json], demand: Demand, promised: Mapping[str, Quantity]) -> Iterator[str]:
    """One line for each limit of a quota that the job would exceed. `promised` is what jobs that are created before it
    add to the quotas' use. Quotas with scopes are about some pods only, and not judged."""
    for quota in filter(_is_for_all, quotas):
        used = read_resources((quota.get("status") or {}).get("used"))
        name = quota["metadata"].get("name")
        for resource, hard in read_resources(_spec(quota).get("hard")).items():
            need = demand.counted.get(resource)
            if need is None or not need.amount:
                continue
            nothing = Quantity(Fraction(0), need.format)
            have, others = used.get(resource, nothing), promised.get(resource, nothing)
            if have.amount + others.amount + need.amount > hard.amount:
                before = f", jobs before it in the files need {others}" if others.amount else ""
                more = " more" if demand.is_continued else ""
                yield (
                    f"spec: ResourceQuota {name} allows {hard} {resource}, {have} are used{before}, "
                    f"and the job needs {need}{more}"
                )


class Load:
    """What the pods of some jobs ask of the nodes at the same time, and the nodes on which each of them fits."""

    def __init__(self, nodes: Sequence[Json], groups: Iterable[Group] = ()) -> None:
        """Pods that fit on no node are left out: `describe_nodes` names them."""
        self._nodes = nodes
        self._asked: Resources = {}
        self._usable: dict[str, set[int]] = {}
        """Resource -> indices of the nodes."""
        self._room: dict[str, Fraction] = {}
        """Resource -> what these nodes have."""
        for group in groups:
            if fitting := nodes_for(group.spec, nodes):
                requests = pod_requests(group.spec) | {_PODS: read_quantity(1)}
                add_multiple(self._asked, requests, group.count)
                for name in requests:
                    self._use(name, fitting)

    def _use(self, name: str, fitting: Iterable[int]) -> None:
        known = self._usable.setdefault(name, set())
        more = set(fitting) - known
        known |= more
        room = sum((capacity(self._nodes[index], name) for index in more), Fraction(0))
        self._room[name] = self._room.get(name, Fraction(0)) + room

    def add(self, other: Load) -> None:
        """Adds the load of further jobs on the same nodes."""
        add_multiple(self._asked, other._asked, 1)
        for name, fitting in other._usable.items():
            self._use(name, fitting)

    def excess(self) -> list[str]:
        """One predicate for each resource of which the nodes have too little, even if they were empty."""
        lines = []
        for name, asked in self._asked.items():
            room = self._room[name]
            unknown = name == _PODS and not room  # no node says how many
            if asked.amount > room and not unknown:
                has = Quantity(room, asked.format)
                lines.append(f"ask for {asked} {name} at the same time; the nodes on which they fit have {has}")
        return lines


def _spec(quota: Json) -> Json:
    return as_object(quota.get("spec"))


def _is_for_all(quota: Json) -> bool:
    return not _spec(quota).get("scopes") and not _spec(quota).get("scopeSelector")


def _counted(groups: Iterable[Group], objects: Iterable[Made]) -> Resources:
    """The use of pods and other objects, by the names that quotas have for it."""
    groups = list(groups)
    requests: Resources = {}
    limits: Resources = {}
    for group in groups:
        add_multiple(requests, pod_requests(group.spec), group.count)
        for each in group.spec.get("containers") or ():
            add_multiple(limits, limits_of(each), group.count)
    counts = {_PODS: sum(each.count for each in groups)}
    counts["count/pods"] = counts[_PODS]
    for made in objects:
        for name in _names_of(made):
            counts[name] = counts.get(name, 0) + 1
    return {
        **{f"requests.{name}": amount for name, amount in requests.items()},
        **{name: amount for name, amount in requests.items() if name in _WITHOUT_PREFIX},
        **{f"limits.{name}": amount for name, amount in limits.items()},
        **{name: read_quantity(count) for name, count in counts.items()},
    }


def _names_of(made: Made) -> set[str]:
    """The names under which a quota counts an object, pods excepted."""
    resource = made.resource
    if resource == PODS:
        return set()
    return (
        {f"count/{resource.plural}.{resource.group}"}
        if resource.group
        else {f"count/{resource.plural}", resource.plural}
    )


def _has_pods(made: Made) -> bool:
    template = (made.manifest.get("spec") or {}).get("template")
    return made.resource == PODS or isinstance(template, dict)
