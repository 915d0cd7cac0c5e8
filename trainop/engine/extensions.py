"""What trainop adds to the API: annotations of the job, the same for every kind, all of them off unless given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainop.engine.fields import Fields, find_word

ANNOTATION_PREFIX = "trainop.kubeflow.org/"
"""Annotations and not fields: typed clients drop spec fields that they do not know."""

RESTART_SCOPE = ANNOTATION_PREFIX + "restart-scope"
"""What is restarted when a pod is: that `pod`, all pods of its `role`, or all pods of the `job`."""
SERVICE_MODE = ANNOTATION_PREFIX + "service-mode"
"""Which replicas get a service: each `replica`, or only the `leader` where rendezvous needs no others. Goes over the
operator's `--service-mode`."""
INFRA_RESTART_LIMIT = ANNOTATION_PREFIX + "infra-restart-limit"
"""How many restarts through no fault of the user's code (eviction, preemption, node loss) before the job fails."""

SCOPES = ("pod", "role", "job")
MODES = ("replica", "leader")
MAX_RESTART_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Extensions:
    """The annotations as read; a wrong value counts as not given, unless only its case is wrong."""

    restart_scope: str = "pod"
    service_mode: str | None = None
    infra_restart_limit: int | None = None


def read_extensions(fields: Fields, annotations: Mapping[str, str]) -> Extensions:
    """What is wrong with them is noted in `fields`."""
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
