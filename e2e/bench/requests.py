"""Counts in the audit log: the operator's API requests, and what the cluster's controllers write because of them."""

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


class _User(msgspec.Struct):
    username: str


class _Entry(msgspec.Struct, rename="camel"):
    verb: str
    stage: str
    user: _User
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: _Reference | None = None
    response_status: _Status | None = None


_decode = msgspec.json.Decoder(_Entry).decode


def count_requests(log: Path, marks: Sequence[int], jobs: int, account: str) -> list[Json]:
    """For each phase between two marks: requests of the operator's `account` per job, in total and by verb and
    resource, and its rejected requests; `cluster`: the other requests in the log per job, which are those of the
    cluster's controllers.

    Watches and discovery are not counted.
    """
    return [_count(log, start, end, jobs, account) for start, end in itertools.pairwise(marks)]


def _count(log: Path, start: int, end: int, jobs: int, account: str) -> Json:
    requests: Counter[str] = Counter()
    cluster: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    with log.open("rb") as lines:
        lines.seek(start)
        for line in lines.read(end - start).splitlines():
            entry = _decode(line)
            reference = entry.object_ref
            if entry.verb == "watch" or reference is None or not reference.resource:
                continue
            what = f"{entry.verb} {reference.resource}" + (f"/{reference.subresource}" if reference.subresource else "")
            if entry.user.username != account:
                cluster[what] += 1
                continue
            requests[what] += 1
            if entry.response_status and entry.response_status.code >= 400:
                refused[f"{entry.response_status.code} {what}"] += 1
    return {
        "per_job": round(requests.total() / jobs, 2),
        "requests": _per_job(requests, jobs),
        "refused": dict(refused),
        "cluster": _per_job(cluster, jobs),
    }


def _per_job(counts: Counter[str], jobs: int) -> dict[str, float]:
    return {what: round(count / jobs, 2) for what, count in counts.most_common()}
