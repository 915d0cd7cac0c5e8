"""The objects of an MPIJob with transport ssh (mpi-operator `pkg/controller/mpi_job_controller.go`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from trainop.engine.checkpoint import add_responder, raise_grace
from trainop.engine.extensions import ANNOTATION_PREFIX, TRAIN_NODE, read_checkpoint
from trainop.engine.framework import (
    COMPLETION_INDEX,
    JOB_NAME,
    JOB_ROLE,
    OPERATOR_NAME,
    REPLICA_INDEX,
    Companion,
    variable,
)
from trainop.engine.manifests import keep_log_ends
from trainop.engine.progress import access_of
from trainop.engine.seen import Options, Snapshot
from trainop.kinds.mpi.hosts import (
    CONFIG_FOLDER,
    DISCOVER,
    HOSTFILE,
    config_companion,
    config_name,
    find_config,
    pace,
    running_hosts,
)
from trainop.kinds.mpi.ssh.gang import decorate
from trainop.kinds.mpi.ssh.job import DEFAULT_KEY_FOLDER, OPEN_MPI, WHEN_READY, SshJob
from trainop.kinds.mpi.ssh.replicas import Replicas
from trainop.kinds.mpi.ssh.variables import launcher_variables
from trainop.kinds.mpi.transport import MPI_V2
from trainop.runtime import Json, owner_reference

CONTROLLER = "mpi-operator"
AVOIDED = f"{ANNOTATION_PREFIX}avoided-nodes"
"""Annotation of pods that are kept away from bad nodes: the names of these."""
KEY_VOLUME, CONFIG_VOLUME = "ssh-auth", "mpi-job-config"
PRIVATE_KEY, PUBLIC_KEY = "ssh-privatekey", "ssh-publickey"
_KEY_FILES = ((PRIVATE_KEY, "id_rsa"), (PUBLIC_KEY, "id_rsa.pub"), (PUBLIC_KEY, "authorized_keys"))
REPLACEMENT = "Failed"
"""`podReplacementPolicy` of the launcher's Job, as mpi-operator after v0.8.0: none starts beside a former one."""

_IGNORE_DISRUPTIONS = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""The Job controller then does not count a disrupted pod towards `backoffLimit`."""

_PLACEHOLDER = msgspec.Raw(b"\0")
_encode = msgspec.json.Encoder().encode


def pod_labels(job_name: str) -> dict[str, str]:
    """The labels of all pods, by which the Service selects them."""
    return {OPERATOR_NAME: CONTROLLER, JOB_NAME: job_name}


def metadata(job: SshJob, name: object) -> Json:
    """The metadata of a child. The first label is upstream's, the others are those of the operator's caches."""
    owner = owner_reference(MPI_V2.api_version, MPI_V2.kind, job.name, job.metadata.uid)
    labels = {"app": job.name, **pod_labels(job.name)}
    return {"name": name, "namespace": job.metadata.namespace, "labels": labels, "ownerReferences": [owner]}


# Service, ConfigMap and Secret ----------------------------------------------------------------------------------------


def service_role(job: SshJob) -> str:
    """The label of the Service that tells which variant it is: the cache has no specs of services."""
    return "launcher-as-worker" if job.launcher_works else "worker"


def service(job: SshJob) -> Json:
    """The headless Service that gives launcher and workers their host names."""
    made = metadata(job, job.name)
    made["labels"][JOB_ROLE] = service_role(job)
    selector = pod_labels(job.name)
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": job.launcher_works}
    return {"apiVersion": "v1", "kind": "Service", "metadata": made, "spec": spec}


def secret(job: SshJob) -> Json:
    """The Secret with the job's key, without the key."""
    made = metadata(job, f"{job.name}-ssh")
    return {"apiVersion": "v1", "kind": "Secret", "metadata": made, "type": "kubernetes.io/ssh-auth"}


def _domain(job: SshJob, options: Options) -> str:
    suffix = f".{options.mpi_cluster_domain}" if options.mpi_cluster_domain else ""
    return f".{job.name}.{job.metadata.namespace}.svc{suffix}"


def hostfile(job: SshJob, options: Options) -> str:
    """One line per host, whatever the state of its pod."""
    slots = f" slots={job.slots}" if job.implementation == OPEN_MPI else f":{job.slots}"
    after = f"{_domain(job, options)}{slots}\n"
    first = [f"{job.launcher_name}{after}"] if job.launcher_works else []
    return "".join([*first, *(f"{job.name}-worker-{index}{after}" for index in range(job.workers))])


def discover_hosts(job: SshJob, running: Sequence[str], options: Options) -> str:
    """The script that prints the running hosts."""
    first = [job.launcher_name] if job.launcher_works else []
    return "".join(["#!/bin/sh\n", *(f"echo {name}{_domain(job, options)}\n" for name in (*first, *running))])


def config(job: SshJob, seen: Snapshot, *, settled: bool) -> Companion:
    """The ConfigMap with both files. `settled`: a newer list of running hosts is written at once."""
    text = discover_hosts(job, running_hosts(seen, job.workers), seen.options)
    script = pace(find_config(seen), text, seen.now, complete=settled)
    return config_companion(job.name, script, {HOSTFILE: hostfile(job, seen.options)})


# Pods -----------------------------------------------------------------------------------------------------------------


def _key_volume(job: SshJob) -> Json:
    """Only root needs the mode: the ssh client refuses a key that other users may read."""
    items = [{"key": key, "path": path} for key, path in _KEY_FILES]
    source: Json = {"secretName": f"{job.name}-ssh", "items": items}
    if job.key_folder.rstrip("/") == DEFAULT_KEY_FOLDER:
        source["defaultMode"] = 0o600
    return {"name": KEY_VOLUME, "secret": source}


def _pod(job: SshJob, replicas: Replicas, role: str, name: object, options: Options) -> tuple[Json, Json]:
    """Metadata (labels and annotations) and spec that launcher and workers have in common. The first container is a
    copy."""
    given = replicas.template.get("metadata") or {}
    progress = access_of(job.metadata, MPI_V2, options.progress)
    avoided = {AVOIDED: ",".join(job.avoidance.nodes)} if job.avoidance else {}
    annotations = {**(given.get("annotations") or {}), **(progress.annotations if progress else {}), **avoided}
    kept = {"annotations": annotations} if annotations else {}
    labels = {**(given.get("labels") or {}), **pod_labels(job.name), JOB_ROLE: role}
    spec = {**replicas.template["spec"], "hostname": name, "subdomain": job.name}
    if spec.get("hostNetwork") is True:
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    spec["restartPolicy"] = replicas.restart_policy
    if job.avoidance is not None:
        spec = job.avoidance.add_to(spec)
    first, *others = spec["containers"]
    mounts = [*(first.get("volumeMounts") or ()), {"name": KEY_VOLUME, "mountPath": job.key_folder}]
    spec["containers"] = [{**first, "volumeMounts": mounts}, *others]
    spec["volumes"] = [*(spec.get("volumes") or ()), _key_volume(job)]
    own = {"labels": labels, **kept}
    decorate(options.gang, job, own, spec)
    return own, spec


def _finish(job: SshJob, spec: Json, options: Options) -> Json:
    """The spec with what depends on the operator's settings and on annotations that may change."""
    progress = access_of(job.metadata, MPI_V2, options.progress)
    spec = raise_grace(progress.add_to(spec) if progress else spec, read_checkpoint(job.metadata.annotations).grace)
    spec = add_responder(spec) if options.answers_evictions else spec
    return keep_log_ends(spec, options.termination_message_policy)


def _add_variables(container: Json, variables: Sequence[Json]) -> None:
    container["env"] = [*(container.get("env") or ()), *variables]


def worker_encoder(job: SshJob, replicas: Replicas, options: Options) -> Callable[[int], Callable[[], bytes]]:
    """Index -> encoder of the worker's pod. What the workers share is encoded once."""
    own, spec = _pod(job, replicas, "worker", _PLACEHOLDER, options)
    search = f"{job.name}.{job.metadata.namespace}.svc.{options.dns_domain}"
    dns = spec.get("dnsConfig") or {}
    spec["dnsConfig"] = {**dns, "searches": [*(dns.get("searches") or ()), search]}
    first = spec["containers"][0]
    if not first.get("command") and not first.get("args"):
        first["command"] = ["/usr/sbin/sshd", "-De"]
    _add_variables(first, [variable("K_MPI_JOB_ROLE", "worker")])
    first_numbers = {REPLICA_INDEX: 1 if job.launcher_works else 0}
    if TRAIN_NODE in job.metadata.annotations:
        first_numbers[COMPLETION_INDEX] = 0
    labels = {**own.pop("labels"), **dict.fromkeys(first_numbers, _PLACEHOLDER)}
    made = {**metadata(job, _PLACEHOLDER), **own, "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": _finish(job, spec, options)}
    to_name, *to_numbers, to_host, rest = _encode(pod).split(bytes(_PLACEHOLDER))
    places = [(text, first_numbers[label]) for text, label in zip(to_numbers, _numbered(labels), strict=True)]

    def fill(index: int) -> bytes:
        name = _encode(f"{job.name}-worker-{index}")
        numbers = (part for text, start in places for part in (text, _encode(str(index + start))))
        return b"".join((to_name, name, *numbers, to_host, name, rest))

    return lambda index: partial(fill, index)


def _numbered(labels: Json) -> list[str]:
    """The labels that have a number of the replica, in their order."""
    return [name for name, value in labels.items() if value is _PLACEHOLDER]


def launcher_template(job: SshJob, options: Options) -> Json:
    """The pod template of the launcher's Job."""
    own, spec = _pod(job, job.launcher, "launcher", job.launcher_name, options)
    if job.launcher_works:
        own["labels"][REPLICA_INDEX] = "0"
    if TRAIN_NODE in job.metadata.annotations:
        own["labels"][COMPLETION_INDEX] = "0"
    first = spec["containers"][0]
    _add_variables(first, launcher_variables(job))
    first["volumeMounts"] = [*first["volumeMounts"], {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER}]
    items = [{"key": HOSTFILE, "path": HOSTFILE, "mode": 0o444}, {"key": DISCOVER, "path": DISCOVER, "mode": 0o555}]
    source = {"name": config_name(job.name), "items": items}
    spec["volumes"] = [*spec["volumes"], {"name": CONFIG_VOLUME, "configMap": source}]
    return {"metadata": own, "spec": spec}


MUTABLE = ("nodeSelector", "tolerations", "schedulingGates", "affinity")
"""Fields of a suspended Job's template that may be changed (kubernetes KEP-2926)."""


def fixed_part(template: Json) -> str:
    """A hash of everything in the template that cannot be changed later."""
    fixed = {name: value for name, value in template["spec"].items() if name not in MUTABLE}
    return hashlib.blake2s(_encode(fixed), digest_size=16).hexdigest()


def launcher_job(job: SshJob, options: Options, fingerprint: str) -> Json:
    """The batch Job of the launcher; `fingerprint` is the name of the annotation with `fixed_part`. That does not
    depend on what `_finish` adds: another policy for logs is no reason to make a suspended launcher anew."""
    template = launcher_template(job, options)
    made = metadata(job, job.launcher_name)
    made["annotations"] = {fingerprint: fixed_part(template)}
    kept = {**template, "spec": _finish(job, template["spec"], options)}
    spec = {**job.job_limits, "podReplacementPolicy": REPLACEMENT, "template": kept}
    if read_checkpoint(job.metadata.annotations).together and job.launcher.restart_policy == "Never":
        spec["podFailurePolicy"] = {"rules": [_IGNORE_DISRUPTIONS]}  # possible with this policy only
    if job.suspend:
        spec["suspend"] = True
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": spec}


def waits_for_workers(job: SshJob) -> bool:
    """Whether the launcher starts only when all workers are ready."""
    return job.creation == WHEN_READY
