"""The contract between the shell and a kind of job.

The shell (`trainop.controllers`) watches, plans, writes and reports for any `Kind`. Jobs with a map of replica types
describe themselves as a `Framework`, and `kind_of` builds their Kind. Other kinds bring a plan of their own, made from
the same parts: `claim`, `cleanup`, `status`, `companions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from trainop.engine import plan as engine
from trainop.engine.actions import Plan
from trainop.engine.admission import Judgement, judge
from trainop.engine.framework import CompanionKind, Framework
from trainop.engine.limits import seconds_to_due
from trainop.engine.seen import Options, Snapshot
from trainop.runtime.objects.metadata import Unstructured
from trainop.runtime.objects.resource import Resource


def admit_all(_new: Unstructured, _old: Unstructured | None) -> Judgement:
    """The kind has no rules beyond its schema."""
    return Judgement()


def never_due(_job: Unstructured, _now: datetime) -> float | None:
    """The kind has no deadlines."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the shell needs of any kind. All functions are pure and never raise for what a job contains."""

    resource: Resource
    """Of the job, in the version that is watched."""
    name: str
    """The metric label `framework`, such as `pytorch`."""
    controller: str
    """Name of the controller, source of its events, and value of the label operator-name of all children."""
    companion_kinds: tuple[CompanionKind, ...] = ()
    """Kinds of children beside pods and services, which are watched as well."""
    plan: Callable[[Snapshot], Plan]
    """What to do about one snapshot."""
    reject: Callable[[Snapshot, str], Plan]
    """What to do when the API server refuses an object that the job cannot do without, with its message."""
    judge: Callable[[Unstructured, Unstructured | None], Judgement] = admit_all
    """Validates a new job, or the update of an old one."""
    due: Callable[[Unstructured, datetime], float | None] = never_due
    """Seconds until the next deadline of a job; None without one."""
    deleted_as: str = "Job"
    """Ends the event reasons of a job that is deleted after its time to live: SuccessfulDelete`Job`."""


def kind_of(framework: Framework, options: Options | None = None) -> Kind:
    """The Kind of jobs that have a map of replica types."""
    return Kind(
        resource=framework.resource,
        name=framework.name,
        controller=framework.controller,
        companion_kinds=framework.companion_kinds,
        plan=partial(engine.plan, framework),
        reject=partial(engine.reject, framework),
        judge=partial(judge, framework, options=options or Options()),
        due=seconds_to_due,
        deleted_as=framework.deleted_as,
    )
