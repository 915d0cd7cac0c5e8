"""Validates manifests before the cluster is started: finds the jobs and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from trainop.engine.admission import Judgement
from trainop.engine.children import ChildSelection
from trainop.engine.seen import Options
from trainop.local.api.schema.crd_schema import Schema
from trainop.operator import KINDS, crds
from trainop.run.documents import BadInputError, Document
from trainop.runtime.objects.field_error import FieldError
from trainop.runtime.objects.metadata import Change, Json, Unstructured, apply_change
from trainop.runtime.objects.resource import Resource


@dataclass(frozen=True, slots=True)
class JobType:
    """A kind of job in one version of its API."""

    resource: Resource
    definition: Json
    """The CRD."""
    judge: Callable[[Unstructured, Unstructured | None], Judgement]
    default: Change | None
    children: ChildSelection

    def find_errors(self, raw: Json) -> tuple[FieldError, ...]:
        """Those of the job after the defaults that a mutating webhook would set."""
        job = raw if self.default is None else apply_change(raw, self.default)
        return self.judge(Unstructured(job), None).errors


Job = tuple[Document, JobType]


def _job_types() -> Iterator[JobType]:
    definitions = {definition["spec"]["names"]["kind"]: definition for definition in crds()}
    for kinds in KINDS.values():
        for kind in kinds(Options()):
            definition = definitions[kind.resource.kind]
            yield JobType(kind.resource, definition, kind.judge, kind.default, kind.children)


JOB_TYPES: dict[tuple[str, str], JobType] = {
    (each.resource.kind, each.resource.api_version): each for each in _job_types()
}
"""By kind and `apiVersion`."""


def find_jobs(documents: Sequence[Document]) -> list[Job]:
    """The jobs among the objects. Raises `BadInputError` for every error that can be detected without a cluster."""
    types = [(document, JOB_TYPES.get((document.kind, document.api_version))) for document in documents]
    jobs = [(document, found) for document, found in types if found]
    if not jobs:
        known = ", ".join(sorted({kind for kind, _ in JOB_TYPES}))
        kinds = ", ".join(sorted({f"{d.kind} ({d.api_version})" for d in documents}))
        raise BadInputError(f"{documents[0].where}: no job found, only {kinds}; supported kinds of jobs: {known}")
    _reject_duplicates(documents)
    if errors := [
        f"{document.where}: {document.kind} {document.key.name}: {error}" for document, error in _errors(jobs)
    ]:
        raise BadInputError("\n".join(errors))
    return jobs


def _reject_duplicates(documents: Sequence[Document]) -> None:
    seen: dict[tuple[str, object], str] = {}
    for document in documents:
        first = seen.setdefault((document.kind, document.key), document.where)
        if first != document.where:
            raise BadInputError(f"{document.where}: {document.kind} {document.key.name} is already defined at {first}")


def _errors(jobs: Sequence[Job]) -> Iterator[tuple[Document, str]]:
    for document, found in jobs:
        for error in (*_unknown_fields(found, document.raw), *found.find_errors(document.raw)):
            yield document, str(error)


def _unknown_fields(found: JobType, raw: Json) -> Iterator[str]:
    """Fields that the API server would prune silently, each with the most similar known field."""
    versions = {version["name"]: version for version in found.definition["spec"]["versions"]}
    schema = versions[found.resource.version]["schema"]["openAPIV3Schema"]
    for path in Schema(schema).prune(raw)[1]:
        suggestion = get_close_matches(path.rpartition(".")[2], _names(schema), n=1)
        yield f"{path}: unknown field" + (f"; did you mean {suggestion[0]}?" if suggestion else "")


def _names(schema: Json) -> set[str]:
    """The names of all fields at any level of the schema."""
    names = set(schema.get("properties", ()))
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return names.union(*(_names(place) for place in inner if isinstance(place, dict)))
