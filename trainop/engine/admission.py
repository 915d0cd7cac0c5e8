"""Admission: the only validation of jobs. `judge` serves admission webhooks and `trainop run`; plans call
`find_errors`.

Two steps: the fields of the job (`parse`), then the manifests that follow from them, such as an environment variable
that is longer than Linux allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainop.engine.framework import Framework
from trainop.engine.job import Job
from trainop.engine.manifests import Manifests
from trainop.engine.parse import parse
from trainop.engine.seen import Options
from trainop.runtime.objects.field_error import FieldError
from trainop.runtime.objects.metadata import Unstructured

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
    controller can still set a finalizer on a stored invalid job. Never raises, whatever the job contains."""
    job = parse(framework, new)
    errors = find_errors(job, lambda: Manifests(framework, job, options))
    warnings = [*_find_warnings(framework, job)]
    if old is None:
        return Judgement(errors, job.more_errors, tuple(warnings))
    before = parse(framework, old)
    known = set(find_errors(before, lambda: Manifests(framework, before, options)))
    warnings += [f"{error} (not changed by this update)" for error in errors if error in known]
    remaining = tuple(error for error in errors if error not in known)
    return Judgement(remaining, max(0, job.more_errors - before.more_errors), tuple(warnings))


def find_errors(job: Job, manifests: Callable[[], Manifests]) -> tuple[FieldError, ...]:
    """The errors that keep a job from ever running. `manifests` is called only if all fields are valid."""
    if job.errors:
        return job.errors
    size_error = manifests().size_error
    return () if size_error is None else (size_error,)


def _find_warnings(framework: Framework, job: Job) -> Iterator[str]:
    for role in job.roles:
        if role.has_valid_template and role.template["spec"].get("restartPolicy"):
            at = f"spec.{framework.replica_specs}[{role.type}]"
            yield f"{at}.template.spec.restartPolicy: overwritten by {at}.restartPolicy"
