"""What can be told of files before anything is started: which of the objects are jobs, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from trainop.engine.framework import Framework
from trainop.engine.parse import parse
from trainop.engine.schema.crd import crd
from trainop.local.api.schema.crd_schema import Schema
from trainop.operator import FRAMEWORKS
from trainop.run.documents import BadInputError, Document
from trainop.runtime.objects.metadata import Json, Unstructured

Job = tuple[Document, Framework]


def jobs_among(documents: Sequence[Document]) -> list[Job]:
    """The jobs among the objects; raises `BadInputError` for what needs no cluster to be known as wrong."""
    jobs = [(document, framework) for document in documents if (framework := _framework(document))]
    if not jobs:
        known = ", ".join(sorted(f.kind for f in FRAMEWORKS.values()))
        kinds = ", ".join(sorted({f"{d.kind} ({d.api_version})" for d in documents}))
        raise BadInputError(f"{documents[0].where}: no job in there, only {kinds}; jobs are of kind {known}")
    _refuse_twins(documents)
    if errors := [
        f"{document.where}: {document.kind} {document.key.name}: {error}" for document, error in _errors(jobs)
    ]:
        raise BadInputError("\n".join(errors))
    return jobs


def _framework(document: Document) -> Framework | None:
    framework = FRAMEWORKS.get(document.kind)
    return framework if framework and framework.resource.api_version == document.api_version else None


def _refuse_twins(documents: Sequence[Document]) -> None:
    seen: dict[tuple[str, object], str] = {}
    for document in documents:
        first = seen.setdefault((document.kind, document.key), document.where)
        if first != document.where:
            raise BadInputError(f"{document.where}: {document.kind} {document.key.name} stands already at {first}")


def _errors(jobs: Sequence[Job]) -> Iterator[tuple[Document, str]]:
    for document, framework in jobs:
        for error in (*_unknown_fields(framework, document.raw), *parse(framework, Unstructured(document.raw)).errors):
            yield document, str(error)


def _unknown_fields(framework: Framework, raw: Json) -> Iterator[str]:
    """What the API server would drop without a word, and what may have been meant."""
    schema = crd(framework)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path in Schema(schema).prune(raw)[1]:
        meant = get_close_matches(path.rpartition(".")[2], _names(schema), n=1)
        yield f"{path}: unknown field" + (f"; did you mean {meant[0]}?" if meant else "")


def _names(schema: Json) -> set[str]:
    """The fields that the schema has anywhere."""
    names = set(schema.get("properties", ()))
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return names.union(*(_names(place) for place in inner if isinstance(place, dict)))
