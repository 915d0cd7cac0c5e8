"""Fields that the API server does not know, such as `envs`, and drops from the pods that di-server creates. Clients do
not show its warnings, so an event of the job does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trainop.diserver.records import JobKey
from trainop.engine.template_condition import UNKNOWN_FIELDS, describe_dropped_fields, find_dropped_fields
from trainop.kinds.dijob.names import DIJOBS, REPLICA_TYPE, Role
from trainop.runtime import Json, ObjectReference, Recorder

Tell: TypeAlias = Callable[[JobKey, str], None]
"""Records a Warning about a job."""


def teller(recorder: Recorder) -> Tell:
    """Events with the reason that the operator gives for its own pods. Repeats increase the count of an event."""

    def tell(job: JobKey, message: str) -> None:
        about = ObjectReference(DIJOBS.api_version, DIJOBS.kind, job.namespace, job.name, job.uid)
        recorder.event(about, "Warning", UNKNOWN_FIELDS, message)

    return tell


class DroppedFields:
    """What the API server has said about the pods of one request, by template."""

    def __init__(self, config: str) -> None:
        """`config` names the AggregatorConfig."""
        self._config = config
        self._warnings: dict[str, dict[str, None]] = {}

    def note(self, pod: Json, warning: str) -> None:
        """Takes a warning about a pod that is created."""
        role = Role(pod["metadata"]["labels"][REPLICA_TYPE])
        section = Role.LEARNER if role is Role.DDP_LEARNER else role
        template = f"spec.{section.value}.template"
        if role is Role.AGGREGATOR:
            template = f"AggregatorConfig {self._config}: {template}"
        self._warnings.setdefault(template, {})[warning] = None

    @property
    def message(self) -> str:
        """Each field, with what was probably meant; empty if none was dropped."""
        found = {template: find_dropped_fields(warnings) for template, warnings in self._warnings.items()}
        return describe_dropped_fields(found) if any(found.values()) else ""
