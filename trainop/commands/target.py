"""Finds the job that a command names, and its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from trainop.commands.connection import Connection
from trainop.engine.framework import JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE
from trainop.engine.kind import Kind
from trainop.errors import StartError
from trainop.kinds.dijob.names import REPLICA_TYPE as DI_REPLICA_TYPE
from trainop.programs.schemes import all_kinds
from trainop.run.dumper import rank_of
from trainop.runtime import ApiError, ForbiddenError, Json, NotFoundError, Resource


@dataclass(frozen=True, slots=True)
class JobType:
    """A resource of jobs, and its kinds: MPIJobs have one for each transport."""

    resource: Resource
    kinds: Sequence[Kind]

    @property
    def selector(self) -> str:
        """What a label selector for the children of job `{name}` starts with."""
        return self.kinds[0].children.job_label

    def has_name(self, text: str) -> bool:
        """Whether a user may mean it by `text`: kind, singular, plural, or plural with group."""
        resource = self.resource
        return text.lower() in {resource.kind.lower(), resource.plural, f"{resource.plural}.{resource.group}"}


def job_types() -> list[JobType]:
    """All resources of jobs, each once, in the version that is stored."""
    grouped: dict[tuple[str, str], list[Kind]] = {}
    for kind in all_kinds():
        grouped.setdefault((kind.resource.group, kind.resource.kind), []).append(kind)
    return [JobType(kinds[0].source, kinds) for kinds in grouped.values()]


@dataclass(frozen=True, slots=True)
class Target:
    """One job of the cluster."""

    type: JobType
    raw: Json

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def title(self) -> str:
        return f"{self.type.resource.kind} {self.name}"

    @property
    def pod_selector(self) -> str:
        """Selects the pods of the job, those of an MPIJob's batch Job included."""
        return f"{self.type.selector}={self.name.replace('/', '-')}"


async def find_job(connection: Connection, text: str, namespace: str) -> Target:
    """The job that `text` names: `NAME`, `KIND/NAME` or `PLURAL.GROUP/NAME`. Raises `StartError` if there is none, or
    several kinds have one; `ApiError` if the API server cannot be asked."""
    prefix, _, name = text.rpartition("/")
    types = [each for each in job_types() if not prefix or each.has_name(prefix)]
    if not types:
        known = ", ".join(sorted(each.resource.kind.lower() for each in job_types()))
        raise StartError(f"{prefix!r} is no kind of job; known are: {known}")
    answers = await asyncio.gather(*(_try_get(connection, each, name, namespace) for each in types))
    found = [answer for answer in answers if isinstance(answer, Target)]
    if len(found) == 1:
        return found[0]
    if found:
        ways = ", ".join(f"{each.type.resource.kind.lower()}/{name}" for each in found)
        raise StartError(f"several jobs are named {name} in namespace {namespace}; name one of: {ways}")
    if denied := [str(answer) for answer in answers if isinstance(answer, ForbiddenError)]:
        raise StartError(f"no job {name} was found in namespace {namespace}, and some may not be read: {denied[0]}")
    if prefix:
        raise StartError(f"no {types[0].resource.kind} {name} in namespace {namespace} (choose another with -n)")
    raise StartError(f"no job {name} in namespace {namespace} (choose another with -n; `trainop ps -A` lists all)")


async def _try_get(connection: Connection, job_type: JobType, name: str, namespace: str) -> Target | ApiError | None:
    """None if there is none, or its CRD is not installed."""
    try:
        return Target(job_type, await connection.client.get(job_type.resource, name, namespace))
    except NotFoundError:
        return None
    except ForbiddenError as error:
        return error


# Replicas -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod of a job."""

    pod: Json
    role: str
    """In lower case, such as `worker`; empty if the labels do not say."""
    index: int | None
    rank: int | None
    """As in the variables of its first container."""

    @property
    def pod_name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def name(self) -> str:
        """Short: `worker-1`, `launcher`; the name of the pod where its labels do not say."""
        if not self.role:
            return self.pod_name
        return self.role if self.index is None else f"{self.role}-{self.index}"

    @property
    def order(self) -> tuple[str, int, str]:
        return self.role, -1 if self.index is None else self.index, self.pod_name

    def statuses(self) -> list[Json]:
        """The statuses of its containers, init containers excluded."""
        return list((self.pod.get("status") or {}).get("containerStatuses") or ())

    @property
    def first_failure(self) -> str:
        """When its first container with an exit code other than 0 ended, RFC 3339; empty if none did."""
        ends = (_last_end(each) for each in self.statuses())
        return min((str(end.get("finishedAt") or "~") for end in ends if end.get("exitCode")), default="")


def _last_end(status: Json) -> Json:
    for state in (status.get("state"), status.get("lastState")):
        if state and state.get("terminated"):
            return dict(state["terminated"])
    return {}


def replica_of(pod: Json) -> Replica:
    """Reads role and index from the labels of a pod, and its rank from its variables."""
    labels = pod["metadata"].get("labels") or {}
    role = labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or labels.get(DI_REPLICA_TYPE) or ""
    index = labels.get(REPLICA_INDEX, "")
    number = int(index) if index.isdecimal() and len(index) < 10 else None
    if role == "launcher":  # it is the only one, and its name has no index
        number = None
    return Replica(pod, role, number, rank_of(pod))
