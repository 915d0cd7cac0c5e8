"""What a job asks of its queue: pod sets, priority, and the Workload with both.

A pod set is one role. Its template is the manifest that the pods of the role get, so that Kueue counts what the
operator adds; only the variables are left out, which may have 100 KiB and mean nothing to it. Whether the Workload
still is that of the job is seen from the user's template alone (`demand`): neither a new image nor another version of
the operator queues a running job again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from trainop.engine.fields import as_list, as_object
from trainop.engine.framework import REPLICA_INDEX, Words, selector
from trainop.engine.gang import policy_class
from trainop.engine.kueue import (
    ELASTIC,
    EXECUTION_TIME,
    GROUP,
    JOB_UID,
    PRIORITY,
    QUEUE,
    REPLACES,
    SLICE_NAME,
    TOPOLOGY,
    WORKLOADS,
    SeenQueue,
    Workload,
)
from trainop.engine.steps.companions import FINGERPRINT
from trainop.runtime import Json, Metadata, owner_reference

LONGEST_NAME = 63
"""Of a Workload: Kueue uses it as the value of labels."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class PodSet:
    """The pods of one role."""

    name: str
    """The label of the role, in lower case."""
    count: int
    template: Json
    """The user's template, not validated."""
    make: Callable[[], Json]
    """Returns the manifest of a pod of the set. Called when a Workload is written."""
    least: int | None = None
    """The pods with which the job can run; None: all."""


class Priority(NamedTuple):
    """The priority of a job in its queue."""

    value: int = 0
    reference: Mapping[str, str] | None = None
    """The `priorityClassRef`; None: no class decides."""
    missing: str = ""
    """The class that does not exist, as text; empty: it does."""


def demand(pod_sets: Sequence[PodSet]) -> str:
    """A hash of what decides about quota and place of the pods, without their numbers: the fingerprint of a Workload,
    which also marks those that the operator has made."""
    facts = [(each.name, _demand(each.template)) for each in pod_sets]
    return hashlib.blake2s(_encode_sorted(facts), digest_size=16).hexdigest()


_PLACING = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "overhead", "resources", "resourceClaims")


def _demand(template: Json) -> Json:
    spec = as_object(template.get("spec"))
    facts: Json = {name: spec[name] for name in _PLACING if spec.get(name)}
    for group in ("containers", "initContainers"):
        facts[group] = [(each.get("resources"), each.get("restartPolicy")) for each in as_list(spec.get(group))]
    return {**facts, "topology": _topology_annotations(template)}


def _topology_annotations(template: Json) -> dict[str, str]:
    given = as_object(as_object(template.get("metadata")).get("annotations"))
    return {name: text for name, text in given.items() if name.startswith(TOPOLOGY) and isinstance(text, str)}


# Priority -------------------------------------------------------------------------------------------------------------


def read_priority(job: Metadata, spec: Json, pod_sets: Sequence[PodSet], seen: SeenQueue) -> Priority:
    """By the label of the job, its scheduling policy, the first template with a PriorityClass, or the default class."""
    if name := job.labels.get(PRIORITY):
        if (value := seen.classes.get(name)) is None:
            return Priority(missing=f"WorkloadPriorityClass {name}")
        return Priority(value, {"group": GROUP, "kind": "WorkloadPriorityClass", "name": name})
    names = (policy_class(spec), *(as_object(each.template.get("spec")).get("priorityClassName") for each in pod_sets))
    given = next((name for name in names if name and isinstance(name, str)), seen.default_class)
    if not given:
        return Priority()
    if (value := seen.priorities.get(given)) is None:
        return Priority(missing=f"PriorityClass {given}")
    return Priority(value, {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": given})


# The Workload ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks of its queue."""

    job: Metadata
    words: Words
    pod_sets: Sequence[PodSet]
    priority: Priority
    demand: str
    """That of the pod sets."""
    elastic: bool = False
    """It is resized by a new slice, and not queued again."""

    @property
    def queue(self) -> str:
        return self.job.labels.get(QUEUE, "")

    @property
    def counts(self) -> dict[str, int]:
        return {each.name: each.count for each in self.pod_sets}

    @property
    def seconds(self) -> int | None:
        """For how long the job may be admitted; None: Kueue sets no limit."""
        text = self.job.labels.get(EXECUTION_TIME, "")
        return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**31 else None

    def matches(self, workload: Workload) -> bool:
        """Whether the Workload is made from the same templates, whatever the numbers."""
        return workload.metadata.annotations.get(FINGERPRINT) == self.demand and self.seconds == _seconds(workload)

    def name(self, old: Workload | None = None) -> str:
        """The name of the Workload that is made now, after `old`: it differs with what is asked for, since an old one
        may be there still."""
        facts = (self.job.uid, self.demand, self.counts, old.metadata.uid if old else "")
        digest = hashlib.blake2s(_encode_sorted(facts), digest_size=5).hexdigest()
        start = f"{self.words.kind.lower()}-{self.job.name}"[: LONGEST_NAME - len(digest) - 1]
        return f"{start.rstrip('-.')}-{digest}"

    def spec(self) -> Json:
        """The `spec` of the Workload. As a merge patch it also removes what an older one has."""
        reference = self.priority.reference
        return {
            "queueName": self.queue,
            "podSets": [_pod_set(each, partial=not self.elastic) for each in self.pod_sets],
            "priority": self.priority.value,
            "priorityClassRef": dict(reference) if reference else None,
            "maximumExecutionTimeSeconds": self.seconds,
        }

    def manifest(self, old: Workload | None = None) -> Json:
        """The Workload as it is created; `old` is the slice that it is to replace."""
        resource = self.words.resource
        annotations = {FINGERPRINT: self.demand}
        if self.elastic:
            annotations[ELASTIC] = "true"
        if old is not None:
            annotations |= {REPLACES: f"{self.job.namespace}/{old.metadata.name}", SLICE_NAME: old.slice_name}
        return {
            "apiVersion": WORKLOADS.api_version,
            "kind": WORKLOADS.kind,
            "metadata": {
                "name": self.name(old),
                "namespace": self.job.namespace,
                "labels": {**selector(self.words, self.job.name), JOB_UID: self.job.uid},
                "annotations": annotations,
                "ownerReferences": [
                    owner_reference(resource.api_version, resource.kind, self.job.name, self.job.uid),
                ],
            },
            "spec": {name: value for name, value in self.spec().items() if value is not None},
        }


def _seconds(workload: Workload) -> int | None:
    return workload.spec.maximum_execution_time_seconds


def _pod_set(pods: PodSet, *, partial: bool) -> Json:
    made: Json = {"name": pods.name, "count": pods.count, "template": _template(pods.make(), pods.template)}
    if partial and pods.least is not None and 0 < pods.least < pods.count:
        made["minCount"] = pods.least
    return {**made, "topologyRequest": _topology_request(pods.template)}


def _template(manifest: Json, given: Json) -> Json:
    """The template of a pod set: without what only one pod has, and without the variables. `given`: the user's."""
    metadata, spec = manifest["metadata"], dict(manifest["spec"])
    for name in ("hostname", "subdomain"):
        spec.pop(name, None)
    named = _names_of(given)
    asked = {name for each in (as_object(given.get("spec")), *_containers(given)) for name in _asks_for(each)}
    for group in _GROUPS:
        if group in spec:
            spec[group] = [_counted(each, None if each.get("name") in named else asked) for each in spec[group]]
    kept = {name: metadata[name] for name in ("labels", "annotations") if metadata.get(name)}
    return {"metadata": kept, "spec": spec}


_GROUPS = ("containers", "initContainers")


def _containers(template: Json) -> list[Json]:
    spec = as_object(template.get("spec"))
    return [as_object(each) for group in _GROUPS for each in as_list(spec.get(group))]


def _names_of(template: Json) -> set[object]:
    return {each.get("name") for each in _containers(template)}


def _asks_for(holder: Json) -> Iterator[str]:
    """The resources that a container, or a pod as a whole, asks for."""
    resources = as_object(holder.get("resources"))
    for part in ("requests", "limits"):
        yield from as_object(resources.get(part))


def _counted(container: Json, asked: Collection[str] | None) -> Json:
    """A container as it is counted. `asked`, of one that the operator adds: the resources that the user's containers
    ask for; any other would need a quota, although a queue may have none for it."""
    found = {name: value for name, value in container.items() if name != "env"}
    if asked is None or "resources" not in found:
        return found
    parts = {part: as_object(values) for part, values in found["resources"].items() if part in ("requests", "limits")}
    kept = {part: {name: value for name, value in values.items() if name in asked} for part, values in parts.items()}
    return {**found, "resources": {part: values for part, values in kept.items() if values}}


_REQUESTS = {"required-topology": "required", "preferred-topology": "preferred"}
_SLICES = ("slice-required-topology", "slice-size")


def _topology_request(template: Json) -> Json:
    """The topology that the annotations of a template ask for, as Kueue's own integrations read them; the pods are
    placed in the order of their index."""
    asked = {name.removeprefix(TOPOLOGY): text for name, text in _topology_annotations(template).items()}
    request: Json = {"podIndexLabel": REPLICA_INDEX}
    found = next((name for name in _REQUESTS if name in asked), None)
    if found is not None:
        request[_REQUESTS[found]] = asked[found]
        request |= {"podSetGroupName": asked["group-name"]} if "group-name" in asked else {}
    elif asked.get("unconstrained-topology") in ("true", "false"):
        request["unconstrained"] = asked["unconstrained-topology"] == "true"
    topology, size = (asked.get(name, "") for name in _SLICES)
    if topology and size.isascii() and size.isdigit() and 0 < int(size[:11]) < 2**31:
        request |= {"podSetSliceRequiredTopology": topology, "podSetSliceSize": int(size)}
    return request
