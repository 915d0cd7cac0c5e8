"""What the admission of a Workload means for the pods of its job: how many, and on which nodes.

The user's templates are never written. The job is planned as if its templates had what Kueue's own integrations would
write into them (kubernetes-sigs/kueue 0.19, `pkg/podset`, `pkg/controller/jobframework`, `getPodSetsInfoFromStatus`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trainop.engine.fields import as_list, as_object
from trainop.engine.kueue import (
    ELASTIC,
    POD_SET,
    SLICE_NAME,
    TOPOLOGY,
    TOPOLOGY_GATE,
    WORKLOAD,
    Flavor,
    Workload,
    as_counts,
)
from trainop.runtime import Json

ASKING = (TOPOLOGY + "required-topology", TOPOLOGY + "preferred-topology")
UNCONSTRAINED = TOPOLOGY + "unconstrained-topology"
"""The annotation of pods that Kueue places although their template does not ask for it."""


class PlacementError(Exception):
    """The pods cannot get what the admission asks for. The message is for the user."""


class UnknownFlavorError(Exception):
    """A ResourceFlavor of the admission is not known (yet)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What the pods of one set get."""

    count: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    gates: tuple[str, ...] = ()
    """Scheduling gates."""

    def add_to(self, template: Json) -> Json:
        """A template with all of this. Raises `PlacementError` if it has another value for something."""
        metadata, spec = as_object(template.get("metadata")), as_object(template.get("spec"))
        asked = as_object(metadata.get("annotations"))
        more = {name: text for name, text in self.annotations.items() if name != UNCONSTRAINED or not _asks(asked)}
        added = {
            "labels": _merge("label", metadata.get("labels"), self.labels),
            "annotations": _merge("annotation", asked, more),
        }
        placed = {
            "nodeSelector": _merge("node selector", spec.get("nodeSelector"), self.node_selector),
            "tolerations": _append(spec.get("tolerations"), self.tolerations),
            "schedulingGates": _append(spec.get("schedulingGates"), [{"name": name} for name in self.gates]),
        }
        return {
            **template,
            "metadata": {**metadata, **{name: value for name, value in added.items() if value}},
            "spec": {**spec, **{name: value for name, value in placed.items() if value}},
        }


def _asks(annotations: Json) -> bool:
    """Whether a template asks for a topology itself."""
    return any(name in annotations for name in (*ASKING, UNCONSTRAINED))


def _merge(what: str, given: object, more: Mapping[str, str]) -> Json:
    base = as_object(given)
    for name, value in more.items():
        if name in base and base[name] != value:
            raise PlacementError(f"{what} {name} must be {value}, and the pods have {base[name]}")
    return {**base, **more}


def _append(given: object, more: tuple[Json, ...] | list[Json]) -> list[Json]:
    base = as_list(given)
    return [*base, *(each for each in more if each not in base)]


def read_placements(workload: Workload, flavors: Mapping[str, Flavor]) -> dict[str, Placement]:
    """Pod set -> what its pods get. Raises `PlacementError`, or `UnknownFlavorError`."""
    assigned = as_list(as_object(workload.status.admission).get("podSetAssignments"))
    return {str(each.get("name")): _read_placement(workload, each, flavors) for each in assigned}


def _read_placement(workload: Workload, assigned: Json, flavors: Mapping[str, Flavor]) -> Placement:
    name = str(assigned.get("name"))
    count = as_counts(assigned.get("count")) if "count" in assigned else workload.counts.get(name, 0)
    selector: Json = {}
    tolerations: list[Json] = []
    for flavor in dict.fromkeys(map(str, as_object(assigned.get("flavors")).values())):
        if flavor not in flavors:
            raise UnknownFlavorError(f"ResourceFlavor {flavor} is not known")
        selector |= flavors[flavor].spec.node_labels
        tolerations += flavors[flavor].spec.tolerations
    by_topology = assigned.get("topologyAssignment") is not None
    found = Placement(
        count,
        {POD_SET: name},
        _annotations(workload, by_topology=by_topology),
        selector,
        tuple(tolerations),
        (TOPOLOGY_GATE,) if by_topology else (),
    )
    for update in _updates(workload, name):
        found = _update(found, update)
    return found


def _annotations(workload: Workload, *, by_topology: bool) -> dict[str, str]:
    found = {WORKLOAD: workload.metadata.name}
    if workload.metadata.annotations.get(ELASTIC) == "true":
        found[SLICE_NAME] = workload.slice_name
    return {**found, UNCONSTRAINED: "true"} if by_topology else found


def _updates(workload: Workload, name: str) -> Iterator[Json]:
    """What the admission checks add to a pod set."""
    for check in workload.status.admission_checks:
        yield from (each for each in as_list(check.get("podSetUpdates")) if each.get("name") == name)


def _update(found: Placement, update: Json) -> Placement:
    return Placement(
        found.count,
        _merge("label", found.labels, as_object(update.get("labels"))),
        _merge("annotation", found.annotations, as_object(update.get("annotations"))),
        _merge("node selector", found.node_selector, as_object(update.get("nodeSelector"))),
        tuple(_append(list(found.tolerations), as_list(update.get("tolerations")))),
        found.gates,
    )


# The job --------------------------------------------------------------------------------------------------------------


def place_roles(replica_specs: str, spec: Json, placements: Mapping[str, Placement]) -> Json:
    """The spec of a job with a map of replica types, with the placements of its roles. A role never has more replicas
    than the user asks for. Raises `PlacementError`."""
    roles = as_object(spec.get(replica_specs))
    placed = {key: _place_role(value, placements.get(key.lower())) for key, value in roles.items()}
    return {**spec, replica_specs: placed}


def _place_role(value: object, placement: Placement | None) -> object:
    if placement is None or not isinstance(value, dict):
        return value
    replicas = value.get("replicas")
    wanted = 1 if replicas is None else replicas
    fewer = isinstance(wanted, int) and placement.count < wanted
    template = placement.add_to(as_object(value.get("template")))
    return {**value, "template": template, **({"replicas": placement.count} if fewer else {})}


def suspended(spec: Json, *, suspend: bool) -> Json:
    """The spec with that value of `runPolicy.suspend`. One whose run policy is no object stays, and is an error."""
    policy = spec.get("runPolicy")
    if policy is not None and not isinstance(policy, dict):
        return spec
    return {**spec, "runPolicy": {**(policy or {}), "suspend": suspend}}
