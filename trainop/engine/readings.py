"""How a job that has begun goes on with a field that is wrong: the best reading of each.

A job that has never begun fails for any such error. One that has begun is stopped only by what makes its roles
unreadable; every other error is one Warning, and the field is taken as this table says. Jobs taken over from
training-operator, whose CRDs have plain strings, come with such fields, and so do jobs that were edited.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from trainop.engine.job import MAX_REPLICAS, Job, Role
from trainop.runtime.objects.field_error import DUPLICATE, FORBIDDEN, INVALID, NOT_SUPPORTED, REQUIRED, FieldError


class Effect(enum.Enum):
    NONE = "nothing is held up"
    ROLE = "pods of the role are not made anew"
    JOB = "no pod is made, restarted or removed"


class Reading(NamedTuple):
    """`path` has `REPLICAS` for the field of the replica map, and no keys or indices."""

    path: str
    types: tuple[str, ...]
    """Of errors; empty is all of them."""
    effect: Effect
    taken_as: str


REPLICAS = "*ReplicaSpecs"
_ROLE = f"spec.{REPLICAS}[]"

READINGS = (
    Reading("spec", (), Effect.JOB, "unreadable: running pods go on, and their end counts as far as it can be read"),
    Reading(f"spec.{REPLICAS}", (INVALID, REQUIRED), Effect.JOB, "unreadable, as above"),
    Reading(f"spec.{REPLICAS}", (FORBIDDEN,), Effect.NONE, "as given, but unreadable with more than 100,000 replicas"),
    Reading(_ROLE, (INVALID, REQUIRED), Effect.JOB, "unreadable, as above; a role that the kind needs is missing"),
    Reading(_ROLE, (NOT_SUPPORTED,), Effect.NONE, "not there; pods of a role that is missing beside it are kept"),
    Reading(_ROLE, (DUPLICATE,), Effect.NONE, "the first spelling"),
    Reading(f"{_ROLE}.replicas", (INVALID,), Effect.JOB, "unreadable, as above"),
    Reading(f"{_ROLE}.replicas", (FORBIDDEN,), Effect.NONE, "the nearest number that the kind allows"),
    Reading(f"{_ROLE}.restartPolicy", (), Effect.NONE, "the same word in right case, else the kind's default"),
    Reading(f"{_ROLE}.template.spec.containers[].image", (), Effect.NONE, "as given: the API server judges it"),
    Reading(f"{_ROLE}.template", (), Effect.ROLE, "the same for all other fields below: pods that run go on"),
    Reading("spec.runPolicy", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.cleanPodPolicy", (), Effect.NONE, "the same word in right case, else None"),
    Reading("spec.runPolicy.ttlSecondsAfterFinished", (), Effect.NONE, "not given, so the job stays"),
    Reading("spec.runPolicy.activeDeadlineSeconds", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.backoffLimit", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.suspend", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.managedBy", (), Effect.NONE, "not given, unless it is another manager's name"),
    Reading("metadata.name", (), Effect.NONE, "as given: children whose names the API server refuses are missing"),
    Reading("metadata.annotations[]", (), Effect.NONE, "the same word in right case, else not given"),
    Reading("spec.successPolicy", (), Effect.NONE, "the same word in right case, else not given"),
    Reading("spec.enableDynamicWorker", (), Effect.NONE, "not given"),
    Reading("spec.nprocPerNode", (), Effect.NONE, "auto"),
    Reading("spec.elasticPolicy", (), Effect.NONE, "each wrong field below as not given"),
    Reading("spec.jobMode", (), Effect.NONE, "not given"),
)
"""The longest path that an error's begins with decides; `spec` is only itself."""

OTHER = Reading("spec.…", (), Effect.NONE, "any other field that only one kind has: as that kind reads it")


def find_reading(replica_specs: str, error: FieldError) -> Reading:
    """The row of the table for an error of a kind whose replica map is `replica_specs`."""
    path = re.sub(r"\[[^\]]*\]", "[]", error.path.replace(replica_specs, REPLICAS, 1))
    rows = [row for row in READINGS if _covers(row.path, path) and (not row.types or error.type in row.types)]
    return max(rows, key=lambda row: len(row.path), default=OTHER)


def _covers(row: str, path: str) -> bool:
    return path == row or (row != "spec" and path.startswith((f"{row}.", f"{row}[")))


def apply_readings(replica_specs: str, job: Job, errors: Sequence[FieldError], more: int) -> Job:
    """The job with its errors, and what they hold up. `more` errors, of roles that the kind does not have, hold up
    nothing."""
    effects = [(error, find_reading(replica_specs, error).effect) for error in errors]
    broken = {
        error.path.partition("[")[2].partition("]")[0].lower() for error, effect in effects if effect is Effect.ROLE
    }
    roles = tuple(_drop_template(role) if role.label in broken else role for role in job.roles)
    readable = job.replicas <= MAX_REPLICAS and all(effect is not Effect.JOB for _, effect in effects)
    return replace(job, roles=roles, errors=tuple(errors), more_errors=more, readable=readable)


def _drop_template(role: Role) -> Role:
    """Nothing reads the template any more, which may have any shape."""
    return replace(role, template={}, has_valid_template=False)
