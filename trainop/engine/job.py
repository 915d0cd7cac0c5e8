"""A job as plans read it: every field checked, every default applied, roles in the framework's order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from trainop.engine.extensions import Extensions
from trainop.runtime.objects.field_error import FieldError
from trainop.runtime.objects.metadata import Json, Metadata

MAX_REPLICAS = 100_000
"""Of a job: about what the largest clusters hold; beyond it a typing error must not cost the operator its memory."""
UNKNOWN_REPLICAS = MAX_REPLICAS + 1
"""Of a role whose number cannot be read: no pod is beyond it, and no number of pods is all of them."""


class Port(msgspec.Struct, frozen=True, gc=False):
    """A container port; `name` and `protocol` are empty where the user left them out."""

    number: Annotated[int, msgspec.Meta(ge=1, le=65535)] = msgspec.field(name="containerPort")
    name: str = ""
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class Role:
    """One replica type of a job: so many pods of one template."""

    type: str
    """Canonical spelling, such as `Worker`; on the wire of labels and names it is `label`."""
    replicas: int
    restart_policy: str
    """Always, OnFailure, Never or ExitCode."""
    template: Json
    """The raw pod template, never mutated."""
    ports: tuple[Port, ...] = ()
    """Ports of the container that the framework names, the default port included."""
    has_valid_template: bool = True
    """Pods can be made from the template."""
    indexed: bool = True
    """Names of children end in the index."""

    @property
    def label(self) -> str:
        return self.type.lower()

    def port(self, name: str) -> int | None:
        """The number of the port called `name`."""
        return next((port.number for port in self.ports if port.name == name), None)


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """`spec.runPolicy` with defaults; times in seconds, None is no limit. An unreadable value counts as not given."""

    clean_pod_policy: str = "None"
    ttl: int | None = None
    active_deadline: int | None = None
    backoff_limit: int | None = None
    suspend: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What one pass knows of the job itself. With `errors` the rest is the best reading there is (`readings`)."""

    metadata: Metadata
    spec: Json
    """The raw spec, for fields that only one framework knows."""
    roles: tuple[Role, ...] = ()
    run_policy: RunPolicy = field(default_factory=RunPolicy)
    extensions: Extensions = field(default_factory=Extensions)
    errors: tuple[FieldError, ...] = ()
    more_errors: int = 0
    """Roles that the kind does not have, beside those in `errors`: there may be as many as etcd can hold."""
    readable: bool = True
    """It is known which pods the job is to have."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def replicas(self) -> int:
        """Pods of all roles together."""
        return sum(role.replicas for role in self.roles)

    def role(self, type_: str) -> Role | None:
        return next((role for role in self.roles if role.type == type_), None)
