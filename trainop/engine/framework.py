"""A kind of job is one frozen value: facts and small pure functions. The flow is the engine's alone."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from trainop.engine.fields import Fields
from trainop.engine.job import Job, Role
from trainop.engine.seen import LABELS, Options
from trainop.runtime.objects.metadata import Json, Unstructured
from trainop.runtime.objects.resource import Resource

GROUP = "kubeflow.org"
OURS = "kubeflow.org/training-operator"
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
OPERATOR_NAME = LABELS + "operator-name"
JOB_NAME = LABELS + "job-name"
REPLICA_TYPE = LABELS + "replica-type"
REPLICA_INDEX = LABELS + "replica-index"
JOB_ROLE = LABELS + "job-role"


@dataclass(slots=True)
class Tally:
    """How the pods of one role stand; only slots below `replicas` count."""

    active: int = 0
    """Running and not being deleted."""
    succeeded: int = 0
    failed: int = 0
    """In phase Failed and not being deleted."""
    first_completed: bool = False
    """The pod of index 0 is among the succeeded, and the framework's container is known to have ended with 0."""


class Progress(NamedTuple):
    """What a framework reads from its tallies. With both true, Running is set before Succeeded."""

    running: bool
    succeeded: bool


class Texts(NamedTuple):
    """Messages of conditions, filled with `kind`, `name`, `namespace`, and `count` and `role` where pods failed."""

    running: str = "{kind} {name} is running."
    succeeded: str = "{kind} {name} is successfully completed."
    failed: str = "{kind} {name} is failed because {count} {role} replica(s) failed."


PLAIN_TEXTS = Texts()
QUALIFIED_TEXTS = Texts(
    running="{kind} {namespace}/{name} is running.",
    succeeded="{kind} {namespace}/{name} successfully completed.",
)
"""What upstream says of jobs that no master leads (training-operator `pkg/controller.v1/pytorch`)."""


class Services(enum.Enum):
    """Which replicas of a role get a headless Service, which gives the pod its stable name."""

    NONE = "none"
    FIRST = "first"
    EACH = "each"


class Replicas(NamedTuple):
    """What a kind allows and assumes of one replica type."""

    minimum: int = 0
    maximum: int | None = None
    """None is no limit."""
    default: int = 1
    """The count if none is given."""
    restart_policy: str = ""
    """The default; empty is that of the kind."""
    restart_policies: tuple[str, ...] = RESTART_POLICIES
    """Those that a user may choose."""
    services: Services = Services.EACH
    indexed: bool = True
    """Names of children end in the index (`j-worker-0`). Otherwise the role has at most one replica (`j-launcher`)."""


class CompanionKind(NamedTuple):
    """A kind of object that jobs may have beside pods and services."""

    resource: Resource
    needed_by_pods: bool
    """Pods refer to it: it stays until the job itself goes, and a job whose companion is refused fails. Otherwise it
    goes as soon as the job does not ask for it, is suspended or has finished."""
    metadata_only: bool = False
    """Contents are too large to be watched."""


class Companion(NamedTuple):
    """One such object; it bears the labels of the job."""

    kind: CompanionKind
    name: str
    inputs: str
    """Whatever its content depends on: with other facts it is written anew."""
    content: Callable[[], Json]
    """All but apiVersion, kind and metadata."""
    create_only: bool = False
    """Written once and never again, whatever it becomes: content that is random, such as the key in a Secret."""
    ready: Callable[[Unstructured], bool] | None = None
    """Pods are created only once this is true of the object as it is seen, such as the phase of a PodGroup. None: they
    do not wait for it."""


class Mount(NamedTuple):
    """A volume, and where the containers that get the variables find it."""

    name: str
    source: Json
    path: str


Environment: TypeAlias = Callable[[Role, int], Sequence[Json]]
"""The variables of one replica, in order; what all replicas share was computed before."""

Found: TypeAlias = Mapping[Resource, Sequence[Unstructured]]
"""The companions that exist, by resource."""


def no_variables(_role: Role, _index: int) -> Sequence[Json]:
    """The kind adds none."""
    return ()


class RoleAdditions(NamedTuple):
    """What a kind adds to the pod template of one role."""

    command: Sequence[str] = ()
    """Of the framework's container, if the template gives none."""
    service_account: str = ""
    """Replaces that of the template."""
    mounts: Sequence[Mount] = ()
    init_containers: Sequence[Json] = ()
    """Appended to those of the template."""


def no_additions(_role: Role) -> RoleAdditions:
    """The template is used as it is."""
    return RoleAdditions()


class PodAdditions(NamedTuple):
    """What a kind adds to the pods of one job. The parts are computed once; only `variables` differ by replica."""

    variables: Environment = no_variables
    in_all_containers: bool = True
    """Variables and mounts go to every container of a pod, otherwise only to the framework's own (TFJob)."""
    of_role: Callable[[Role], RoleAdditions] = no_additions


Additions: TypeAlias = Callable[[Job, Options], PodAdditions]


def only_variables(environment: Callable[[Job, Options], Environment]) -> Additions:
    """For kinds whose pods get variables and nothing else."""
    return lambda job, options: PodAdditions(environment(job, options))


def variable(name: str, value: object) -> Json:
    """One entry of a container's `env`."""
    return {"name": name, "value": str(value)}


def numbered(before: str, count: int, after: str, separator: str = ",") -> str:
    """`before0after,before1after,…`: what all replicas of a role are called, also of a hundred thousand in no time."""
    return before + f"{after}{separator}{before}".join(map(str, range(count))) + after if count else ""


def everywhere(_job: Job, _role: Role, _index: int) -> bool:
    """Each replica is known to the others by its address."""
    return True


def no_rules(_job: Job, _fields: Fields) -> None:
    """The kind has no rules beyond the common ones."""


def no_companions(_job: Job, _options: Options, _found: Found) -> Sequence[Companion]:
    """The kind has none."""
    return ()


def no_failure(_job: Job, _role: Role) -> bool:
    """The kind tolerates no failed replica."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """All that tells one kind of job from another."""

    resource: Resource
    name: str
    """The metric label `framework`: `pytorch`."""
    controller: str
    """Controller name, value of the label operator-name, source of events: `pytorchjob-controller`. It is part of
    every selector and must stay as it is, or objects of running jobs are not found after a change of operator."""
    replica_specs: str
    """The field of the spec that maps replica types to templates: `pytorchReplicaSpecs`."""
    roles: Mapping[str, Replicas]
    """Replica types in canonical spelling; the order is that of creation and of judgement, leaders first."""
    required_roles: tuple[str, ...] = ()
    container: str
    """The container of the template that runs the framework; ports and exit codes are read from it."""
    port_name: str
    port: int
    container_rule: str = "must have at least one container with name {}"
    """What validation says of a template without that container."""
    restart_policy: str = "Never"
    """The default of roles that name none."""
    manager: str = OURS
    """The value of `spec.runPolicy.managedBy` that means this operator."""

    is_master: Callable[[Job, Role, int], bool]
    """Which replicas carry the label job-role=master."""
    needs_service: Callable[[Job, Role, int], bool] = everywhere
    """Which replicas' services rendezvous needs: with service mode `leader` only these get one."""
    additions: Additions
    """What pods have beside their template: variables, command, service account, volumes, init containers."""
    companion_kinds: tuple[CompanionKind, ...] = ()
    companions: Callable[[Job, Options, Found], Sequence[Companion]] = no_companions
    """What an active job should have of them, given those that exist; asked on every pass."""
    progress: Callable[[Job, Mapping[str, Tally]], Progress]
    """When the job is running, when it has succeeded; `Mapping` has every role of the job."""
    tolerates: Callable[[Job, Role], bool] = no_failure
    """Failed replicas of this role do not fail the job (TFJob `enableDynamicWorker`), unless by their exit code."""
    rules: Callable[[Job, Fields], None] = no_rules
    """Validation beyond the common rules."""
    texts: Callable[[Job], Texts]

    spec_fields: Mapping[str, Json] = field(default_factory=dict)
    """Schemas of the fields of the spec that only this kind has, for its CRD."""
    required_fields: tuple[str, ...] = ()
    """Those of them that the CRD requires."""
    scale: bool = False
    """The CRD has the scale subresource, hence replicaStatuses name their selector."""
    deleted_as: str = "Pod"
    """Ends the event reasons of a job deleted after its time to live, as upstream: SuccessfulDelete`Pod` or `Job`."""

    @property
    def kind(self) -> str:
        return self.resource.kind


class HasController(Protocol):
    @property
    def controller(self) -> str: ...


def selector(kind: HasController, job_name: str) -> dict[str, str]:
    """The labels by which the children of a job are found (training-operator `GenLabels`)."""
    return {OPERATOR_NAME: kind.controller, JOB_NAME: job_name.replace("/", "-")}
