"""Fallback values: how a job that has begun continues with an invalid field (`docs/validation.md`).

A job that has never begun fails for any validation error. A job that has begun is held up only if its roles are
unreadable; any other error becomes one Warning, and the field has the value that this table defines. Jobs that were
edited have such fields, and so do jobs taken over from training-operator, whose CRDs do not validate strings.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from trainop.engine.job import MAX_REPLICAS, Job, Role
from trainop.runtime.lowlevel import DUPLICATE, FORBIDDEN, INVALID, NOT_SUPPORTED, REQUIRED, FieldError


class Effect(enum.Enum):
    """What an error holds up in a job that has begun."""

    NONE = "nothing is held up"
    ROLE = "no new pods of the role are created"
    JOB = "no pod is created, restarted or removed"


class Reading(NamedTuple):
    """One row of the table. `path` contains `REPLICAS` for the replica map, and `[]` for keys and indices."""

    path: str
    types: tuple[str, ...]
    """Error types that the row is for; empty: all."""
    effect: Effect
    taken_as: str
    """The fallback value, for the documentation."""


REPLICAS = "*ReplicaSpecs"
_ROLE = f"spec.{REPLICAS}[]"

READINGS = (
    Reading("spec", (), Effect.JOB, "unreadable: running pods continue, and their readable results count"),
    Reading(f"spec.{REPLICAS}", (INVALID, REQUIRED), Effect.JOB, "unreadable, as above"),
    Reading(f"spec.{REPLICAS}", (FORBIDDEN,), Effect.NONE, "as given, but unreadable with more than 100,000 replicas"),
    Reading(_ROLE, (INVALID, REQUIRED), Effect.JOB, "unreadable, as above; also if a required role is missing"),
    Reading(_ROLE, (NOT_SUPPORTED,), Effect.NONE, "ignored; pods of roles that the spec lacks are kept"),
    Reading(_ROLE, (DUPLICATE,), Effect.NONE, "the first spelling"),
    Reading(f"{_ROLE}.replicas", (INVALID,), Effect.JOB, "unreadable, as above"),
    Reading(f"{_ROLE}.replicas", (FORBIDDEN,), Effect.NONE, "the nearest valid number"),
    Reading(f"{_ROLE}.restartPolicy", (), Effect.NONE, "the value regardless of case, else the kind's default"),
    Reading(f"{_ROLE}.template.spec.containers[].image", (), Effect.NONE, "as given: the API server validates it"),
    Reading(f"{_ROLE}.template", (), Effect.ROLE, "unreadable, like all other fields below: running pods continue"),
    Reading("spec.runPolicy", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.cleanPodPolicy", (), Effect.NONE, "the value regardless of case, else None"),
    Reading("spec.runPolicy.ttlSecondsAfterFinished", (), Effect.NONE, "not given, so the job is kept"),
    Reading("spec.runPolicy.activeDeadlineSeconds", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.backoffLimit", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.suspend", (), Effect.NONE, "not given"),
    Reading("spec.runPolicy.managedBy", (), Effect.NONE, "not given, unless it is another manager's name"),
    Reading("metadata.name", (), Effect.NONE, "as given: children whose names the API server refuses are not created"),
    Reading("metadata.annotations[]", (), Effect.NONE, "the value regardless of case, else not given"),
    Reading("spec.successPolicy", (), Effect.NONE, "the value regardless of case, else not given"),
    Reading("spec.enableDynamicWorker", (), Effect.NONE, "not given"),
    Reading("spec.nprocPerNode", (), Effect.NONE, "auto"),
    Reading("spec.elasticPolicy", (), Effect.NONE, "each invalid field below as not given"),
    Reading("spec.jobMode", (), Effect.NONE, "not given"),
)
"""The row with the longest path that is a prefix of the error's path applies. The row `spec` matches only `spec`."""

OTHER = Reading("spec.…", (), Effect.NONE, "any other field that only one kind has: as that kind reads it")


def find_reading(replica_specs: str, error: FieldError) -> Reading:
    """The row that applies to an error; `replica_specs` is the name of the kind's replica map."""
    path = re.sub(r"\[[^\]]*\]", "[]", error.path.replace(replica_specs, REPLICAS, 1))
    rows = [row for row in READINGS if _covers(row.path, path) and (not row.types or error.type in row.types)]
    return max(rows, key=lambda row: len(row.path), default=OTHER)


def _covers(row: str, path: str) -> bool:
    return path == row or (row != "spec" and path.startswith((f"{row}.", f"{row}[")))


def apply_readings(replica_specs: str, job: Job, errors: Sequence[FieldError], more: int) -> Job:
    """The job with its errors, and with the roles or the whole job marked as unreadable where the table says so. `more`
    is the number of further unknown replica types, which hold up nothing."""
    effects = [(error, find_reading(replica_specs, error).effect) for error in errors]
    broken = {
        error.path.partition("[")[2].partition("]")[0].lower() for error, effect in effects if effect is Effect.ROLE
    }
    roles = tuple(_drop_template(role) if role.label in broken else role for role in job.roles)
    readable = job.replicas <= MAX_REPLICAS and all(effect is not Effect.JOB for _, effect in effects)
    return replace(job, roles=roles, errors=tuple(errors), more_errors=more, readable=readable)


def _drop_template(role: Role) -> Role:
    """The role without its template, which may have any shape and must not be read any more."""
    return replace(role, template={}, has_valid_template=False)
