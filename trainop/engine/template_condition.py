"""The condition `TemplateValid`: False if the API server dropped fields from the pods of a job, such as `resource`.

The API server knows the fields of its own version, so that only its word counts. It is heard when a pod is created, by
one process; the condition keeps it for the rest of the job. A template from which a later pod is made without a warning
leaves the condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from trainop.engine.actions import Event, Plan
from trainop.engine.fields import conditions_of
from trainop.engine.seen import Snapshot
from trainop.engine.status import TEMPLATE_VALID, Status
from trainop.engine.unknown_fields import describe_dropped_field
from trainop.runtime import Json, Unstructured
from trainop.runtime.lowlevel import LONGEST_TEXT, join_some

UNKNOWN_FIELDS = "UnknownFields"
"""The reason of the condition and of its event."""

_START = "Pods run without fields that the API server does not know: "
_SEPARATOR = "; "
_WARNING = re.compile(r'unknown field "(?:spec\.template\.(?=spec\.|metadata\.))?([^"]+)"')
"""A warning about a pod, or about a batch Job with its template (apimachinery `runtime/serializer/json`)."""

_ROOM = LONGEST_TEXT - len(_START) - 64
"""Bytes of the fields in a message."""

MAX_DROPPED = 20
"""Fields of one template that are remembered."""


def find_dropped_fields(warnings: Iterable[str]) -> tuple[str, ...]:
    """The fields that the API server dropped, as paths in the pod, such as `spec.containers[0].resource`."""
    found = (_WARNING.fullmatch(warning) for warning in warnings)
    return tuple(dict.fromkeys(match[1] for match in found if match))[:MAX_DROPPED]


def has_template_condition(job: Unstructured) -> bool:
    """Whether the stored status has the condition."""
    return any(each.get("type") == TEMPLATE_VALID for each in conditions_of(job))


def report_dropped_fields(seen: Snapshot, plan: Plan) -> Plan:
    """The plan with the condition and, if that changes, its event. Without news the stored condition stays."""
    if not seen.dropped_fields or seen.job.metadata.terminating:
        return plan
    status = Status(plan.status or seen.job.raw.get("status"), seen.now)
    old = status.find(TEMPLATE_VALID) or {}
    fields = sorted({*_kept(old, seen.dropped_fields), *_described(seen.dropped_fields)})
    if not fields:
        status.remove(TEMPLATE_VALID)
        return replace(plan, status=status.changed() or plan.status)
    text = _say(fields)
    status.set_first(TEMPLATE_VALID, "False", UNKNOWN_FIELDS, text)
    new = status.changed()
    if new is None:
        return plan
    return replace(plan, status=new, transitions=(*plan.transitions, Event("Warning", UNKNOWN_FIELDS, text)))


def describe_dropped_fields(dropped: Mapping[str, Sequence[str]]) -> str:
    """The message about fields that were dropped, by the field path of their template (`Snapshot.dropped_fields`)."""
    return _say(sorted(set(_described(dropped))))


def _say(fields: Sequence[str]) -> str:
    return _START + join_some(fields, len(fields), limit=_ROOM, separator=_SEPARATOR)


def _described(dropped: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for template, paths in dropped.items():
        yield from (describe_dropped_field(template, path) for path in paths)


def _kept(condition: Json, dropped: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What the stored condition says about templates of which nothing new is known: another process made their
    pods."""
    text = condition.get("message")
    if isinstance(text, str) and text.startswith(_START):
        for field in text.removeprefix(_START).split(_SEPARATOR):
            if field and not any(field.startswith(f"{template}.") for template in dropped):
                yield field
