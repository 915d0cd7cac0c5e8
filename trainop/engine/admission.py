"""Admission: the only validation of jobs. Plans, `trainop run` and admission webhooks ask the same function.

A job is judged as a whole: its fields (`parse`), and what follows from them, such as pods that no program could start
in because a variable is too long.
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
    """The result of a validation; the job is admitted if there are no `errors`."""

    errors: tuple[FieldError, ...] = ()
    more_errors: int = 0
    """Errors beside `errors`, which are like the last of these."""
    warnings: tuple[str, ...] = ()
    """Shown to the user who writes the job; they refuse nothing."""


def judge(
    framework: Framework, new: Unstructured, old: Unstructured | None = None, options: Options = PLAIN
) -> Judgement:
    """Validates `new`, created or, with `old`, updated. An error that `old` has too is a warning: whoever updates a
    stored job, such as a controller that sets a finalizer, is not responsible for it. Never raises for what a job
    contains."""
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
    """What keeps a job from ever running. `manifests` is only asked for a job whose fields are right."""
    if job.errors:
        return job.errors
    size_error = manifests().size_error
    return () if size_error is None else (size_error,)


def _find_warnings(framework: Framework, job: Job) -> Iterator[str]:
    for role in job.roles:
        if role.has_valid_template and role.template["spec"].get("restartPolicy"):
            at = f"spec.{framework.replica_specs}[{role.type}]"
            yield f"{at}.template.spec.restartPolicy: overwritten by {at}.restartPolicy"
