"""What the pods of a job need of a cluster: objects that they name, nodes that fit, and limits that they keep.

Pure: a rehearsal and what the cluster has go in, lines `field: what is missing` come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import JOB_ROLE, REPLICA_TYPE
from trainop.engine.kueue import LOCAL_QUEUES, QUEUE
from trainop.engine.pod_resources import Resources, container_requests, pod_requests, read_resources
from trainop.explain.launching import templates
from trainop.explain.nodes import describe_nodes
from trainop.explain.rehearsal import Rehearsal
from trainop.kinds.dijob.names import REPLICA_TYPE as DI_REPLICA_TYPE
from trainop.runtime import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SECRETS, SERVICE_ACCOUNTS, Json, Resource

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)


class Reference(NamedTuple):
    """An object that must exist."""

    resource: Resource
    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of one role, which have the same spec but for variables."""

    path: str
    """The field path of the spec in the job; that of the job's spec if no template is theirs."""
    spec: Json
    count: int


def group_pods(job: Json, found: Rehearsal) -> list[Group]:
    """The pods of a rehearsal by role, those of a batch Job included."""
    paths = {role.lower(): f"{path}.spec" for path, role, _ in templates(job)}
    groups: dict[str, Group] = {}
    for made in found.made:
        source = made.manifest if made.resource == PODS else _template(made.manifest)
        spec = source.get("spec")
        if not isinstance(spec, dict) or not spec.get("containers"):
            continue
        labels = as_object(as_object(source.get("metadata")).get("labels"))
        role = str(labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or labels.get(DI_REPLICA_TYPE) or "").lower()
        known = groups.get(role)
        groups[role] = Group(paths.get(role, "spec"), spec, known.count + 1 if known else 1)
    return list(groups.values())


def _template(manifest: Json) -> Json:
    return as_object(as_object(manifest.get("spec")).get("template"))


# Objects that pods name -----------------------------------------------------------------------------------------------


def find_references(job: Json, groups: Iterable[Group], found: Rehearsal) -> dict[Reference, str]:
    """What must exist already -> the field that names it first. Optional references, objects that the operator makes
    and those that every cluster has are left out."""
    made = {Reference(each.resource, each.name) for each in found.made}
    references: dict[Reference, str] = {}
    for group in groups:
        for reference, path in _of_pod(group.spec):
            references.setdefault(reference, f"{group.path}.{path}")
    queue = as_object(as_object(job.get("metadata")).get("labels")).get(QUEUE)
    if isinstance(queue, str) and queue:
        references[Reference(LOCAL_QUEUES, queue)] = f"metadata.labels[{QUEUE}]"
    for each in found.made:
        name = as_object(each.manifest.get("spec")).get("queue")
        if each.resource.group == VOLCANO_QUEUES.group and isinstance(name, str) and name:
            references[Reference(VOLCANO_QUEUES, name)] = "spec.runPolicy.schedulingPolicy.queue"
    return {each: path for each, path in references.items() if each not in made and not _is_built_in(each)}


def _is_built_in(reference: Reference) -> bool:
    resource, name = reference
    if resource == PRIORITY_CLASSES:
        return name.startswith("system-")
    return resource == SERVICE_ACCOUNTS and name == "default"


def _of_pod(spec: Json) -> Iterator[tuple[Reference, str]]:
    for name, resource in (
        ("priorityClassName", PRIORITY_CLASSES),
        ("runtimeClassName", RUNTIME_CLASSES),
        ("serviceAccountName", SERVICE_ACCOUNTS),
    ):
        yield from _named(resource, spec.get(name), name)
    for index, each in enumerate(as_list(spec.get("imagePullSecrets"))):
        yield from _named(SECRETS, each.get("name"), f"imagePullSecrets[{index}].name")
    for index, each in enumerate(as_list(spec.get("volumes"))):
        yield from _of_volume(each, f"volumes[{index}]")
    for kind in ("initContainers", "containers"):
        for index, each in enumerate(as_list(spec.get(kind))):
            yield from _of_container(each, f"{kind}[{index}]")


def _named(resource: Resource, name: Any, path: str) -> Iterator[tuple[Reference, str]]:
    if isinstance(name, str) and name:
        yield Reference(resource, name), path


def _required(
    source: Json, field_name: str, resource: Resource, key: str, path: str
) -> Iterator[tuple[Reference, str]]:
    value = as_object(source.get(field_name))
    if value.get("optional") is not True:
        yield from _named(resource, value.get(key), f"{path}.{field_name}.{key}")


def _of_volume(volume: Json, path: str) -> Iterator[tuple[Reference, str]]:
    yield from _required(volume, "persistentVolumeClaim", PERSISTENT_VOLUME_CLAIMS, "claimName", path)
    yield from _required(volume, "secret", SECRETS, "secretName", path)
    yield from _required(volume, "configMap", CONFIG_MAPS, "name", path)
    for index, each in enumerate(as_list(as_object(volume.get("projected")).get("sources"))):
        for name, resource in (("secret", SECRETS), ("configMap", CONFIG_MAPS)):
            yield from _required(each, name, resource, "name", f"{path}.projected.sources[{index}]")


def _of_container(container: Json, path: str) -> Iterator[tuple[Reference, str]]:
    for each in as_list(container.get("env")):
        source = as_object(each.get("valueFrom"))  # the operator adds variables: the index would be another in the file
        for name, resource in (("secretKeyRef", SECRETS), ("configMapKeyRef", CONFIG_MAPS)):
            yield from ((found, f"{path}.env") for found, _ in _required(source, name, resource, "name", path))
    for index, each in enumerate(as_list(container.get("envFrom"))):
        for name, resource in (("secretRef", SECRETS), ("configMapRef", CONFIG_MAPS)):
            yield from _required(each, name, resource, "name", f"{path}.envFrom[{index}]")


# What the cluster has -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What could be read of a cluster; None is what may not be read."""

    missing: Mapping[Reference, str] = field(default_factory=dict)
    """References to what does not exist -> why, such as that its CRD is not installed; empty for no more to say."""
    nodes: Sequence[Json] | None = None
    limits: Sequence[Json] | None = None


def describe_lacks(references: Mapping[Reference, str], groups: Sequence[Group], facts: ClusterFacts) -> Iterator[str]:
    """One line for each object that the cluster lacks, each role that fits on no node, and each limit exceeded."""
    for reference, path in references.items():
        if reference in facts.missing:
            why = facts.missing[reference] or "does not exist; create it, or correct the name"
            yield f"{path}: {reference.resource.kind} {reference.name} {why}"
    for group in groups:
        if facts.nodes is not None:
            yield from (f"{group.path}{line}" for line in describe_nodes(group.spec, facts.nodes))
        yield from (f"{group.path}.{line}" for line in _beyond_limits(group.spec, facts.limits or ()))


def _beyond_limits(spec: Json, limits: Sequence[Json]) -> Iterator[str]:
    """What a LimitRange refuses of single containers and whole pods."""
    for limit in limits:
        name = as_object(limit.get("metadata")).get("name")
        for entry in as_list(as_object(limit.get("spec")).get("limits")):
            if entry.get("type") == "Container":
                for index, each in enumerate(as_list(spec.get("containers"))):
                    path = f"containers[{index}].resources"
                    yield from _outside(container_requests(each) | limits_of(each), entry, name, path)
            elif entry.get("type") == "Pod":
                yield from _outside(pod_requests(spec), entry, name, "containers")


def _outside(asked: Resources, entry: Json, name: Any, path: str) -> Iterator[str]:
    most = read_resources(entry.get("max"))
    least = read_resources(entry.get("min"))
    of = f"LimitRange {name}", f"a {str(entry['type']).lower()}"
    for resource, amount in asked.items():
        if resource in most and amount.amount > most[resource].amount:
            yield f"{path}: {amount} {resource} is more than {of[0]} allows {of[1]}: {most[resource]}"
        if resource in least and amount.amount < least[resource].amount:
            yield f"{path}: {amount} {resource} is less than {of[0]} demands of {of[1]}: {least[resource]}"


def limits_of(container: Json) -> Resources:
    """The resource limits of a container."""
    return read_resources(as_object(container.get("resources")).get("limits"))
