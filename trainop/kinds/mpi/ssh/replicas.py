"""The replica specs of an MPIJob with transport ssh, parsed with the rules and messages of mpi-operator
(`pkg/apis/kubeflow/validation/validation.go`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainop.engine.fields import Fields
from trainop.engine.job import MAX_REPLICAS
from trainop.kinds.mpi.hosts import LAUNCHER, REPLICA_SPECS, WORKER
from trainop.runtime import Json

_RESTART_POLICIES = ("Never", "OnFailure")
_DEFAULT_RESTART_POLICY = {LAUNCHER: "OnFailure", WORKER: "Never"}


@dataclass(frozen=True, slots=True)
class Replicas:
    """One entry of `spec.mpiReplicaSpecs`."""

    count: int
    restart_policy: str
    template: Json
    """The raw pod template, shared with the cache."""


def read_roles(fields: Fields, specs: Json, *, missing: bool) -> tuple[Replicas | None, Replicas | None]:
    """The launcher and the workers. The launcher is None if either is unreadable."""
    at = f"spec.{REPLICA_SPECS}"
    if missing:
        fields.required(at, "must have replica specs")
        return None, None
    if specs.get(LAUNCHER) is None:
        fields.required(f"{at}[{LAUNCHER}]", "must have Launcher replica spec")
    launcher = worker = None
    if specs.get(LAUNCHER) is not None:
        launcher = _read_role(fields, f"{at}[{LAUNCHER}]", LAUNCHER, specs[LAUNCHER])
    if specs.get(WORKER) is not None:
        worker = _read_role(fields, f"{at}[{WORKER}]", WORKER, specs[WORKER])
        if worker is None:
            return None, None
    return launcher, worker


def _read_role(fields: Fields, at: str, type_: str, value: object) -> Replicas | None:
    """One replica spec; None if its pods are unreadable."""
    raw = fields.mapping(at, value)
    default = 1 if type_ == LAUNCHER else 0
    count = (
        default
        if raw.get("replicas") is None
        else fields.integer(f"{at}.replicas", raw["replicas"], maximum=MAX_REPLICAS)
    )
    policy = raw.get("restartPolicy") or None
    restart = choose_one(fields, f"{at}.restartPolicy", policy, _RESTART_POLICIES, _DEFAULT_RESTART_POLICY[type_])
    template = _read_template(fields, f"{at}.template", raw.get("template"))
    if count is None:
        return None
    if type_ == LAUNCHER and count != 1:
        fields.invalid(f"{at}.replicas", count, "must be 1")
    if type_ == WORKER and count < 1:
        fields.invalid(f"{at}.replicas", count, "must be greater than or equal to 1")
    return None if template is None else Replicas(max(count, 0), restart, template)


def _read_template(fields: Fields, at: str, value: object) -> Json | None:
    """The template, if pods can be made from it."""
    template = fields.mapping(at, value)
    before = len(fields.errors)
    metadata = fields.mapping(f"{at}.metadata", template.get("metadata"))
    for name in ("labels", "annotations"):
        fields.mapping(f"{at}.metadata.{name}", metadata.get(name))
    spec = fields.mapping(f"{at}.spec", template.get("spec"))
    fields.sequence(f"{at}.spec.volumes", spec.get("volumes"))
    dns = fields.mapping(f"{at}.spec.dnsConfig", spec.get("dnsConfig"))
    fields.sequence(f"{at}.spec.dnsConfig.searches", dns.get("searches"))
    containers = fields.sequence(f"{at}.spec.containers", spec.get("containers"))
    if not containers:
        fields.required(f"{at}.spec.containers", "must define at least one container")
    else:
        first: dict[str, Any] = fields.mapping(f"{at}.spec.containers[0]", containers[0])
        for name in ("env", "volumeMounts"):
            fields.sequence(f"{at}.spec.containers[0].{name}", first.get(name))
    return template if len(fields.errors) == before else None


def choose_one(fields: Fields, path: str, value: object, supported: tuple[str, ...], default: str) -> str:
    """One of `supported`; `default` if the value is absent or invalid. Unlike `Fields.choice`, "" is invalid."""
    if value is None:
        return default
    if isinstance(value, str) and value in supported:
        return value
    fields.unsupported(path, value, supported)
    return default
