"""A pod in the place of one that failed (DI-orchestrator v0.2.2 `server/http/pod.go`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainop.engine.fields import as_object
from trainop.engine.framework import variable
from trainop.kinds.dijob.gpus import gpus_of
from trainop.kinds.dijob.names import (
    LOCAL_WORLD_SIZE,
    MASTER_ADDRESS,
    NAME_VARIABLE,
    POD_NAME,
    WORLD_SIZE,
)
from trainop.kinds.dijob.pods import Resources, main_place
from trainop.runtime import PODS, Json

TOKEN_VOLUME = "kube-api-access-"  # noqa: S105  # a prefix
"""Starts the name of the volume that the API server adds for the service account's token."""

_ADDED = ("nodeName", "priority", "preemptionPolicy", "ephemeralContainers")
"""Fields of a spec that the API server, the scheduler or kubectl has added."""

_DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def recreate(
    pod: Json, suffix: str, annotations: Mapping[str, str], *, owners: list[Json] | None = None, master: str = ""
) -> Json:
    """The pod under a new name, without what the cluster has added. `owners` replaces its owner references, and
    `master` is the new name of the first pod of its ddp group, if that has changed."""
    given = as_object(pod.get("metadata"))
    name = f"{given['name'].rpartition('-')[0]}-{suffix}"
    variables = {NAME_VARIABLE: name} | ({MASTER_ADDRESS: master} if master else {})
    metadata = {
        "name": name,
        "namespace": given["namespace"],
        "labels": {**as_object(given.get("labels")), POD_NAME: name},
        "annotations": {**as_object(given.get("annotations")), **annotations},
        "ownerReferences": given.get("ownerReferences") if owners is None else owners,
    }
    spec = {field: value for field, value in as_object(pod.get("spec")).items() if field not in _ADDED}
    spec["containers"] = [_renew(each, variables) for each in spec.get("containers") or ()]
    if spec.get("initContainers"):
        spec["initContainers"] = [_renew(each, {}) for each in spec["initContainers"]]
    spec["volumes"] = [each for each in spec.get("volumes") or () if not _is_token(each.get("name"))]
    spec["tolerations"] = [each for each in spec.get("tolerations") or () if not _is_default(each)]
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata, "spec": spec}


def requested_of(pod: Json) -> Resources:
    """The resources that the group of a ddp learner was requested with, as far as the pod shows them."""
    containers = as_object(pod.get("spec")).get("containers") or []
    at = main_place(containers)
    resources = as_object(containers[at].get("resources")) if at is not None else {}
    limits = as_object(resources.get("limits"))
    gpus = variable_of(pod, WORLD_SIZE) or variable_of(pod, LOCAL_WORLD_SIZE) or str(gpus_of(resources))
    return Resources(str(limits.get("cpu", "")), str(limits.get("memory", "")), gpus)


def variable_of(pod: Json, name: str) -> str:
    """The value of a variable of the main container, or of the first if there is no main one; empty if it has none."""
    containers = as_object(pod.get("spec")).get("containers") or []
    chosen = containers[main_place(containers) or 0] if containers else {}
    for entry in chosen.get("env") or ():
        if entry.get("name") == name:
            return str(entry.get("value", ""))
    return ""


def _renew(container: Json, variables: Mapping[str, str]) -> Json:
    """The container without the mount of the token, and with new values of the variables that it has."""
    written: dict[str, Any] = {**container}
    env = [
        variable(each["name"], variables[each["name"]]) if each.get("name") in variables else each
        for each in container.get("env") or ()
    ]
    mounts = [each for each in container.get("volumeMounts") or () if not _is_token(each.get("name"))]
    return {**written, "env": env, "volumeMounts": mounts}


def _is_token(name: object) -> bool:
    return isinstance(name, str) and name.startswith(TOKEN_VOLUME)


def _is_default(toleration: Json) -> bool:
    return (
        toleration.get("key") in _DEFAULT_TOLERATIONS
        and toleration.get("operator") == "Exists"
        and toleration.get("effect") == "NoExecute"
        and toleration.get("tolerationSeconds") == 300
    )
