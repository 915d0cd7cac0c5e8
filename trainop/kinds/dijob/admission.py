"""What the webhooks of DIJob decide: the default of `cleanPodPolicy`, and whether a job is admitted (DI-orchestrator
`api/v1alpha1/dijob_webhook.go`)."""

from __future__ import annotations

from collections.abc import Iterator

from trainop.engine.admission import Judgement
from trainop.engine.fields import Fields
from trainop.kinds.dijob.job import ALIASES, DEFAULT_POLICY, DiJob, is_unset, parse_dijob, refuse_policy
from trainop.kinds.dijob.names import SUFFIX_LENGTH, Role
from trainop.runtime import Json, Unstructured
from trainop.runtime.lowlevel import FieldError

MAX_LABEL = 63
"""Characters of a label value, and so of a pod's name."""

LONGEST_ROLE = {Role.COLLECTOR: Role.COLLECTOR, Role.LEARNER: Role.DDP_LEARNER}
"""Section of the spec -> its role with the longest pod names."""


def default_dijob(raw: Json) -> None:
    """What the mutating webhook changes in a raw DIJob: only `/spec/cleanPodPolicy`."""
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return
    given = spec.get("cleanPodPolicy")
    if is_unset(given):
        spec["cleanPodPolicy"] = DEFAULT_POLICY
    elif isinstance(given, str) and given in ALIASES:
        spec["cleanPodPolicy"] = ALIASES[given]


def judge_dijob(new: Unstructured, old: Unstructured | None = None) -> Judgement:
    """Validates a job that is created or, with `old`, updated, after `default_dijob`: an empty policy is an error here,
    and only here. Any other error that `old` has too becomes a warning, so that a stored invalid job can still be
    changed. Never raises."""
    job = parse_dijob(new)
    known = set(parse_dijob(old).errors) if old is not None else set()
    kept = [f"{error} (not changed by this update)" for error in job.errors if error in known]
    remaining = (error for error in job.errors if error not in known)
    return Judgement((*_find_empty_policy(new), *remaining), warnings=(*_find_warnings(job), *kept))


def _find_empty_policy(job: Unstructured) -> tuple[FieldError, ...]:
    spec = job.raw.get("spec")
    if not isinstance(spec, dict) or not is_unset(spec.get("cleanPodPolicy")):
        return ()
    fields = Fields()
    refuse_policy(fields, "")
    return fields.errors


def _find_warnings(job: DiJob) -> Iterator[str]:
    """Names of replicas that will be too long. Names of pods end in the role and a random suffix."""
    for section, role in LONGEST_ROLE.items():
        longest = MAX_LABEL - len(role.value) - SUFFIX_LENGTH - len("--")
        if section in job.sections and len(job.name) > longest:
            yield (
                f"metadata.name: with more than {longest} characters, names of pods of spec.{section.value} can exceed "
                f"{MAX_LABEL} characters, and such pods cannot be created"
            )
