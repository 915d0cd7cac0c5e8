"""Admission: the only validation of jobs. `judge` serves admission webhooks and `trainop run`; plans call
`find_errors`.

Two steps: the fields of the job (`parse`), then the manifests that follow from them, such as an environment variable
that is longer than Linux allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainop.engine.addresses import missed_mode, settle_mode
from trainop.engine.fields import Fields
from trainop.engine.framework import Framework
from trainop.engine.job import Job
from trainop.engine.manifests import Manifests
from trainop.engine.parse import RUN_POLICY, parse, run_policy_of
from trainop.engine.seen import Options
from trainop.runtime import Unstructured
from trainop.runtime.lowlevel import FieldError

PLAIN = Options()


class Judgement(NamedTuple):
    """The result of a validation. The job is admitted if there are no `errors`."""

    errors: tuple[FieldError, ...] = ()
    more_errors: int = 0
    """Number of further errors of the same type as the last of `errors`."""
    warnings: tuple[str, ...] = ()
    """Messages for the user that do not refuse the job (`warnings` of an AdmissionReview)."""


def judge(
    framework: Framework, new: Unstructured, old: Unstructured | None = None, options: Options = PLAIN
) -> Judgement:
    """Validates a job that is created or, with `old`, updated. An error that `old` has too becomes a warning, so that a
    controller can still set a finalizer on a stored invalid job, or resume it. Never raises, whatever the job
    contains."""
    return judge_by(lambda raw: _examine(framework, raw, options), new, old)


def judge_by(examine: Callable[[Unstructured], Judgement], new: Unstructured, old: Unstructured | None) -> Judgement:
    """As `judge`, for any kind: `examine` finds the errors and warnings of one object."""
    found = examine(new)
    if old is None:
        return found
    before = found if not found.errors or _is_same(new, old) else examine(old)
    known = set(map(_identity, before.errors))
    kept = [f"{error} (not changed by this update)" for error in found.errors if _identity(error) in known]
    remaining = [*_find_changes(new, old), *(error for error in found.errors if _identity(error) not in known)]
    return Judgement(tuple(remaining), max(0, found.more_errors - before.more_errors), (*found.warnings, *kept))


def _examine(framework: Framework, raw: Unstructured, options: Options) -> Judgement:
    job = settle_mode(framework, parse(framework, raw), options)
    errors = find_errors(job, lambda: Manifests(framework, job, options))
    return Judgement(errors, job.more_errors, tuple(_find_warnings(framework, job, options)))


def _is_same(new: Unstructured, old: Unstructured) -> bool:
    """Whether an update changes nothing that is validated."""
    return new.raw.get("spec") == old.raw.get("spec") and new.metadata.annotations == old.metadata.annotations


def _identity(error: FieldError) -> tuple[str, str, str]:
    """What makes two errors the same. The detail is left out: it may contain a size, which any update changes."""
    return error.path, error.type, error.value


def _find_changes(new: Unstructured, old: Unstructured) -> Iterator[FieldError]:
    """The errors of an update that changes an immutable field (training-operator `pkg/webhooks`). The CRD refuses a
    new value, but cannot refuse that the field is added or removed."""
    manager, before = (run_policy_of(job.raw).get("managedBy") for job in (new, old))
    if manager != before:
        fields = Fields()
        fields.invalid(f"{RUN_POLICY}.managedBy", "null" if manager is None else manager, "field is immutable")
        yield from fields.errors


def find_errors(job: Job, manifests: Callable[[], Manifests]) -> tuple[FieldError, ...]:
    """The errors that keep a job from ever running. `manifests` is called only if all fields are valid."""
    if job.errors:
        return job.errors
    size_error = manifests().size_error
    return () if size_error is None else (size_error,)


def _find_warnings(framework: Framework, job: Job, options: Options) -> Iterator[str]:
    for role in job.roles:
        if role.has_valid_template and role.template["spec"].get("restartPolicy"):
            at = f"spec.{framework.replica_specs}[{role.type}]"
            yield f"{at}.template.spec.restartPolicy: overwritten by {at}.restartPolicy"
    if obstacle := missed_mode(framework, job, options):
        yield obstacle
    yield from framework.warnings(job)
