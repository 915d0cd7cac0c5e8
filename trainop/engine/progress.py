"""Progress: what the pods of a job get so that they can report it (Kubeflow Trainer KEP-2779).

A pod gets three variables and one volume, with a token for this one job and the certificates with which the endpoint is
verified. These are in an annotation of the pod, which the volume shows as a file: no further object per job has to be
made, kept and watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.runtime import Json, Metadata, Resource
from trainop.runtime.lowlevel import cut, read_time

PROGRESS = ANNOTATION_PREFIX + "progress"
"""Annotation of a job: `true`, its pods can report progress, or `false`. Otherwise the operator's `--progress`."""
AUTHORITY = ANNOTATION_PREFIX + "progress-ca"
"""Annotation of a pod: the CA certificates (PEM) of the endpoint."""
TRAINER_STATUS = "trainerStatus"
"""The field of the status that holds the last report. A field manager of its own writes it."""
CHECKPOINT_STEP = "checkpoint_step"
"""The name of the metric: the step that the last checkpoint contains."""
CHECKPOINT_TIME = "checkpoint_time"
"""The name of the metric that the endpoint adds: when it first heard of that step, by the clock of the operator."""
VOLUME, FOLDER = "kubeflow-trainer-token", "/var/run/secrets/kubeflow/trainer"
TOKEN_SECONDS = 3600
DEFAULT_ACCOUNT = "default"
"""The service account of pods that name none. A volume with a token needs it named, also where the admission plugin
that does so (ServiceAccount) is off."""

_TOKEN, _CERTIFICATES = "token", "ca.crt"  # names of files


@dataclass(frozen=True, slots=True)
class ProgressEndpoint:
    """Where the operator takes reports."""

    url: str
    """Scheme, host and port."""
    everywhere: bool = False
    """The pods of all jobs can report, but for those whose annotation says `false`."""
    authority: str = ""
    """The CA certificates (PEM); empty until they are made."""


ANY_ENDPOINT = ProgressEndpoint("", everywhere=True)
"""One that takes the reports of all jobs: what is still wrong beside it is wrong wherever the job runs."""


def status_path(resource: Resource, namespace: str, name: str) -> str:
    """The path to which a job's reports are sent: that of its status."""
    return resource.path(namespace, name, "status")


def audience_of(resource: Resource, namespace: str, name: str) -> str:
    """The audience of the tokens that are good for reports of this job."""
    return status_path(resource, namespace, name).removeprefix("/apis/")


def find_metric(reported: object, name: str) -> object:
    """The value of a metric in a value of `trainerStatus`; None if it has none."""
    metrics = reported.get("metrics") if isinstance(reported, dict) else None
    for metric in metrics if isinstance(metrics, list) else ():
        if isinstance(metric, dict) and metric.get("name") == name:
            return metric.get("value")
    return None


def read_checkpoint_time(status: Json) -> datetime | None:
    """When a job with this status has reported its last checkpoint; None if it has reported none."""
    reported = status.get(TRAINER_STATUS)
    found = find_metric(reported, CHECKPOINT_TIME) if find_metric(reported, CHECKPOINT_STEP) is not None else None
    return read_time(found) if isinstance(found, str) else None


def is_asked(annotations: Mapping[str, str], endpoint: ProgressEndpoint) -> bool:
    """Whether the pods of a job with these annotations can report."""
    return {"true": True, "false": False}.get(annotations.get(PROGRESS, ""), endpoint.everywhere)


def find_doubt(annotations: Mapping[str, str], endpoint: ProgressEndpoint | None) -> str:
    """Why the annotation has not the effect that the user expects; empty if it has."""
    given = annotations.get(PROGRESS)
    if given is None or given == "false":
        return ""
    if given != "true":
        return f'metadata.annotations[{PROGRESS}]: "{cut(given, 64)}" is ignored: it must be "true" or "false"'
    if endpoint is None:
        return (
            f"metadata.annotations[{PROGRESS}]: the pods cannot report progress, because this operator takes no"
            " reports: its administrator has to set --progress-bind-address (component progress)"
        )
    return ""


@dataclass(frozen=True, slots=True)
class ProgressAccess:
    """What the pods of one job get."""

    endpoint: ProgressEndpoint
    resource: Resource
    namespace: str
    name: str

    @property
    def annotations(self) -> dict[str, str]:
        """Of each pod."""
        return {AUTHORITY: self.endpoint.authority}

    def add_to(self, spec: Json, container: str = "") -> Json:
        """The pod spec, in which the container of that name, or else the first, can report. A pod that has a volume of
        the same name is left as it is, and so are fields of a wrong type. The argument is not changed."""
        volumes, containers = _entries(spec, "volumes"), _entries(spec, "containers")
        if any(_name_of(volume) == VOLUME for volume in volumes) or not any(map(_name_of, containers)):
            return spec
        names = [_name_of(each) for each in containers]
        at = names.index(container) if container in names else 0
        containers[at] = self._add_to_container(containers[at])
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT
        changed = {"volumes": [*volumes, self._volume()], "containers": containers, "serviceAccountName": account}
        return {**spec, **changed}

    def _add_to_container(self, container: Json) -> Json:
        mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
        mounts = [*_entries(container, "volumeMounts"), mount]
        return {**container, "env": [*_entries(container, "env"), *self._variables()], "volumeMounts": mounts}

    def _variables(self) -> list[Json]:
        found = {
            "KUBEFLOW_TRAINER_SERVER_URL": self.endpoint.url + status_path(self.resource, self.namespace, self.name),
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": f"{FOLDER}/{_CERTIFICATES}",
            "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{FOLDER}/{_TOKEN}",
        }
        return [{"name": name, "value": value} for name, value in found.items()]

    def _volume(self) -> Json:
        audience = audience_of(self.resource, self.namespace, self.name)
        token = {"path": _TOKEN, "audience": audience, "expirationSeconds": TOKEN_SECONDS}
        field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{AUTHORITY}']"}
        certificates = {"items": [{"path": _CERTIFICATES, "fieldRef": field}]}
        sources = [{"serviceAccountToken": token}, {"downwardAPI": certificates}]
        return {"name": VOLUME, "projected": {"sources": sources}}


def access_of(job: Metadata, resource: Resource, endpoint: ProgressEndpoint | None) -> ProgressAccess | None:
    """What the pods of the job get; None if it does not ask for it, or nobody takes reports."""
    if endpoint is None or not is_asked(job.annotations, endpoint):
        return None
    return ProgressAccess(endpoint, resource, job.namespace, job.name)


def _name_of(entry: object) -> object:
    return entry.get("name") if isinstance(entry, dict) else None


def _entries(owner: object, name: str) -> list[Any]:
    """A copy of a list; empty if it is none."""
    found = owner.get(name) if isinstance(owner, dict) else None
    return [*found] if isinstance(found, list | tuple) else []
