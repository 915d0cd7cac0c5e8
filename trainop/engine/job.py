"""`Job`: the parsed form of a job, with every field checked, defaults applied and roles in the framework's order.

`parse` builds it from the raw object; everything else in the engine reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from trainop.engine.extensions import Extensions
from trainop.runtime import Json, Metadata
from trainop.runtime.lowlevel import FieldError

MAX_REPLICAS = 100_000
"""Replicas of one job, all roles together. Clusters hold about as many pods at most; the limit protects the operator's
memory from a mistyped number."""
UNKNOWN_REPLICAS = MAX_REPLICAS + 1
"""`replicas` of a role whose number is unreadable: above every valid index, so that no pod is surplus, and never
reached, so that the role is never complete."""


class Port(msgspec.Struct, frozen=True, gc=False):
    """A container port; `name` and `protocol` are empty if not given."""

    number: Annotated[int, msgspec.Meta(ge=1, le=65535)] = msgspec.field(name="containerPort")
    name: str = ""
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class Role:
    """One replica type of a job: a number of pods with one template."""

    type: str
    """Canonical spelling, such as `Worker`. Labels and names contain `label`, the lower-case form."""
    replicas: int
    restart_policy: str
    """Always, OnFailure, Never or ExitCode."""
    template: Json
    """The raw pod template. It is shared with the cache and must not be mutated."""
    ports: tuple[Port, ...] = ()
    """Ports of the framework's container, including the default port."""
    container: str = ""
    """Name of the container that runs the framework; empty if the template is invalid."""
    has_valid_template: bool = True
    """Pods can be made from the template."""
    indexed: bool = True
    """Names of pods and services end in the index (`Replicas.indexed`)."""

    @property
    def label(self) -> str:
        return self.type.lower()

    def port(self, name: str) -> int | None:
        """The number of the port called `name`."""
        return next((port.number for port in self.ports if port.name == name), None)


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """`spec.runPolicy` with defaults. Times are in seconds; None: no limit. Invalid values count as not given."""

    clean_pod_policy: str = "None"
    ttl: int | None = None
    active_deadline: int | None = None
    backoff_limit: int | None = None
    suspend: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A parsed job. If there are `errors`, invalid fields have the values of the table in `readings`."""

    metadata: Metadata
    spec: Json
    """The raw spec, for the fields of one framework."""
    roles: tuple[Role, ...] = ()
    run_policy: RunPolicy = field(default_factory=RunPolicy)
    extensions: Extensions = field(default_factory=Extensions)
    errors: tuple[FieldError, ...] = ()
    more_errors: int = 0
    """Number of further unknown replica types that are not in `errors`, which is bounded."""
    service_mode: str = "replica"
    """The mode in force, which `service_modes.settle_mode` derives: it may differ from `extensions.service_mode`."""
    readable: bool = True
    """The set of pods that the job should have is known. If False, pods are neither created, restarted nor removed."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def replicas(self) -> int:
        """The replicas of all roles together."""
        return sum(role.replicas for role in self.roles)

    def role(self, type_: str) -> Role | None:
        return next((role for role in self.roles if role.type == type_), None)
