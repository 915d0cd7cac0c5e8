"""`Framework`: the declaration of a kind of job whose spec maps replica types to pod templates.

A Framework is one frozen value of constants and small pure functions. It has no flow of control: `plan` calls these
functions at fixed points, and the CRD, the manifests and the page in `docs/kinds` are generated from the same value.
All functions accept any parsed job, also one with errors, and never raise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from trainop.engine.actions import Event, Need, Patch
from trainop.engine.fields import Fields
from trainop.engine.job import Job, Role
from trainop.engine.seen import LABELS, Options, Snapshot
from trainop.runtime import Json, Metadata, Resource

GROUP = "kubeflow.org"
THIS_OPERATOR = "kubeflow.org/training-operator"
"""The default of `spec.runPolicy.managedBy`."""
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
OPERATOR_NAME = LABELS + "operator-name"
JOB_NAME = LABELS + "job-name"
REPLICA_TYPE = LABELS + "replica-type"
REPLICA_INDEX = LABELS + "replica-index"
JOB_ROLE = LABELS + "job-role"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' own label of the pods of an indexed Job, by which clients of TrainJobs number the nodes."""


@dataclass(slots=True)
class Tally:
    """Counts of one role's pods by state. Only pods in slots below `replicas` are counted."""

    active: int = 0
    """Running and not being deleted."""
    succeeded: int = 0
    failed: int = 0
    """In phase Failed and not being deleted."""
    first_completed: bool = False
    """The pod of index 0 has succeeded, and its container of the framework is reported with exit code 0."""


class Progress(NamedTuple):
    """Whether the job runs and whether it has succeeded. If both are true, Running is set before Succeeded."""

    running: bool
    succeeded: bool


class Texts(NamedTuple):
    """Format strings of condition messages, with fields `kind`, `name`, `namespace`; `restarting` and `failed` also
    `count` and `role`."""

    running: str = "{kind} {name} is running."
    succeeded: str = "{kind} {name} is successfully completed."
    restarting: str = "{kind} {name} is restarting because {count} {role} replica(s) failed."
    """Only if no pod is in phase Failed, because another client deletes the pods. Upstream then restarts the job in
    the status step of the kind, and otherwise in the step that all kinds share."""
    failed: str = "{kind} {name} is failed because {count} {role} replica(s) failed."
    running_event: str = ""
    """Message of the event with the reason of condition Running; empty: there is no event."""


PLAIN_TEXTS = Texts()
QUALIFIED_TEXTS = Texts(
    running="{kind} {namespace}/{name} is running.",
    succeeded="{kind} {namespace}/{name} successfully completed.",
)
"""Upstream's messages for jobs without a master (training-operator `pkg/controller.v1/pytorch`)."""


class Services(enum.Enum):
    """Which replicas of a role get a headless Service, and with it a stable DNS name."""

    NONE = "none"
    FIRST = "first"
    EACH = "each"


class Replicas(NamedTuple):
    """Limits and defaults of one replica type."""

    minimum: int = 0
    maximum: int | None = None
    """None: no limit."""
    default: int = 1
    """Number of replicas if the spec has none."""
    restart_policy: str = ""
    """The default restart policy; empty: the default of the kind."""
    restart_policies: tuple[str, ...] = RESTART_POLICIES
    """The restart policies that validation accepts."""
    services: Services = Services.EACH
    indexed: bool = True
    """Names of pods and services end in the index (`j-worker-0`). False only for roles of one replica
    (`j-launcher`)."""


def no_events(_name: str) -> tuple[Event, ...]:
    """The deletion of the object is nothing to report."""
    return ()


class CompanionKind(NamedTuple):
    """A kind of object that jobs may own in addition to pods and services, such as a HorizontalPodAutoscaler."""

    resource: Resource
    need: Need
    """With `Need.JOB`, pods refer to it, and it is kept until the job is deleted. Otherwise it is deleted as soon as
    the job no longer asks for it, is suspended or has finished."""
    metadata_only: bool = False
    """The watch asks for metadata only, because the contents are large."""
    permission_optional: bool = False
    """An installation may lack the permission for it. Jobs that need it then wait, with the API server's message."""
    posted: bool = False
    """All its manifests have the same fields, so that it can be created by POST (`Ensure.posted`)."""
    removal: Callable[[str], tuple[Event, ...]] = no_events
    """Name -> the events about its deletion."""


class Companion(NamedTuple):
    """One object of a `CompanionKind`. It gets the labels and the owner reference of the job."""

    kind: CompanionKind
    name: str
    inputs: str
    """Everything that the content depends on, as text. The object is applied again when its hash changes."""
    content: Callable[[], Json]
    """Returns the manifest without apiVersion, kind and metadata."""
    correct: Callable[[Any], Patch | None] | None = None
    """How an existing object, as the cache has it, is corrected; None if it is as it should be. With this function, the
    object is created by POST and never applied."""
    ready: Callable[[Any], bool] | None = None
    """Pods are created only while this is true of the object in the cache, such as for the phase of a PodGroup. None:
    pods do not wait for it."""
    held: bool = False
    """It is left as it is, missing or not, and pods wait."""
    labels: Mapping[str, str] = {}
    """Labels in addition to those of the job's children."""
    annotations: Mapping[str, str] = {}
    """Annotations that are written with the object. A change of an annotation alone is no reason to write it."""
    due_in: float | None = None
    """Seconds until `companions` has to be called again although nothing happens to the job; None: not at all."""


class Grant(NamedTuple):
    """What a service account may do with the pods of one role. The engine writes it as a Role and a RoleBinding, and
    keeps to the pods that the job controls (`steps/rights.py`)."""

    name: str
    """Of Role and RoleBinding."""
    account: str
    """The service account; empty while it is not known: the RoleBinding then stays as it is."""
    role: str
    """The replica type."""
    rules: Callable[[Sequence[str]], list[Json]]
    """Names of pods -> rules, each of them limited to these names. Not called without names."""
    labels: Mapping[str, str] = {}


class Mount(NamedTuple):
    """A volume and its mount path. The containers that get the variables mount it read-only."""

    name: str
    source: Json
    path: str


Environment: TypeAlias = Callable[[Role, int], Sequence[Json]]
"""(role, index) -> the `env` entries of one replica, in order. What replicas share is computed before, once per job."""


def no_variables(_role: Role, _index: int) -> Sequence[Json]:
    """The kind adds no variables."""
    return ()


class RoleAdditions(NamedTuple):
    """Additions to the pod template of one role."""

    command: Sequence[str] = ()
    """Command of the framework's container, used if the template has none."""
    args: Sequence[str] = ()
    """Arguments of `command`. They replace those of the template, which belong to the command of the image."""
    service_account: str = ""
    """Replaces the template's service account; empty: the template's."""
    mounts: Sequence[Mount] = ()
    init_containers: Sequence[Json] = ()
    """Appended to the init containers of the template."""


def no_additions(_role: Role) -> RoleAdditions:
    """The template is used as it is."""
    return RoleAdditions()


class PodAdditions(NamedTuple):
    """Additions to the pods of one job. They are computed once per plan; only `variables` differ by replica."""

    variables: Environment = no_variables
    in_all_containers: bool = True
    """Variables and mounts are added to every container. False: only to the framework's container (TFJob)."""
    of_role: Callable[[Role], RoleAdditions] = no_additions


Additions: TypeAlias = Callable[[Job, Options], PodAdditions]


def only_variables(environment: Callable[[Job, Options], Environment]) -> Additions:
    """Additions of kinds whose pods get variables only."""
    return lambda job, options: PodAdditions(environment(job, options))


class NameTaken(NamedTuple):
    """Reason and message of the event if an object of another owner has the name of a child. Format strings with fields
    `kind` and `name`, those of the object, and `job`."""

    reason: str = "FailedCreate{kind}"
    message: str = "Error creating: {kind} {name} already exists and does not belong to {job}"

    def event(self, kind: str, name: str, job: str) -> Event:
        """The Warning about the object of that kind and name; `job` is kind and name of the job."""
        about = {"kind": kind, "name": name, "job": job}
        return Event("Warning", self.reason.format_map(about), self.message.format_map(about))


def variable(name: str, value: object) -> Json:
    """One entry of a container's `env`."""
    return {"name": name, "value": str(value)}


def numbered(before: str, count: int, after: str, separator: str = ",") -> str:
    """`before0after,before1after,…` for `count` indices. One `join`, so that 100,000 replicas take milliseconds."""
    return before + f"{after}{separator}{before}".join(map(str, range(count))) + after if count else ""


def everywhere(_job: Job, _role: Role, _index: int) -> bool:
    """Every replica needs a service, because the others connect to its address."""
    return True


def no_rules(_job: Job, _fields: Fields) -> None:
    """The kind has no rules beyond the common ones."""


def no_warnings(_job: Job) -> Sequence[str]:
    """The kind has no fields to warn about."""
    return ()


def no_companions(_job: Job, _seen: Snapshot) -> Sequence[Companion]:
    """The kind has no companions."""
    return ()


def no_rank(_job: Job, _role: Role, _index: int) -> int | None:
    """The kind gives its replicas no rank."""
    return None


def no_failure(_job: Job, _role: Role, _tally: Tally) -> bool:
    """The kind tolerates no failed replica."""
    return False


def may_outlive(_job: Job) -> str:
    """Replicas of the kind may run on after another has failed."""
    return "its replicas run on when another one fails"


def all_fail(_job: Job) -> str:
    """All replicas are ranks of one collective, and fail when one of them does."""
    return ""


def no_eviction(_job: Job, _role: Role, _count: int) -> str:
    """The kind reports evicted pods as failed ones."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How objects and events name the jobs of a kind."""

    resource: Resource
    """That of the job, in the version that owner references and events name."""
    controller: str
    """Name of the controller, source of its events, and value of the label of all children that names it:
    `pytorchjob-controller`. It is part of every selector and must equal upstream's, or the pods of running jobs are not
    found after switching operators."""
    name_taken: NameTaken = NameTaken()  # noqa: RUF009  # immutable

    @property
    def kind(self) -> str:
        return self.resource.kind

    def owned_by_namesake(self, found: Metadata, job: str) -> bool:
        """Whether a job of this kind and name controls the object. If it is a previous one, the garbage collector
        deletes the object."""
        owner = found.controller
        return owner is not None and (owner.kind, owner.name) == (self.kind, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(Words):
    """Everything that differs between kinds of jobs."""

    name: str
    """The metric label `framework`: `pytorch`."""
    replica_specs: str
    """The field of the spec that maps replica types to pod templates: `pytorchReplicaSpecs`."""
    roles: Mapping[str, Replicas]
    """Replica types in canonical spelling. Pods are created and examined in this order, leaders first."""
    required_roles: tuple[str, ...] = ()
    container: str
    """Name of the container that runs the framework. Its ports and its exit code are read. Empty: the first one,
    whatever its name."""
    port_name: str
    """Empty: containers get no default port."""
    port: int
    container_rule: str = "must have at least one container with name {}"
    """Validation message for a template without that container."""
    restart_policy: str = "Never"
    """The default of roles whose spec has none."""
    managers: tuple[str, ...] = (THIS_OPERATOR,)
    """The values of `spec.runPolicy.managedBy` that mean this operator."""
    clean_pod_policy_in_spec: bool = False
    """`spec.cleanPodPolicy` is used if `spec.runPolicy` has none."""

    is_master: Callable[[Job, Role, int], bool]
    """Which replicas carry the label job-role=master."""
    needs_service: Callable[[Job, Role, int], bool] = everywhere
    """Whether other replicas connect to this one. With service mode `leader` only these replicas get a service."""
    rank: Callable[[Job, Role, int], int | None] = no_rank
    """The rank of a replica among all replicas of the job, by which users and frameworks name it."""
    additions: Additions
    """What is added to pod templates: variables, command, service account, volumes, init containers."""
    companion_kinds: tuple[CompanionKind, ...] = ()
    companions: Callable[[Job, Snapshot], Sequence[Companion]] = no_companions
    """The companions that an active job should have, given the existing ones and the pods. Called on every
    reconcile."""
    grant: Callable[[Job, Snapshot], Grant | None] | None = None
    """The rights of a service account of the job; None: the kind needs none. `companion_kinds` has Role and
    RoleBinding."""
    progress: Callable[[Job, Mapping[str, Tally]], Progress]
    """Whether the job runs or has succeeded, by the tallies of all its roles."""
    tolerates: Callable[[Job, Role, Tally], bool] = no_failure
    """Whether failed replicas of this role, whose pods are tallied, do not fail the job (TFJob `enableDynamicWorker`).
    A permanent exit code under policy ExitCode fails it nevertheless."""
    support_roles: tuple[str, ...] = ()
    """Roles whose pods only serve others and do not end by themselves (MPI workers). Their counters are cleared at the
    end of the job."""
    outlives: Callable[[Job], str] = may_outlive
    """Which replicas run on after another has failed, so that the job cannot restart in place, as a clause; empty:
    none."""
    eviction: Callable[[Job, Role, int], str] = no_eviction
    """(job, role, number of evicted pods) -> message of the condition Failed with reason Evicted; empty: a failure like
    any other."""
    template_warnings: str = "SetPodTemplate"
    """Start of the reasons of events about fields of a pod template that are overwritten or keep their value, such as
    SetPodTemplate`RestartPolicy`."""
    adopts: bool = True
    """Whether a pod or service without owner that has the labels and the name of a replica becomes the job's."""
    rules: Callable[[Job, Fields], None] = no_rules
    """Validation beyond the common rules."""
    warnings: Callable[[Job], Sequence[str]] = no_warnings
    """Messages for the user who creates or updates the job, which do not refuse it."""
    texts: Callable[[Job], Texts]

    spec_fields: Mapping[str, Json] = field(default_factory=dict)
    """OpenAPI schemas of the spec fields that only this kind has."""
    required_fields: tuple[str, ...] = ()
    """The required fields among `spec_fields`."""
    scale: bool = False
    """The CRD has the scale subresource; replicaStatuses then contain the selector."""
    deleted_as: str = "Pod"
    """Suffix of the event reason for a job deleted after its time to live, as upstream: SuccessfulDelete`Pod` or
    `Job`."""


def selector(kind: Words, job_name: str) -> dict[str, str]:
    """The labels of all pods and services of a job (training-operator `GenLabels`)."""
    return {OPERATOR_NAME: kind.controller, JOB_NAME: job_name.replace("/", "-")}
