"""Builders of test objects with short arguments: jobs, pods, services, snapshots."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import msgspec

from trainop.engine.actions import Action, Content, DeleteJob, Ensure, How, Need, Patch, Plan, Remove
from trainop.engine.plan import plan
from trainop.engine.seen import Options, Pod, Service, Snapshot
from trainop.engine.status import format_time
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import PODS, SERVICES, Json, Resource, Unstructured, owner_reference

NOW = datetime(2025, 6, 1, 12, 0, 0, tzinfo=UTC)
UID = "uid-j"
L = "training.kubeflow.org/"


def at(seconds: float) -> datetime:
    """A moment relative to `NOW`."""
    return NOW + timedelta(seconds=seconds)


def stamp(seconds: float = 0) -> str:
    return format_time(at(seconds))


def template(**spec: Any) -> Json:
    return {"spec": {"containers": [{"name": "pytorch", "image": "img"}], **spec}}


def replica(replicas: int | None = 1, policy: str | None = None, tmpl: Json | None = None) -> Json:
    entry: Json = {"template": copy.deepcopy(tmpl or template())}
    if replicas is not None:
        entry["replicas"] = replicas
    if policy is not None:
        entry["restartPolicy"] = policy
    return entry


def make_job(
    master: int | None = 1,
    worker: int | None = 2,
    *,
    policy: str | None = None,
    name: str = "j",
    run: Json | None = None,
    spec: Json | None = None,
    status: Json | None = None,
    annotations: dict[str, str] | None = None,
    tmpl: Json | None = None,
    uid: str = UID,
) -> Json:
    """A raw PyTorchJob; a role given as None is left out."""
    roles = {"Master": master, "Worker": worker}
    replicas = {type_: replica(count, policy, tmpl) for type_, count in roles.items() if count is not None}
    metadata: Json = {"name": name, "namespace": "ns", "uid": uid, "generation": 1, "resourceVersion": "1"}
    if annotations:
        metadata["annotations"] = annotations
    job: Json = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {"pytorchReplicaSpecs": replicas, **({"runPolicy": run} if run else {}), **(spec or {})},
    }
    if status is not None:
        job["status"] = status
    return job


def labels(role: str, index: int | str, job: str = "j") -> dict[str, str]:
    return {
        f"{L}operator-name": "pytorchjob-controller",
        f"{L}job-name": job,
        f"{L}replica-type": role,
        f"{L}replica-index": str(index),
    }


def metadata(role: str, index: int | str, job: str = "j", owner: str | None = UID, **fields: Any) -> Json:
    name = f"{job}-{role}-{index}"
    owners = [owner_reference("kubeflow.org/v1", "PyTorchJob", job, owner)] if owner else []
    return {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": stamp(),
        "labels": labels(role, index, job),
        "ownerReferences": owners,
        **fields,
    }


def make_pod(
    role: str = "worker",
    index: int | str = 0,
    phase: str = "Running",
    *,
    exit_code: int | None = None,
    restarts: int = 0,
    reason: str = "",
    dying: bool = False,
    status: Json | None = None,
    **fields: Any,
) -> Pod:
    """`exit_code` is that of the container `pytorch`; `fields` go to the metadata, `owner` None makes an orphan."""
    if dying:
        fields["deletionTimestamp"] = stamp(30)
    state: Json = {"terminated": {"exitCode": exit_code}} if exit_code is not None else {}
    containers = [{"name": "pytorch", "restartCount": restarts, "state": state}]
    raw: Json = {
        "metadata": metadata(role, index, **fields),
        "status": {
            "phase": phase,
            "reason": reason,
            "containerStatuses": containers if exit_code is not None or phase == "Running" else [],
            **(status or {}),
        },
    }
    return msgspec.convert(raw, Pod)


def make_service(role: str = "worker", index: int | str = 0, **fields: Any) -> Service:
    return msgspec.convert({"metadata": metadata(role, index, **fields)}, Service)


def services_of(pods: Iterable[Pod]) -> list[Service]:
    """One service for each pod, of the same name."""
    return [Service(msgspec.structs.replace(pod.metadata, deletion_timestamp=None)) for pod in pods]


def see(
    job: Json,
    pods: Iterable[Pod] = (),
    services: Iterable[Service] | None = None,
    *,
    now: datetime = NOW,
    options: Options | None = None,
) -> Snapshot:
    """Services default to one for each pod."""
    pods = tuple(pods)
    found = services_of(pods) if services is None else services
    return Snapshot(Unstructured(job), pods, tuple(found), now, options or Options())


def plan_for(*args: Any, **kwargs: Any) -> Plan:
    return plan(PYTORCH, see(*args, **kwargs))


def condition(type_: str, status: str = "True", reason: str | None = None, message: str = "", when: float = 0) -> Json:
    return {
        "type": type_,
        "status": status,
        "reason": reason or f"PyTorchJob{type_}",
        "message": message,
        "lastUpdateTime": stamp(when),
        "lastTransitionTime": stamp(when),
    }


def status_of(*conditions: Json, start: float | None = 0, **fields: Any) -> Json:
    """A stored status; `start` None has no startTime."""
    status: Json = {"conditions": list(conditions), **fields}
    if start is not None:
        status["startTime"] = stamp(start)
    return status


CREATED = condition("Created", message="PyTorchJob j is created.")
RUNNING = condition("Running", message="PyTorchJob j is running.")


def conditions_of(status: Json | None) -> list[tuple[str, str, str]]:
    """The conditions of a status as (type, status, reason)."""
    assert status is not None
    return [(entry["type"], entry["status"], entry["reason"]) for entry in status["conditions"]]


# Actions of a plan, by what they do --------------------------------------------------------------------------------


def pod_created(action: Action) -> TypeGuard[Ensure]:
    return isinstance(action, Ensure) and action.resource == PODS


def service_created(action: Action) -> TypeGuard[Ensure]:
    return isinstance(action, Ensure) and action.resource == SERVICES and action.how is How.POST


def replica_created(action: Action) -> TypeGuard[Ensure]:
    return pod_created(action) or service_created(action)


def applied(action: Action) -> TypeGuard[Ensure]:
    return isinstance(action, Ensure) and action.how is How.APPLY


def group_created(action: Action) -> TypeGuard[Ensure]:
    return isinstance(action, Ensure) and action.need is Need.PODS


def group_updated(action: Action) -> TypeGuard[Patch]:
    return isinstance(action, Patch) and action.need is Need.PODS


def group_deleted(action: Action) -> TypeGuard[Remove]:
    return isinstance(action, Remove) and action.resource.kind == "PodGroup"


def pod_deleted(action: Action) -> TypeGuard[Remove]:
    return isinstance(action, Remove) and action.resource == PODS


def service_deleted(action: Action) -> TypeGuard[Remove]:
    return isinstance(action, Remove) and action.resource == SERVICES


def names(plan_: Plan, what: Callable[[Action], bool]) -> list[str]:
    """Names of the objects of all these actions, in order."""
    return [action.name for action in plan_.actions if what(action) and not isinstance(action, DeleteJob)]


def apply(resource: Resource, manifest: Json, uid: str = "", *, essential: bool = True, posted: bool = False) -> Ensure:
    """The action that applies a companion."""
    need, name = Need.JOB if essential else Need.NONE, manifest["metadata"]["name"]
    return Ensure(resource, name, manifest=manifest, how=How.APPLY, need=need, uid=uid, posted=posted)


def create_once(
    resource: Resource, manifest: Json, content: Content | None = None, *, posted: bool = False, template: str = ""
) -> Ensure:
    """The action that creates a companion which is never rewritten."""
    name = manifest["metadata"]["name"]
    return Ensure(resource, name, manifest=manifest, how=How.FILL, content=content, posted=posted, template=template)


def encoded(action: Ensure) -> bytes:
    """The manifest of a pod or service, as it is sent."""
    assert action.encode is not None
    return action.encode()


def manifest_of(action: Ensure) -> Json:
    """The manifest as the API server decodes it."""
    manifest: Json = json.loads(action.encode()) if action.encode else action.manifest
    assert manifest["metadata"]["name"] == action.name
    return manifest


def written(plan_: Plan) -> Json:
    """The status that the plan writes."""
    assert plan_.status is not None
    return plan_.status
