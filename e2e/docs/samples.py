"""Sample jobs for the generated pages (the examples, and minimal jobs), and Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainop.engine.framework import Framework
from trainop.engine.job import Job
from trainop.engine.parse import parse
from trainop.runtime.objects.metadata import Json, Unstructured

ROOT = Path(__file__).parent.parent.parent


def example(framework: Framework) -> tuple[Path, Json]:
    """The path of the kind's `train.yaml`, and the job in it."""
    file = ROOT / "examples" / framework.name / "train.yaml"
    documents = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    job = next(document for document in documents if document["kind"] == framework.kind)
    raw: Json = json.loads(json.dumps(job))  # copies values that YAML aliases share
    raw["metadata"].update(namespace="default", uid="uid")
    return file, raw


def plain_job(framework: Framework, types: Iterable[str], **spec: Any) -> Job:
    """A minimal job with three replicas of each of these types, or fewer if the type's limit is lower."""
    counts = {type_: framework.roles[type_].maximum or 3 for type_ in types}
    return parse(framework, Unstructured(plain(framework, counts, **spec)))


def plain(framework: Framework, counts: Mapping[str, int], **spec: Any) -> Json:
    template = {"spec": {"containers": [{"name": framework.container, "image": "image"}]}}
    roles = {type_: {"replicas": count, "template": template} for type_, count in counts.items()}
    return {
        "metadata": {"name": "j", "namespace": "default", "uid": "uid"},
        "spec": {framework.replica_specs: roles, **spec},
    }


def table(rows: Iterable[Iterable[str]], *headings: str) -> str:
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    if not lines:
        return "None.\n"
    titles = headings or [""] * len(lines[0])
    return "".join(f"| {' | '.join(line)} |\n" for line in [list(titles), ["---"] * len(titles), *lines])
