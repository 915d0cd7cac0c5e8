"""Gangs of kube-scheduler: the Workload of a job, and what its PodGroup has besides the number of pods.

Of a PodGroup only that number can be changed later; what the annotations ask for counts when it is created. Source:
Kubernetes 1.37, `staging/src/k8s.io/api/scheduling/v1beta1/types.go`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from trainop.engine.actions import Need
from trainop.engine.extensions import GANG_CLAIMS, GANG_DISRUPTION, GANG_TOPOLOGY
from trainop.engine.fields import Fields
from trainop.engine.framework import Companion, CompanionKind
from trainop.engine.gang import Gang, Wishes, priority_class
from trainop.engine.gang_scheduler import KUBE_WORKLOADS
from trainop.engine.job import Job
from trainop.engine.leaders import WORKER
from trainop.runtime import Json, Metadata, Resource

TEMPLATE = "replicas"
"""The name of the template in the Workload of which the PodGroup is made."""
MODES = ("single", "all")
MAX_CLAIMS = 4
"""Of one PodGroup."""

_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

WORKLOADS = CompanionKind(KUBE_WORKLOADS, Need.NONE, permission_optional=True)


def read_wishes(fields: Fields, annotations: Mapping[str, str], specs: Sequence[Json]) -> Wishes:
    """Parses the annotations of a job whose pods have these specs; errors are added to `fields`."""
    topology, disruption = annotations.get(GANG_TOPOLOGY, ""), annotations.get(GANG_DISRUPTION, "")
    if topology and not _LABEL_KEY.fullmatch(topology):
        fields.invalid(_path(GANG_TOPOLOGY), topology, "must be the key of a node label")
        topology = ""
    if disruption and disruption not in MODES:
        fields.unsupported(_path(GANG_DISRUPTION), disruption, MODES)
        disruption = ""
    names = dict.fromkeys(name.strip() for name in annotations.get(GANG_CLAIMS, "").split(",") if name.strip())
    return Wishes(topology, disruption, _find_claims(fields, tuple(names), specs))


def _path(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"


def _find_claims(fields: Fields, names: Sequence[str], specs: Sequence[Json]) -> tuple[Json, ...]:
    """The entries with these names. All pods that name a claim have to mean the same by it."""
    if len(names) > MAX_CLAIMS:
        fields.invalid(_path(GANG_CLAIMS), ",".join(names), f"must name at most {MAX_CLAIMS} claims")
        return ()
    found = []
    for name in names:
        given = [each for spec in specs for each in _claims(spec) if each.get("name") == name]
        if not given:
            fields.invalid(_path(GANG_CLAIMS), name, "is not the name of an entry in spec.resourceClaims of a template")
        elif any(each != given[0] for each in given):
            fields.invalid(_path(GANG_CLAIMS), name, "must be the same entry of spec.resourceClaims in all templates")
        else:
            found.append(given[0])
    return tuple(found)


def _claims(spec: Json) -> list[Json]:
    claims = spec.get("resourceClaims")
    return [each for each in claims if isinstance(each, dict)] if isinstance(claims, list) else []


def elastic_minimum(job: Job) -> int | None:
    """The pods with which the job can run: those of its elastic policy, and all of other roles. None without one."""
    policy, worker = job.spec.get("elasticPolicy"), job.role(WORKER)
    least = policy.get("minReplicas") if isinstance(policy, dict) else None
    if worker is None or isinstance(least, bool) or not isinstance(least, int) or least < 1:
        return None
    return sum(role.replicas for role in job.roles) - worker.replicas + min(least, worker.replicas)


def group_spec(gang: Gang, job: str) -> Json:
    """The `spec` of the PodGroup of a job when it is created."""
    made = _template(gang)
    return {**made, "workloadRef": {"workloadName": job, "templateName": TEMPLATE}}


def _template(gang: Gang) -> Json:
    """What PodGroup and template of the Workload have in common."""
    wishes, members = gang.wishes, gang.members(None)
    classes = (gang.policy.priority_class, *(priority_class(task) for task in gang.tasks))
    mode = wishes.disruption or ("all" if members >= gang.total else "single")
    fields = {
        **gang.scheduler.shape({"minMember": members}),
        "disruptionMode": {mode: {}},
        "priorityClassName": next((name for name in classes if name), None),
        "schedulingConstraints": {"topology": [{"key": wishes.topology}]} if wishes.topology else None,
        "resourceClaims": list(wishes.claims) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def workload(gang: Gang, job: Metadata, resource: Resource) -> Companion:
    """The Workload of a job, which leads other programs from its PodGroup to the job."""
    owner = {"apiGroup": resource.group, "kind": resource.kind, "name": job.name}
    spec = {"controllerRef": owner, "podGroupTemplates": [{"name": TEMPLATE, **_template(gang)}]}
    return Companion(WORKLOADS, job.name, _encode_sorted(spec).decode(), lambda: {"spec": spec})


_encode_sorted = msgspec.json.Encoder(order="sorted").encode
