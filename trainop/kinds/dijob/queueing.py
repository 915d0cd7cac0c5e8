"""The queueing of DIJobs: a pod set for the coordinator, and one for each role of which the job declares replicas.

di-server creates their pods, and knows no Workload: the annotation `di-admission` of the coordinator's pod carries to
it what the queue has admitted (`trainop.diserver.admission`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from trainop.engine.fields import as_object
from trainop.engine.framework import selector
from trainop.engine.progress import access_of
from trainop.engine.queueing.placement import Placement
from trainop.engine.queueing.pod_sets import PodSet
from trainop.engine.queueing.queue import Queueing
from trainop.engine.seen import Snapshot
from trainop.kinds.dijob.job import DiJob, parse_dijob, pod_options
from trainop.kinds.dijob.names import ADMISSION, DIJOBS, SUFFIX_CHARACTERS, SUFFIX_LENGTH, Role
from trainop.kinds.dijob.plan import encode_coordinator
from trainop.kinds.dijob.pods import build_pod, template_of
from trainop.kinds.dijob.world import WORDS
from trainop.runtime import Json

_SUFFIX = SUFFIX_CHARACTERS[0] * SUFFIX_LENGTH


def dijob_queueing() -> Queueing:
    """How DIJobs are queued."""
    return Queueing(words=WORDS, pod_sets=_pod_sets, place=place, leaves=_never, done=_none_done, suspends=False)


def _never(_seen: Snapshot) -> bool:
    return False


def _none_done(_seen: Snapshot) -> Mapping[str, int]:
    """The coordinator may ask for others in the place of those that have ended."""
    return {}


def _pod_sets(seen: Snapshot) -> Sequence[PodSet]:
    job = parse_dijob(seen.job)
    return () if job.errors else list(_each_pod_set(job, seen))


def _each_pod_set(job: DiJob, seen: Snapshot) -> Iterator[PodSet]:
    for role, count in {Role.COORDINATOR: 1, **job.declared}.items():
        template = template_of(seen.job.raw, role) or {}
        yield PodSet(role.value, count, template, partial(_make, job, role, template, seen))


def _make(job: DiJob, role: Role, template: Json, seen: Snapshot) -> Json:
    options = pod_options(seen.options)
    if role is Role.COORDINATOR:
        progress = access_of(job.metadata, DIJOBS, seen.options.progress)
        pod: Json = msgspec.json.decode(encode_coordinator(job, template, options, progress))
    else:
        pod = build_pod(job.facts, role, template, options, suffix=_SUFFIX)
    pod["metadata"]["labels"] |= selector(WORDS, job.name)  # by which the Workload is known as the operator's
    return pod


def place(spec: Json, placements: Mapping[str, Placement]) -> Json:
    """The spec as the admission says. Raises `PlacementError`, also about the pods that di-server creates."""
    placed = dict(spec)
    for name, placement in placements.items():
        section = as_object(spec.get(name))
        template = placement.add_to(as_object(section.get("template")))
        if name == Role.COORDINATOR.value:
            others = {other: each for other, each in placements.items() if other != name}
            template["metadata"]["annotations"][ADMISSION] = msgspec.json.encode(others).decode()
        placed[name] = {**section, "template": template}
    return placed
