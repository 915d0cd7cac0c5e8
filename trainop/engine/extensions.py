"""Extensions of the API: annotations of the job, the same for every kind and all optional (`docs/annotations.md`).

`parse` reads and validates them. Annotations are used because typed clients drop spec fields that they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainop.engine.fields import Fields, find_word

ANNOTATION_PREFIX = "trainop.kubeflow.org/"

RESTART_SCOPE = ANNOTATION_PREFIX + "restart-scope"
"""Scope of a restart: the failed `pod`, all pods of its `role`, or all pods of the `job`."""
SERVICE_MODE = ANNOTATION_PREFIX + "service-mode"
"""The services by which replicas find each other: one for every `replica`, only those of the `leader`s that other
replicas connect to, or one for the whole `job`. Overrides the operator's `--service-mode`."""
INFRA_RESTART_LIMIT = ANNOTATION_PREFIX + "infra-restart-limit"
"""Limit of restarts after disruptions (eviction, preemption, node loss); beyond it the job fails."""

SCOPES = ("pod", "role", "job")
MODES = ("replica", "leader", "job")
MAX_RESTART_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Extensions:
    """The parsed annotations. An invalid value counts as not given; a value in wrong case is accepted with an error."""

    restart_scope: str = "pod"
    service_mode: str | None = None
    infra_restart_limit: int | None = None


def read_extensions(fields: Fields, annotations: Mapping[str, str]) -> Extensions:
    """Parses the annotations; errors are added to `fields`."""
    return Extensions(
        restart_scope=_read_choice(fields, annotations, RESTART_SCOPE, SCOPES) or "pod",
        service_mode=_read_choice(fields, annotations, SERVICE_MODE, MODES),
        infra_restart_limit=_read_limit(fields, annotations, INFRA_RESTART_LIMIT),
    )


def _read_choice(fields: Fields, annotations: Mapping[str, str], name: str, supported: tuple[str, ...]) -> str | None:
    value = annotations.get(name)
    if value is None or value in supported:
        return value
    fields.unsupported(_path(name), value, supported)
    return find_word(value, supported)


def _read_limit(fields: Fields, annotations: Mapping[str, str], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    if re.fullmatch("[0-9]{1,10}", value) and int(value) <= MAX_RESTART_LIMIT:
        return int(value)
    fields.invalid(_path(name), value, f"must be a whole number from 0 to {MAX_RESTART_LIMIT}")
    return None


def _path(name: str) -> str:
    return f"metadata.annotations[{name}]"
