"""The specified form of pods and services (job-engine §2.7, §2.8, frameworks-v1 §5, §8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.simulation.oracle.kinds import LABELS, Job, Json, Slot, slot_of
from tests.simulation.oracle.variables import variables_in, variables_of

RESTART_POLICIES = {"ExitCode": "Never"}
"""Where the policy of a replica type is another one for its pods."""


def name_of(job: Job, slot: Slot) -> str:
    """The name of the slot's pod, and of its service."""
    return f"{job.name}-{slot[0]}-{slot[1]}".replace("/", "-")


def is_in_place(job: Job, pod: Json) -> bool:
    """The pod has the labels and the name of a slot that the spec asks for."""
    slot, labels = slot_of(pod), pod["metadata"].get("labels") or {}
    if slot is None or not job.has(slot) or pod["metadata"]["name"] != name_of(job, slot):
        return False
    return is_selected(job, labels)


def is_selected(job: Job, labels: Mapping[str, str]) -> bool:
    return labels.get(LABELS + "job-name") == job.name and labels.get(LABELS + "operator-name") == job.kind.controller


def labels_of(job: Job, slot: Slot) -> dict[str, str]:
    """The labels of a service and its selector; a leading pod has the label job-role as well."""
    named = {"operator-name": job.kind.controller, "job-name": job.name}
    placed = {"replica-type": slot[0], "replica-index": str(slot[1])}
    return {LABELS + name: value for name, value in (named | placed).items()}


def owners_of(job: Job) -> list[Json]:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": job.kind_name, "name": job.name, "uid": job.uid}
    return [owner | {"controller": True, "blockOwnerDeletion": True}]


def pod_differences(job: Job, pod: Json) -> Iterator[str]:
    """Between a new pod and what the spec asks for in its slot."""
    slot = slot_of(pod)
    if slot is None or not job.has(slot):
        yield f"the job has no slot {slot}"
        return
    metadata, spec = pod["metadata"], pod["spec"]
    labels = labels_of(job, slot) | ({LABELS + "job-role": "master"} if job.is_master(slot) else {})
    found = {name: value for name, value in (metadata.get("labels") or {}).items() if name.startswith(LABELS)}
    yield from _differ("name", metadata["name"], name_of(job, slot))
    yield from _differ("labels", found, labels)
    yield from _differ("ownerReferences", metadata.get("ownerReferences"), owners_of(job))
    policy = job.policy_of(slot)
    yield from _differ("restartPolicy", spec.get("restartPolicy"), RESTART_POLICIES.get(policy, policy))
    yield from _name_differences(job, pod)
    waits = job.kind_name == "PyTorchJob" and slot[0] == "worker" and "Master" in job.roles
    added = [each["name"] for each in spec.get("initContainers") or ()]
    yield from _differ("init containers", added, ["init-pytorch"] if waits else [])
    subdomain = f"{job.shared_service}." if has_shared_name(job, pod) else ""
    wanted = variables_of(job, slot, f"{subdomain}{job.namespace}.svc")
    for container in spec["containers"]:
        is_main = container["name"] == job.kind.container
        reported = wanted if is_main or job.kind_name != "TFJob" else {}
        yield from _differ(f"variables of {container['name']}", variables_in(container), reported)
        ports = [(each.get("name"), each["containerPort"]) for each in container.get("ports") or ()]
        if is_main and not any(name == job.kind.port_name for name, _ in ports):
            yield f"container {container['name']} has no port {job.kind.port_name}: {ports}"


def has_shared_name(job: Job, pod: Json) -> bool:
    """The pod was created in service mode job."""
    return bool(pod["spec"].get("subdomain") == job.shared_service)


def _name_differences(job: Job, pod: Json) -> Iterator[str]:
    """Between the host name of a pod and that of its service mode (docs/annotations.md)."""
    spec, search = pod["spec"], f"{job.shared_service}.{job.namespace}.svc.cluster.local"
    names = spec.get("hostname"), spec.get("subdomain"), (spec.get("dnsConfig") or {}).get("searches")
    shared = has_shared_name(job, pod)
    wanted = (pod["metadata"]["name"], job.shared_service, [search]) if shared else (None, None, None)
    yield from _differ("hostname, subdomain and searches", names, wanted)


def service_differences(job: Job, service: Json) -> Iterator[str]:
    """Between a service and what the spec asks for in its slot, or for the whole job."""
    slot, metadata, spec = slot_of(service), service["metadata"], service["spec"]
    if metadata["name"] == job.shared_service:
        shared = ("replica-type", "replica-index")
        labels = {name: text for name, text in labels_of(job, ("", 0)).items() if not name.endswith(shared)}
        yield from _differ("publishNotReadyAddresses", spec.get("publishNotReadyAddresses"), True)
    elif slot is None or not job.has(slot):
        yield f"the job has no slot {slot}"
        return
    else:
        labels = labels_of(job, slot)
        yield from _differ("name", metadata["name"], name_of(job, slot))
    yield from _differ("labels", metadata.get("labels"), labels)
    yield from _differ("selector", spec.get("selector"), labels)
    yield from _differ("ownerReferences", metadata.get("ownerReferences"), owners_of(job))
    yield from _differ("clusterIP", spec.get("clusterIP"), "None")
    ports = [(each.get("name"), each["port"]) for each in spec.get("ports") or ()]
    if (job.kind.port_name, job.kind.port) not in ports:
        yield f"no port {job.kind.port_name} {job.kind.port}: {ports}"


def _differ(what: str, found: object, wanted: object) -> Iterator[str]:
    if found != wanted:
        yield f"{what} {found} instead of {wanted}"
