"""The pods of a DIJob, built in the same way for the operator and for di-server.

Templates are raw JSON, and everything in them that is not listed here is kept. Nothing in a template raises an error: a
field of a wrong type is left as it is, and the API server refuses the pod. Source: DI-orchestrator v0.2.2
`utils/replicas_util.go`, `utils/util.go`, `controllers/dijob.go`, `server/http/dijob.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainop.engine.checkpoint import raise_grace
from trainop.engine.extensions import read_checkpoint
from trainop.engine.fields import as_object
from trainop.engine.framework import variable
from trainop.engine.manifests import keep_log_ends
from trainop.engine.seen import FALLBACK
from trainop.kinds.dijob.names import (
    CONTROLLER,
    CONTROLLER_NAME,
    COORDINATOR_VARIABLE,
    DDP_MASTER,
    DDP_TYPE,
    DDP_WORKER,
    DIJOBS,
    GPU,
    GPU_PORT_PREFIX,
    GROUP,
    GROUP_NAME,
    JOB_NAME,
    LOCAL_WORLD_SIZE,
    MAIN_CONTAINER,
    MAIN_PORT,
    MASTER_ADDRESS,
    MASTER_PORT,
    MASTER_PORT_NAME,
    MASTER_PORT_VARIABLE,
    NAME_VARIABLE,
    NAMESPACE_VARIABLE,
    POD_NAME,
    REPLICA_TYPE,
    SERVER_VARIABLE,
    START_RANK,
    WORLD_SIZE,
    Role,
    coordinator_name,
    default_port,
    url,
)
from trainop.runtime import PODS, Json

_KEPT = frozenset({"labels", "annotations"})
"""Metadata of a template that its pods get. A finalizer, which nobody removes, would keep a deleted pod for ever."""

MAX_GPUS = 1024
"""Of one pod, as far as it gets ports: an absurd request must not cost memory."""


class JobFacts(NamedTuple):
    """What the pods of a DIJob take from it, besides their template."""

    namespace: str
    name: str
    uid: str
    priority_class: str = ""
    volumes: Sequence[Any] = ()
    grace: int = 0
    """The least grace period of the pods in seconds, by the annotation checkpoint-grace."""

    @property
    def owner(self) -> Json:
        """The owner reference of pods and services."""
        identity = {"apiVersion": DIJOBS.api_version, "kind": DIJOBS.kind, "name": self.name, "uid": self.uid}
        return {**identity, "controller": True}


class Resources(NamedTuple):
    """Quantities requested for the main container; empty: those of the template."""

    cpu: str = ""
    memory: str = ""
    gpus: str = ""


class Place(NamedTuple):
    """The place of a pod in its group of ddp learners."""

    world_size: int
    gpus: int
    """Of this pod."""
    start_rank: int
    aggregator: Json
    """Owner reference to the aggregator, see `aggregator_owner`."""
    master: str = ""
    """Name of the first pod; empty for the first pod itself."""
    type: str = ""
    """`DDP_MASTER` or `DDP_WORKER`; empty if the group is one pod."""


class PodOptions(NamedTuple):
    """Settings of the creating process."""

    server_url: str
    """`--server-address`, verbatim."""
    ports_by_rank: bool = False
    """Pods of a ddp group other than the first publish the main port plus their global rank, which is where DI-engine's
    processes listen. By default they publish the local index, as upstream."""
    termination_message_policy: str = FALLBACK
    """Of containers whose template names none."""


def read_job(raw: Json) -> JobFacts:
    """The facts of a raw DIJob; fields of a wrong type count as absent."""
    metadata, spec = as_object(raw.get("metadata")), as_object(raw.get("spec"))
    priority, volumes = spec.get("priorityClassName"), spec.get("volumes")
    return JobFacts(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        priority_class=priority if isinstance(priority, str) else "",
        volumes=volumes if isinstance(volumes, list) else (),
        grace=read_checkpoint(_texts(metadata.get("annotations"))).grace,
    )


def _texts(given: object) -> dict[str, str]:
    return {name: value for name, value in as_object(given).items() if isinstance(value, str)}


def template_of(raw: Json, role: Role) -> Json | None:
    """The pod template of a role in a raw DIJob, or of the aggregator in a raw AggregatorConfig; None if there is
    none. Ddp learners have the learner's."""
    section = Role.LEARNER if role is Role.DDP_LEARNER else role
    template = as_object(as_object(raw.get("spec")).get(section.value)).get("template")
    return template if isinstance(template, dict) else None


def aggregator_owner(name: str, uid: str) -> Json:
    """The second owner reference of ddp learners."""
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": name, "uid": uid, "controller": False}


# Pods -----------------------------------------------------------------------------------------------------------------


def build_pod(
    job: JobFacts,
    role: Role,
    template: Json,
    options: PodOptions,
    *,
    suffix: str = "",
    resources: Resources = Resources(),  # noqa: B008  # immutable
    place: Place | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """The pod of a role. `suffix` is the random part of its name, which only a coordinator has not; `place` is that of
    a ddp learner; `annotations` are added to those of the template."""
    name = coordinator_name(job.name) if role is Role.COORDINATOR else f"{job.name}-{role.value}-{suffix}"
    spec = {**as_object(template.get("spec"))}
    port = main_port(spec) or role.default_port
    variables = _variables(job, role, name, port, options)
    if place is not None:
        variables |= _ddp_variables(place)
        resources = resources._replace(gpus=str(place.gpus))
    published = port + place.start_rank if place is not None and options.ports_by_rank else port
    if role is Role.COORDINATOR and not spec.get("restartPolicy"):
        spec["restartPolicy"] = "Never"
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    if job.volumes and role is not Role.AGGREGATOR and isinstance(spec.get("volumes") or [], list):
        spec["volumes"] = [*(spec.get("volumes") or ()), *job.volumes]
    if isinstance(spec.get("containers"), list):
        containers = [_with_variables(container, variables) for container in spec["containers"]]
        at = main_place(containers)
        if at is not None:
            main = _with_resources(containers[at], resources)
            containers[at] = _with_ports(main, _container_ports(published, place))
        spec["containers"] = containers
    metadata = _metadata(job, role, name, template, place)
    if annotations:
        metadata["annotations"] = {**as_object(metadata.get("annotations")), **annotations}
    kept = keep_log_ends(raise_grace(spec, job.grace), options.termination_message_policy)
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata, "spec": kept}


def ddp_place(gpus: Sequence[int], index: int, aggregator: Json, master: str = "") -> Place:
    """The place of pod `index` in a group; `gpus` is the result of `split`, and `master` the name of the first pod."""
    type_ = (DDP_WORKER if index else DDP_MASTER) if len(gpus) > 1 else ""
    return Place(sum(gpus), gpus[index], sum(gpus[:index]), aggregator, master if index else "", type_)


def main_port(spec: Json) -> int | None:
    """The port `di-port` of the main container; None if it has none."""
    containers = spec.get("containers")
    at = main_place(containers) if isinstance(containers, list) else None
    ports = containers[at].get("ports") if containers and at is not None else None
    for port in ports if isinstance(ports, list) else ():
        number = port.get("containerPort") if isinstance(port, dict) and port.get("name") == MAIN_PORT else None
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    return None


def pod_url(pod: Json) -> str:
    """The address of a pod that `build_pod` made, or that the API server returned."""
    metadata = pod["metadata"]
    port = main_port(as_object(pod.get("spec"))) or default_port(as_object(metadata.get("labels")))
    return url(metadata["name"], metadata["namespace"], port)


def _metadata(job: JobFacts, role: Role, name: str, template: Json, place: Place | None) -> Json:
    given = {field: value for field, value in as_object(template.get("metadata")).items() if field in _KEPT}
    labels = {GROUP_NAME: GROUP, JOB_NAME: job.name.replace("/", "-"), CONTROLLER_NAME: CONTROLLER}
    labels |= {REPLICA_TYPE: role.value, POD_NAME: name}
    owners = [job.owner]
    if place is not None:
        owners.append(place.aggregator)
        if place.type:
            labels[DDP_TYPE] = place.type
    own = {"name": name, "namespace": job.namespace, "ownerReferences": owners}
    return {**given, **own, "labels": {**as_object(given.get("labels")), **labels}}


def _variables(job: JobFacts, role: Role, name: str, port: int, options: PodOptions) -> dict[str, str]:
    variables = {
        role.port_variable: str(port),
        NAMESPACE_VARIABLE: job.namespace,
        NAME_VARIABLE: name,
        SERVER_VARIABLE: options.server_url,
    }
    if role is Role.COORDINATOR:
        variables[COORDINATOR_VARIABLE] = url(name, job.namespace, port)
    return variables


def _ddp_variables(place: Place) -> dict[str, str]:
    return {
        WORLD_SIZE: str(place.world_size),
        LOCAL_WORLD_SIZE: str(place.gpus),
        START_RANK: str(place.start_rank),
        MASTER_ADDRESS: place.master or "localhost",
        MASTER_PORT_VARIABLE: str(MASTER_PORT),
    }


def _with_variables(container: Any, variables: Mapping[str, str]) -> Any:
    """The container with the variables: in the place of the user's of the same name, else appended in their order."""
    env = container.get("env") or [] if isinstance(container, dict) else None
    if not isinstance(env, list):
        return container
    left = dict(variables)
    written: list[Any] = []
    for entry in env:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in variables:
            written.append(entry)
        elif name in left:
            written.append(variable(name, left.pop(name)))
    return {**container, "env": [*written, *(variable(name, value) for name, value in left.items())]}


def _with_resources(container: Json, wanted: Resources) -> Json:
    values = {"cpu": wanted.cpu, "memory": wanted.memory, GPU: wanted.gpus}
    given = {name: value for name, value in values.items() if value not in {"", "0"}}
    resources = container.get("resources") or {}
    if not given or not isinstance(resources, dict):
        return container
    both = {field: {**as_object(resources.get(field)), **given} for field in ("limits", "requests")}
    return {**container, "resources": {**resources, **both}}


def _container_ports(port: int, place: Place | None) -> list[tuple[str, int]]:
    """The ports of the main container by name; the first is its main port."""
    ports = [(MAIN_PORT, port)]
    if place is not None:
        ports += gpu_ports(port, place.gpus)
        if place.type == DDP_MASTER:
            ports.append((MASTER_PORT_NAME, MASTER_PORT))
    return ports


def gpu_ports(port: int, gpus: int) -> list[tuple[str, int]]:
    """The ports of the processes of a ddp learner but the first, which has the main port."""
    return [(f"{GPU_PORT_PREFIX}{index}", port + index) for index in range(1, min(gpus, MAX_GPUS))]


def _with_ports(container: Json, wanted: Sequence[tuple[str, int]]) -> Json:
    """The container with the ports. An entry of the template with the same name keeps its other fields."""
    given = container.get("ports") or []
    if not isinstance(given, list):
        return container
    left = dict(wanted)
    ports: list[Any] = []
    for entry in given:
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and name in left:
            ports.append({**entry, "containerPort": left.pop(name)})
        else:
            ports.append(entry)
    return {**container, "ports": [*ports, *({"name": name, "containerPort": port} for name, port in left.items())]}


def main_place(containers: Sequence[Any]) -> int | None:
    """The index of the main container."""
    for place, container in enumerate(containers):
        if isinstance(container, dict) and container.get("name") == MAIN_CONTAINER:
            return place
    return None
