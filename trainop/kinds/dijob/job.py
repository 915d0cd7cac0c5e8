"""A DIJob, parsed: what the operator itself reads, every rule checked (DI-orchestrator `api/v1alpha1/dijob_types.go`,
`dijob_webhook.go`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainop.engine.fields import Fields, label_faults
from trainop.engine.seen import Options
from trainop.kinds.dijob.declared import read_declared
from trainop.kinds.dijob.names import REPLICAS, Role
from trainop.kinds.dijob.pods import JobFacts, PodOptions, read_job
from trainop.runtime import Json, Metadata, Unstructured
from trainop.runtime.lowlevel import FieldError, cut

ALL, RUNNING, NONE = "All", "Running", "None"
DEFAULT_POLICY = RUNNING
ALIASES = {"ALL": ALL}
"""The spelling of DI-orchestrator v0.1.0."""
SECTIONS = (Role.COORDINATOR, Role.COLLECTOR, Role.LEARNER)
"""The roles whose template is in the spec."""
LONGEST_NAME = 51
"""With it the name of the coordinator and its service has 63 characters."""

_MAX_DUPLICATES = 10
"""Reported names of duplicate volumes per list."""


@dataclass(frozen=True, slots=True)
class DiJob:
    """A parsed job. Invalid fields have the values that a begun job goes on with."""

    metadata: Metadata
    facts: JobFacts
    coordinator: Json | None
    """The pod template; None if there is no usable one."""
    sections: frozenset[Role]
    """The roles that the spec has."""
    declared: Mapping[Role, int]
    """The replicas that it declares to its queue, by the annotation `di-replicas`."""
    clean_pod_policy: str
    """`All`, `Running` or `None`. An unknown one counts as `None`, so that nothing is deleted by mistake."""
    errors: tuple[FieldError, ...]

    @property
    def name(self) -> str:
        return self.metadata.name


def parse_dijob(raw: Unstructured) -> DiJob:
    """The job with all errors. Never raises, whatever it contains."""
    fields = Fields()
    if raw.fault is not None:
        fields.unreadable(*raw.fault)
    spec = fields.mapping("spec", raw.raw.get("spec"))
    policy = _read_policy(fields, spec.get("cleanPodPolicy"))
    templates = dict(_read_templates(fields, spec))
    _check_name(fields, raw.metadata.name)
    for field in ("group", "priorityClassName"):
        fields.text(f"spec.{field}", spec.get(field))
    _check_volumes(fields, spec, templates)
    return DiJob(
        metadata=raw.metadata,
        facts=read_job(raw.raw),
        coordinator=templates.get(Role.COORDINATOR),
        sections=frozenset(role for role in SECTIONS if spec.get(role.value) is not None),
        declared=_read_declared(fields, raw.metadata, spec),
        clean_pod_policy=policy,
        errors=fields.errors,
    )


def _read_declared(fields: Fields, metadata: Metadata, spec: Json) -> Mapping[Role, int]:
    declared = read_declared(fields, metadata.annotations)
    for role in declared:
        if spec.get(role.value) is None:
            fields.required(f"spec.{role.value}", f"the annotation {REPLICAS} declares pods of it")
    return declared


def pod_options(options: Options) -> PodOptions:
    return PodOptions(options.di_server_address, termination_message_policy=options.termination_message_policy)


def _read_policy(fields: Fields, given: object) -> str:
    if is_unset(given):
        return DEFAULT_POLICY
    policy = fields.text("spec.cleanPodPolicy", given)
    if not isinstance(given, str):
        return NONE
    if ALIASES.get(policy, policy) in {ALL, RUNNING, NONE}:
        return ALIASES.get(policy, policy)
    refuse_policy(fields, policy)
    return NONE


def is_unset(value: object) -> bool:
    """Upstream does not distinguish an absent string from an empty one."""
    return value is None or value == ""


def refuse_policy(fields: Fields, given: str) -> None:
    """Adds the error about the policy. Users and tools know its text."""
    fields.plain(f"Invalid CleanPodPolicy {cut(given, 100)}, expected in [None, Running, All]")


def _read_templates(fields: Fields, spec: Json) -> Iterator[tuple[Role, Json]]:
    for role in SECTIONS:
        at, given = f"spec.{role.value}", spec.get(role.value)
        if given is None:
            if role is Role.COORDINATOR:
                fields.required(at, "a job has a coordinator")
            continue
        section = fields.mapping(at, given)
        if section.get("template") is None:
            fields.required(f"{at}.template", "the pods need a template")
            continue
        template = fields.mapping(f"{at}.template", section["template"])
        fields.mapping(f"{at}.template.metadata", template.get("metadata"))
        pod = fields.mapping(f"{at}.template.spec", template.get("spec"))
        containers = fields.sequence(f"{at}.template.spec.containers", pod.get("containers"))
        if role is Role.COORDINATOR and not containers:
            fields.required(f"{at}.template.spec.containers", "must not be empty")
        else:
            yield role, template


def _check_name(fields: Fields, name: str) -> None:
    for fault in label_faults(name[:LONGEST_NAME]):
        fields.invalid("metadata.name", name, fault)
    if len(name) > LONGEST_NAME:
        detail = f"must be no more than {LONGEST_NAME} characters, because the name of the coordinator is longer"
        fields.invalid("metadata.name", name, detail)


def _check_volumes(fields: Fields, spec: Json, templates: dict[Role, Json]) -> None:
    """A pod has the volumes of its template and those of the job; the API server refuses two of one name."""
    own = _names(fields.sequence("spec.volumes", spec.get("volumes")))
    _report_duplicates(fields, "spec.volumes", _duplicates(own))
    for role, template in templates.items():
        at = f"spec.{role.value}.template.spec.volumes"
        pod = template.get("spec")
        given = _names(fields.sequence(at, pod.get("volumes") if isinstance(pod, dict) else None))
        _report_duplicates(fields, at, sorted(set(given) & set(own)))


def _names(volumes: Sequence[object]) -> list[str]:
    found = (volume.get("name") for volume in volumes if isinstance(volume, dict))
    return [name for name in found if isinstance(name, str)]


def _duplicates(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _report_duplicates(fields: Fields, at: str, names: Sequence[str]) -> None:
    for name in names[:_MAX_DUPLICATES]:
        fields.duplicate(f"{at}[{name}]", name, "pods have the volumes of the job in addition to those of the template")
