"""The pods and services of a job, as they are sent to the API server (training-operator `pkg/controller.v1/common`)."""

from __future__ import annotations

from functools import cached_property

from trainop.engine.framework import JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE, Framework, selector
from trainop.engine.job import Job, Port, Role
from trainop.engine.model import Options
from trainop.runtime.objects import Json, owner_reference

POD_RESTART_POLICY = {"ExitCode": "Never"}
"""Where the policy of a role differs from that of its pods: whether to restart is ours to say then."""

LONGEST_VARIABLE = 128 * 1024 - 1
"""Bytes of `NAME=value`; with a longer one Linux starts no program (`MAX_ARG_STRLEN`, less the byte at the end)."""


def child_name(job_name: str, role: Role, index: int) -> str:
    """The name of a replica's pod and service."""
    return f"{job_name}-{role.label}-{index}".replace("/", "-")


class Manifests:
    """Makes the children of one job; what they share is made once."""

    def __init__(self, framework: Framework, job: Job, options: Options) -> None:
        self._framework = framework
        self._job = job
        self._options = options
        self._environment = framework.environment(job, options)
        self._mounts = framework.mounts(job, options)
        self._selector = selector(framework, job.name)
        self._owners = [
            owner_reference(framework.resource.api_version, framework.kind, job.name, job.metadata.uid),
        ]

    @cached_property
    def overlong(self) -> str:
        """Why no program could start in the pods: what replicas are told is too much for a variable. Empty if not."""
        for role in self._job.roles:
            for entry in self._environment(role, max(role.replicas, 1) - 1):
                size = len(f"{entry['name']}={entry.get('value', '')}".encode("utf-8", "replace"))
                if size > LONGEST_VARIABLE:
                    told = f"the variable {entry['name']} of {role.type} replicas would have {size} bytes"
                    return f"{told}, and Linux starts no program with more than {LONGEST_VARIABLE}"
        return ""

    def pod(self, role: Role, index: int) -> Json:
        template = role.template
        metadata = template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), **self._labels(role, index)}
        if self._framework.leads(self._job, role, index):
            labels[JOB_ROLE] = "master"
        kept = {name: metadata[name] for name in ("annotations", "finalizers") if metadata.get(name)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**self._metadata(role, index, labels), **kept},
            "spec": self._pod_spec(role, index),
        }

    def service(self, role: Role, index: int) -> Json:
        """Headless; it gives the pod its stable name."""
        labels = self._labels(role, index)
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(role, index, labels),
            "spec": {"clusterIP": "None", "selector": labels, "ports": service_ports(role.ports)},
        }

    def _labels(self, role: Role, index: int) -> dict[str, str]:
        return {**self._selector, REPLICA_TYPE: role.label, REPLICA_INDEX: str(index)}

    def _metadata(self, role: Role, index: int, labels: dict[str, str]) -> Json:
        return {
            "name": child_name(self._job.name, role, index),
            "namespace": self._job.namespace,
            "labels": labels,
            "ownerReferences": self._owners,
        }

    def _pod_spec(self, role: Role, index: int) -> Json:
        template = role.template["spec"]
        env = list(self._environment(role, index))
        spec = {
            **template,
            "containers": [self._container(container, env) for container in template["containers"]],
            "restartPolicy": POD_RESTART_POLICY.get(role.restart_policy, role.restart_policy),
        }
        if self._mounts:
            volumes = [{"name": mount.name, **mount.source} for mount in self._mounts]
            spec["volumes"] = [*(template.get("volumes") or ()), *volumes]
        added = self._framework.init_containers(self._job, role, self._options)
        if added:
            spec["initContainers"] = [*(template.get("initContainers") or ()), *added]
        return spec

    def _container(self, raw: Json, env: list[Json]) -> Json:
        framework = self._framework
        container = dict(raw)
        is_main = container["name"] == framework.container
        if is_main:
            ports = container.get("ports") or []
            if not any(port.get("name") == framework.port_name for port in ports):
                container["ports"] = [*ports, {"name": framework.port_name, "containerPort": framework.port}]
        if env and (is_main or framework.env_everywhere):
            container["env"] = [*(container.get("env") or ()), *env]
            if self._mounts:
                mounts = [{"name": mount.name, "mountPath": mount.path, "readOnly": True} for mount in self._mounts]
                container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *mounts]
        return container


def service_ports(ports: tuple[Port, ...]) -> list[Json]:
    """One entry for each number and protocol, in the container's order; the first name given wins, and where names
    are needed, a port without one is called after its number."""
    names: dict[tuple[int, str], str] = {}
    for port in ports:
        at = (port.number, port.protocol or "TCP")
        names[at] = names.get(at) or port.name
    entries: list[Json] = []
    for (number, protocol), name in names.items():
        entry: Json = {"port": number}
        if name or len(names) > 1:
            entry = {"name": name or _port_name(number, protocol), **entry}
        if protocol != "TCP":
            entry["protocol"] = protocol
        entries.append(entry)
    return entries


def _port_name(number: int, protocol: str) -> str:
    return f"port-{number}" if protocol == "TCP" else f"port-{number}-{protocol.lower()}"
