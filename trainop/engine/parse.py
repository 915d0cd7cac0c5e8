"""Parsing: from a raw job to a `Job` with defaults applied and every field validated. No content makes it raise.

Rules and messages are those of training-operator's webhooks (`pkg/webhooks`, `pkg/common/util/webhooks.go`), plus rules
for jobs that those accept although they can never run. `readings` decides what a begun job does about each error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec

from trainop.engine.addresses import child_name
from trainop.engine.extensions import TRAIN_NODE, read_extensions
from trainop.engine.fields import MAX_LABEL_LENGTH, TOO_LONG, Fields, as_object, label_faults
from trainop.engine.framework import THIS_OPERATOR, Framework, Replicas, Services
from trainop.engine.job import MAX_REPLICAS, UNKNOWN_REPLICAS, Job, Port, Role, RunPolicy
from trainop.engine.readings import apply_readings
from trainop.runtime import Json, Unstructured

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
CLEAN_POD_POLICIES = ("None", "Running", "All")
NAME = "metadata.name"
RUN_POLICY = "spec.runPolicy"
MAX_UNKNOWN_ROLES = 20
"""Unknown replica types that are reported one by one; further ones are only counted."""

MAX_INVALID_PORTS = 10
"""Invalid ports of one container that are reported: `MAX_INVALID_ENTRIES` containers may have some."""


def ignored(job: Unstructured, managers: tuple[str, ...] = (THIS_OPERATOR,)) -> bool:
    """Whether `spec.runPolicy.managedBy` assigns the job to another controller, so that nothing may be written."""
    manager = run_policy_of(job.raw).get("managedBy")
    return isinstance(manager, str) and manager not in managers


def parse(framework: Framework, raw: Unstructured) -> Job:
    """Parses a job of any content. Invalid fields are listed in `Job.errors`."""
    if node := raw.metadata.annotations.get(TRAIN_NODE):
        framework = replace(framework, container=node)
    fields = Fields()
    if raw.fault is not None:
        fields.unreadable(*raw.fault)
    spec = fields.mapping("spec", raw.raw.get("spec"))
    run_policy = _read_run_policy(fields, spec.get("runPolicy"), framework.managers)
    if framework.clean_pod_policy_in_spec and run_policy_of(raw.raw).get("cleanPodPolicy") is None:
        policy = _read_clean_pod_policy(fields, "spec.cleanPodPolicy", spec.get("cleanPodPolicy"))
        run_policy = replace(run_policy, clean_pod_policy=policy)
    roles = tuple(_read_roles(framework, fields, spec))
    extensions = read_extensions(fields, raw.metadata.annotations)
    job = Job(raw.metadata, spec, roles, run_policy, extensions)
    _check_name(framework, fields, job)
    if job.replicas > MAX_REPLICAS and all(role.replicas != UNKNOWN_REPLICAS for role in roles):
        at = f"spec.{framework.replica_specs}"
        fields.forbidden(at, f"all roles together must have no more than {MAX_REPLICAS} replicas, not {job.replicas}")
    framework.rules(job, fields)
    if not fields.errors:
        return job
    parsed = apply_readings(framework.replica_specs, job, fields.errors, fields.more)
    # A decoding fault names one place, but others may be affected too.
    return replace(parsed, readable=False) if raw.fault is not None else parsed


def read_run_policy(raw: Unstructured) -> RunPolicy:
    """The run policy alone; errors are ignored."""
    return _read_run_policy(Fields(), run_policy_of(raw.raw))


def run_policy_of(raw: Json) -> Json:
    """`spec.runPolicy` of a raw job; empty if it is not an object."""
    return as_object(as_object(raw.get("spec")).get("runPolicy"))


def _read_run_policy(fields: Fields, raw: object, managers: tuple[str, ...] = (THIS_OPERATOR,)) -> RunPolicy:
    at = RUN_POLICY
    policy = fields.mapping(at, raw)
    manager, supported = policy.get("managedBy"), (MULTIKUEUE, *managers)
    if manager is not None and manager not in supported:  # an empty string only if it is one of `managers`
        fields.unsupported(f"{at}.managedBy", manager, tuple(filter(None, supported)))
    return RunPolicy(
        clean_pod_policy=_read_clean_pod_policy(fields, f"{at}.cleanPodPolicy", policy.get("cleanPodPolicy")),
        ttl=fields.integer(f"{at}.ttlSecondsAfterFinished", policy.get("ttlSecondsAfterFinished"), minimum=0),
        active_deadline=fields.integer(
            f"{at}.activeDeadlineSeconds", policy.get("activeDeadlineSeconds"), minimum=0, maximum=2**63 - 1
        ),
        backoff_limit=fields.integer(f"{at}.backoffLimit", policy.get("backoffLimit"), minimum=0),
        suspend=fields.flag(f"{at}.suspend", policy.get("suspend")),
    )


def _read_clean_pod_policy(fields: Fields, path: str, value: object) -> str:
    """An empty string means All, as upstream. Unknown values, which upstream treats as All too, mean None: deletion
    cannot be undone."""
    return fields.choice(path, value, CLEAN_POD_POLICIES, "None", empty="All")


def _read_roles(framework: Framework, fields: Fields, spec: Json) -> Iterator[Role]:
    at = f"spec.{framework.replica_specs}"
    raw = spec.get(framework.replica_specs)
    if raw is None:
        fields.required(at, "must be required")
        return
    spelled = _match_keys(framework, fields, at, fields.mapping(at, raw))
    if raw == {}:
        fields.required(at, f"must have at least one of {', '.join(framework.roles)}")
    for type_ in framework.roles:
        if type_ in spelled:
            key, value = spelled[type_]
            yield _read_role(framework, fields, f"{at}[{key}]", type_, value)
        elif type_ in framework.required_roles:
            fields.required(f"{at}[{type_}]", "must be present")


def _match_keys(framework: Framework, fields: Fields, at: str, raw: Json) -> dict[str, tuple[str, object]]:
    """Canonical type -> (key as spelled by the user, value). Keys match regardless of case."""
    canonical = {type_.lower(): type_ for type_ in framework.roles}
    spelled: dict[str, tuple[str, object]] = {}
    unknown: list[str] = []
    for key, value in raw.items():
        type_ = canonical.get(key.lower())
        if type_ is None:
            unknown.append(key)
        elif type_ in spelled:
            fields.duplicate(f"{at}[{key}]", key, f"give {type_} once")
        else:
            spelled[type_] = (key, value)
    for key in unknown[:MAX_UNKNOWN_ROLES]:
        fields.unsupported(f"{at}[{key}]", key, tuple(framework.roles))
    fields.more += max(0, len(unknown) - MAX_UNKNOWN_ROLES)
    return spelled


def _read_role(framework: Framework, fields: Fields, at: str, type_: str, raw: object) -> Role:
    entry, rules = fields.mapping(at, raw), framework.roles[type_]
    replicas = _read_replicas(fields, f"{at}.replicas", entry.get("replicas"), rules)
    template = fields.mapping(f"{at}.template", entry.get("template"))
    container, ports = _read_template(framework, fields, f"{at}.template", template)
    return Role(
        type=type_,
        replicas=replicas if isinstance(raw, dict) else UNKNOWN_REPLICAS,
        restart_policy=fields.choice(
            f"{at}.restartPolicy",
            entry.get("restartPolicy"),
            rules.restart_policies,
            rules.restart_policy or framework.restart_policy,
        ),
        template=template,
        ports=ports,
        container=container,
        indexed=rules.indexed,
    )


def _read_replicas(fields: Fields, path: str, value: object, limits: Replicas) -> int:
    """The number of replicas: the default if not given, the nearest valid number if outside the kind's limits, and
    `UNKNOWN_REPLICAS` if it is not an integer."""
    count = fields.integer(path, value, minimum=None if limits.minimum else 0, maximum=MAX_REPLICAS)
    if count is None:
        return limits.default if value is None else UNKNOWN_REPLICAS
    if limits.maximum is not None and not limits.minimum <= count <= limits.maximum:
        fields.forbidden(path, f"must be {limits.maximum}")
        return limits.maximum
    if count < limits.minimum:
        fields.forbidden(path, f"must be at least {limits.minimum}")
    return max(count, limits.minimum)


def _read_template(framework: Framework, fields: Fields, at: str, template: Json) -> tuple[str, tuple[Port, ...]]:
    """Validates the fields that manifests use. Returns name and ports of the framework's container."""
    metadata = fields.mapping(f"{at}.metadata", template.get("metadata"))
    fields.mapping(f"{at}.metadata.labels", metadata.get("labels"))
    fields.mapping(f"{at}.metadata.annotations", metadata.get("annotations"))
    spec = fields.mapping(f"{at}.spec", template.get("spec"))
    for name in ("initContainers", "volumes"):
        fields.sequence(f"{at}.spec.{name}", spec.get(name))
    at = f"{at}.spec.containers"
    containers = fields.sequence(at, spec.get("containers"))
    if not containers:
        fields.required(at, "must be specified")
    read = fields.entries(at, containers, _Container, partial(_read_container, fields))
    wanted = framework.container or (read[0].name if read else "")
    main = next((container for container in read if container.name == wanted), None)
    if main is None:
        if framework.container and len(read) == len(containers):
            fields.required(at, framework.container_rule.format(framework.container))
        return framework.container, ()
    for place, container in enumerate(read):
        if not container.name:  # upstream names no such cause where the container above is missing
            fields.required(f"{at}[{place}].name", "must be required")
    ports = main.ports or ()
    if not framework.port_name or any(port.name == framework.port_name for port in ports):
        return main.name, ports
    return main.name, (*ports, Port(framework.port, framework.port_name))


class _Container(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields of a container that manifests use or that every container must have."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    image: Annotated[str, msgspec.Meta(min_length=1)]
    env: list[Any] | None = None
    volume_mounts: list[Any] | None = None
    ports: tuple[Port, ...] | None = None


def _read_container(fields: Fields, at: str, raw: object) -> _Container:
    container = fields.mapping(at, raw)
    name, image = (fields.text(f"{at}.{name}", container.get(name)) for name in ("name", "image"))
    if not image:
        fields.required(f"{at}.image", "must be required")
    for field in ("env", "volumeMounts"):
        fields.sequence(f"{at}.{field}", container.get(field))
    ports = fields.sequence(f"{at}.ports", container.get("ports"))
    at_port, read_port = f"{at}.ports", partial(_read_port, fields)
    return _Container(name, image, ports=tuple(fields.entries(at_port, ports, Port, read_port, MAX_INVALID_PORTS)))


def _read_port(fields: Fields, at: str, raw: object) -> Port:
    port = fields.mapping(at, raw)
    number = port.get("containerPort")
    if number is None:
        fields.required(f"{at}.containerPort", "must be required")
    number = fields.integer(f"{at}.containerPort", number, minimum=1, maximum=65535)
    name, protocol = (fields.text(f"{at}.{field}", port.get(field)) for field in ("name", "protocol"))
    return Port(number or 0, name, protocol)


def _check_name(framework: Framework, fields: Fields, job: Job) -> None:
    """Validates the job's name: every replica has a service named after it, and service names are DNS labels. Without
    services, it only has to be a valid label value."""
    name, at = job.name, NAME
    if all(rules.services is Services.NONE for rules in framework.roles.values()):
        if len(name) > MAX_LABEL_LENGTH:
            fields.invalid(at, name, TOO_LONG)
        return
    if wrong := label_faults(name):
        fields.invalid(at, name, f"should match: {','.join(wrong)}")
        return
    known = [role for role in job.roles if role.replicas != UNKNOWN_REPLICAS]
    longest = max((child_name(name, role, max(role.replicas, 1) - 1) for role in known), key=len, default="")
    if len(longest) > MAX_LABEL_LENGTH:
        excess = len(longest) - MAX_LABEL_LENGTH
        fields.invalid(
            at, name, f'the service "{longest}" {TOO_LONG}: shorten the job\'s name by {excess} or lower its replicas'
        )
