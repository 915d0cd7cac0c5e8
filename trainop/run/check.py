"""Validates manifests before the cluster is started: finds the jobs and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trainop.engine.admission import Judgement
from trainop.engine.children import ChildSelection
from trainop.engine.seen import Options
from trainop.engine.unknown_fields import describe_unknown_fields, similar, unknown_field
from trainop.local.api.registry import core_types
from trainop.local.api.schema.crd_schema import Schema
from trainop.programs.schemes import KINDS, crds
from trainop.run.documents import BadInputError, Document
from trainop.run.readable import describe_field, describe_message
from trainop.runtime import Change, Json, Resource, Unstructured
from trainop.runtime.lowlevel import FieldError, apply_change


@dataclass(frozen=True, slots=True)
class JobType:
    """A kind of job in one version of its API."""

    resource: Resource
    judge: Callable[[Unstructured, Unstructured | None], Judgement]
    default: Change | None
    children: ChildSelection

    def find_errors(self, raw: Json) -> tuple[FieldError, ...]:
        """Those of the job after the defaults that a mutating webhook would set."""
        job = raw if self.default is None else apply_change(raw, self.default)
        return self.judge(Unstructured(job), None).errors


Job = tuple[Document, JobType]

_OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def _job_types() -> Iterator[JobType]:
    for kinds in KINDS.values():
        for kind in kinds(Options()):
            yield JobType(kind.resource, kind.judge, kind.default, kind.children)


def _schemas() -> Iterator[tuple[tuple[str, str], Json]]:
    for definition in crds():
        spec = definition["spec"]
        for version in spec["versions"]:
            key = spec["names"]["kind"], f"{spec['group']}/{version['name']}"
            yield key, version["schema"]["openAPIV3Schema"]


JOB_TYPES: dict[tuple[str, str], JobType] = {
    (each.resource.kind, each.resource.api_version): each for each in _job_types()
}
"""By kind and `apiVersion`."""

SCHEMAS: dict[tuple[str, str], Json] = dict(_schemas())
"""The same, for each kind that has a CRD, also those that are no jobs."""


def find_jobs(documents: Sequence[Document]) -> list[Job]:
    """The jobs among the objects. Raises `BadInputError` for every error that can be detected without a cluster."""
    types = [(document, JOB_TYPES.get((document.kind, document.api_version))) for document in documents]
    jobs = [(document, found) for document, found in types if found]
    if not jobs:
        known = ", ".join(sorted({kind for kind, _ in JOB_TYPES}))
        kinds = ", ".join(sorted({f"{d.kind} ({d.api_version})" for d in documents}))
        raise BadInputError(f"{documents[0].where}: no job found, only {kinds}; supported kinds of jobs: {known}")
    _reject_duplicates(documents)
    if errors := [document.complain(error) for document, error in _errors(documents)]:
        raise BadInputError("\n".join(errors))
    return jobs


def _reject_duplicates(documents: Sequence[Document]) -> None:
    seen: dict[tuple[str, object], Document] = {}
    for document in documents:
        first = seen.setdefault((document.kind, document.key), document)
        if first is not document:
            text = f"{document.kind} {document.key.name} is already defined at {first.where}"
            raise BadInputError(document.complain(text))


def _errors(documents: Sequence[Document]) -> Iterator[tuple[Document, str]]:
    for document in documents:
        if (document.kind, document.api_version) in SCHEMAS:
            yield from ((document, error) for error in dict.fromkeys(_errors_of(document)))


def _errors_of(document: Document) -> Iterator[str]:
    """The errors of a job, or of another object that has a CRD: those of its fields as the operator words them, then
    those that only the API server would find."""
    raw, key = document.raw, (document.kind, document.api_version)
    try:
        core_types.decode(_OBJECT_META, raw["metadata"])
    except core_types.MistypedError as error:
        yield f"metadata.{describe_message(str(error))}"
        return
    schema = Schema(SCHEMAS[key])
    yield from _unknown_fields(schema, SCHEMAS[key], raw)
    judged = JOB_TYPES[key].find_errors(raw) if key in JOB_TYPES else ()
    yield from map(str, judged)
    known = {_dotted(error.path) for error in judged}
    for found in schema.validate(schema.default(schema.prune(raw)[0])):
        if _dotted(found.path) not in known and (line := describe_field(found.path, found.message)):
            yield line


def _dotted(path: str) -> str:
    """The path with the roles as fields, `x.Worker` for `x[Worker]`."""
    return re.sub(r"\[(\D[^\]]*)\]", r".\1", path)


def _unknown_fields(compiled: Schema, schema: Json, raw: Json) -> Iterator[str]:
    """Fields that the API server would drop, of the object or of its pods, each with the field that was probably
    meant."""
    for path in compiled.prune(raw)[1]:
        yield unknown_field(path, similar(path.rpartition(".")[2], _names(schema)))
    yield from describe_unknown_fields(raw)


def _names(schema: Json) -> set[str]:
    """The names of all fields at any level of the schema."""
    names = set(schema.get("properties", ()))
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return names.union(*(_names(place) for place in inner if isinstance(place, dict)))
