"""Validates manifests before the cluster is started: finds the jobs and their errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from trainop.engine.admission import judge
from trainop.engine.framework import Framework
from trainop.engine.schema.crd import crd
from trainop.local.api.schema.crd_schema import Schema
from trainop.operator import FRAMEWORKS
from trainop.run.documents import BadInputError, Document
from trainop.runtime.objects.metadata import Json, Unstructured

Job = tuple[Document, Framework]


def find_jobs(documents: Sequence[Document]) -> list[Job]:
    """The jobs among the objects. Raises `BadInputError` for every error that can be detected without a cluster."""
    jobs = [(document, framework) for document in documents if (framework := _framework(document))]
    if not jobs:
        known = ", ".join(sorted(f.kind for f in FRAMEWORKS.values()))
        kinds = ", ".join(sorted({f"{d.kind} ({d.api_version})" for d in documents}))
        raise BadInputError(f"{documents[0].where}: no job found, only {kinds}; supported kinds of jobs: {known}")
    _reject_duplicates(documents)
    if errors := [
        f"{document.where}: {document.kind} {document.key.name}: {error}" for document, error in _errors(jobs)
    ]:
        raise BadInputError("\n".join(errors))
    return jobs


def _framework(document: Document) -> Framework | None:
    framework = FRAMEWORKS.get(document.kind)
    return framework if framework and framework.resource.api_version == document.api_version else None


def _reject_duplicates(documents: Sequence[Document]) -> None:
    seen: dict[tuple[str, object], str] = {}
    for document in documents:
        first = seen.setdefault((document.kind, document.key), document.where)
        if first != document.where:
            raise BadInputError(f"{document.where}: {document.kind} {document.key.name} is already defined at {first}")


def _errors(jobs: Sequence[Job]) -> Iterator[tuple[Document, str]]:
    for document, framework in jobs:
        for error in (*_unknown_fields(framework, document.raw), *judge(framework, Unstructured(document.raw)).errors):
            yield document, str(error)


def _unknown_fields(framework: Framework, raw: Json) -> Iterator[str]:
    """Fields that the API server would prune silently, each with the most similar known field."""
    schema = crd(framework)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path in Schema(schema).prune(raw)[1]:
        suggestion = get_close_matches(path.rpartition(".")[2], _names(schema), n=1)
        yield f"{path}: unknown field" + (f"; did you mean {suggestion[0]}?" if suggestion else "")


def _names(schema: Json) -> set[str]:
    """The names of all fields at any level of the schema."""
    names = set(schema.get("properties", ()))
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return names.union(*(_names(place) for place in inner if isinstance(place, dict)))
