"""Reads a runtime, as far as the operator can carry it over to a job of a kind of its own (trainer
`pkg/apis/trainer/v1alpha1/trainingruntime_types.go`). What cannot be carried over is an error, never left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainop.engine.fields import Fields
from trainop.kinds.trainjob.names import ANCESTOR, LAUNCHER, NODE, TRAINER
from trainop.runtime import Json

SOURCES = ("torch", "jax", "mpi")
"""The frameworks of `mlPolicy` that the operator runs."""
JOB_BACKOFF_LIMIT = 6
"""The default of `backoffLimit` of a batch Job."""
_MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class NodeJob:
    """One of `replicatedJobs`: the pods of one name."""

    template: Json
    """The pod template."""
    backoff_limit: int
    first: object
    """The name of the first container."""
    trains: bool
    """`spec.trainer` of the TrainJob is about it."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of a runtime that make a job."""

    source: str
    """The framework, one of `SOURCES`; empty if there is none of them."""
    policy: Json
    """`mlPolicy`[source]."""
    nodes: int
    jobs: Mapping[str, NodeJob]
    labels: Json
    annotations: Json


def read_runtime(fields: Fields, raw: Json) -> Runtime:
    """Reads a TrainingRuntime or ClusterTrainingRuntime. Errors have the paths of its fields, after its kind."""
    name = (raw.get("metadata") or {}).get("name")
    at = f"{raw.get('kind')}/{name}: spec"
    spec = fields.mapping(at, raw.get("spec"))
    only(fields, at, spec, {"mlPolicy", "template", "podGroupPolicy"}, "")
    if spec.get("podGroupPolicy") is not None:
        fields.forbidden(
            f"{at}.podGroupPolicy", "not supported: the operator's --gang-scheduler-name makes the PodGroups"
        )
    policy = fields.mapping(f"{at}.mlPolicy", spec.get("mlPolicy"))
    source = _find_source(fields, f"{at}.mlPolicy", policy)
    nodes = fields.integer(f"{at}.mlPolicy.numNodes", policy.get("numNodes"), minimum=1, maximum=_MAX_NODES)
    template = fields.mapping(f"{at}.template", spec.get("template"))
    metadata = fields.mapping(f"{at}.template.metadata", template.get("metadata"))
    place = f"{at}.template.spec"
    jobs = _read_jobs(fields, place, fields.mapping(place, template.get("spec")))
    _check_jobs(fields, f"{place}.replicatedJobs", source, jobs)
    return Runtime(
        source=source,
        policy=fields.mapping(f"{at}.mlPolicy.{source}", policy.get(source)) if source else {},
        nodes=nodes or 1,
        jobs=jobs,
        labels=fields.mapping(f"{at}.template.metadata.labels", metadata.get("labels")),
        annotations=fields.mapping(f"{at}.template.metadata.annotations", metadata.get("annotations")),
    )


def only(fields: Fields, at: str, given: Json, known: set[str], why: str) -> None:
    """Refuses every field that is given and not one of `known`; `why` says what the operator has instead."""
    for name in sorted(given.keys() - known):
        if given[name] not in (None, [], {}):
            fields.forbidden(f"{at}.{name}", f"not supported{why and ': '}{why}")


def _find_source(fields: Fields, at: str, policy: Json) -> str:
    given = [name for name in policy if name != "numNodes" and policy[name] is not None]
    if len(given) == 1 and given[0] in SOURCES:
        return given[0]
    found = f"not {' and '.join(given)}" if given else "none is given"
    fields.forbidden(at, f"must have one of {', '.join(SOURCES)}; {found}")
    return ""


def _read_jobs(fields: Fields, at: str, spec: Json) -> dict[str, NodeJob]:
    only(fields, at, spec, {"replicatedJobs", "network", "successPolicy"}, "there is no JobSet")
    operator = fields.mapping(f"{at}.successPolicy", spec.get("successPolicy")).get("operator")
    if operator not in (None, "All"):
        fields.invalid(f"{at}.successPolicy.operator", operator, "must be All: a job succeeds when all nodes have")
    found: dict[str, NodeJob] = {}
    for place, raw in enumerate(fields.sequence(f"{at}.replicatedJobs", spec.get("replicatedJobs"))):
        here = f"{at}.replicatedJobs[{place}]"
        entry = fields.mapping(here, raw)
        name = fields.text(f"{here}.name", entry.get("name"))
        if name not in (NODE, LAUNCHER):
            what = f"must be {NODE}, or {LAUNCHER} of mpi: initializers and other jobs are not run"
            fields.invalid(f"{here}.name", name, what)
        elif name in found:
            fields.duplicate(f"{here}.name", name, "give it once")
        else:
            found[name] = _read_job(fields, here, entry)
    return found


def _check_jobs(fields: Fields, at: str, source: str, jobs: Mapping[str, NodeJob]) -> None:
    """Whether there are the jobs of this framework, and one is that of `spec.trainer`."""
    wanted = {NODE, LAUNCHER} if source == "mpi" else {NODE}
    for name in sorted(wanted - jobs.keys()):
        fields.required(at, f"must have a job with the name {name}")
    for name in sorted(jobs.keys() - wanted):
        fields.forbidden(f"{at}[{name}]", "only mpi has such a job")
    if jobs and not any(job.trains for job in jobs.values()):
        fields.required(at, f"one must have the label {ANCESTOR}: {TRAINER} in template.metadata")
    for name, job in jobs.items():
        if source == "mpi" and job.first != NODE:
            fields.forbidden(f"{at}[{name}]", f"the container {NODE} must be the first: it gets the ssh key")


def _read_job(fields: Fields, at: str, entry: Json) -> NodeJob:
    only(fields, at, entry, {"name", "template", "replicas"}, "the jobs of a runtime start together")
    if fields.integer(f"{at}.replicas", entry.get("replicas")) not in (None, 1):
        fields.forbidden(f"{at}.replicas", "must be 1: mlPolicy.numNodes is the number of nodes")
    job = fields.mapping(f"{at}.template", entry.get("template"))
    labels = fields.mapping(f"{at}.template.metadata", job.get("metadata")).get("labels")
    at = f"{at}.template.spec"
    spec = fields.mapping(at, job.get("spec"))
    only(fields, at, spec, {"template", "backoffLimit"}, "there is no batch Job")
    limit = fields.integer(f"{at}.backoffLimit", spec.get("backoffLimit"), minimum=0)
    template = fields.mapping(f"{at}.template", spec.get("template"))
    return NodeJob(
        first=read_pod(fields, f"{at}.template", template),
        template=template,
        backoff_limit=JOB_BACKOFF_LIMIT if limit is None else limit,
        trains=fields.mapping(f"{at}.metadata.labels", labels).get(ANCESTOR) == TRAINER,
    )


def read_pod(fields: Fields, at: str, template: Json) -> object:
    """Checks what is changed of a pod template; the name of its first container."""
    metadata = fields.mapping(f"{at}.metadata", template.get("metadata"))
    for name in ("labels", "annotations"):
        fields.mapping(f"{at}.metadata.{name}", metadata.get(name))
    spec = fields.mapping(f"{at}.spec", template.get("spec"))
    at = f"{at}.spec.containers"
    found = [
        fields.mapping(f"{at}[{place}]", each) for place, each in enumerate(fields.sequence(at, spec.get("containers")))
    ]
    if not any(each.get("name") == NODE for each in found):
        fields.required(at, f"must have a container with the name {NODE}")
    for place, each in enumerate(found):
        for name in ("env", "volumeMounts"):
            entries: list[Any] = fields.sequence(f"{at}[{place}].{name}", each.get(name))
            for number, entry in enumerate(entries):
                fields.mapping(f"{at}[{place}].{name}[{number}]", entry)
    return found[0].get("name") if found else None
