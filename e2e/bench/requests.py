"""Counts the operator's API requests in the audit log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainop.runtime.objects.metadata import Json


class _Reference(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Status(msgspec.Struct):
    code: int = 200


class _Entry(msgspec.Struct, rename="camel"):
    verb: str
    stage: str
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: _Reference | None = None
    response_status: _Status | None = None


_decode = msgspec.json.Decoder(_Entry).decode


def count_requests(log: Path, marks: Sequence[int], jobs: int) -> list[Json]:
    """For each phase between two marks: requests per job, in total and by verb and resource, and rejected requests.

    Watches and discovery are not counted.
    """
    return [_count(log, start, end, jobs) for start, end in itertools.pairwise(marks)]


def _count(log: Path, start: int, end: int, jobs: int) -> Json:
    requests: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    with log.open("rb") as lines:
        lines.seek(start)
        for line in lines.read(end - start).splitlines():
            entry = _decode(line)
            reference = entry.object_ref
            if entry.verb == "watch" or reference is None or not reference.resource:
                continue
            what = f"{entry.verb} {reference.resource}" + (f"/{reference.subresource}" if reference.subresource else "")
            requests[what] += 1
            if entry.response_status and entry.response_status.code >= 400:
                refused[f"{entry.response_status.code} {what}"] += 1
    each = {what: round(count / jobs, 2) for what, count in requests.most_common()}
    return {"per_job": round(requests.total() / jobs, 2), "requests": each, "refused": dict(refused)}
