"""Manifests: the pods and services of a job as JSON (training-operator `pkg/controller.v1/common`).

What all replicas of a role share is encoded once per plan; the manifest of one replica is a copy with its name, labels
and variables inserted. Large jobs are therefore cheap to create.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from trainop.engine.addresses import child_name, dns_fields, service_name, subdomain_of
from trainop.engine.bad_nodes import Avoidance
from trainop.engine.checkpoint import add_responder, raise_grace
from trainop.engine.extensions import TRAIN_NODE
from trainop.engine.framework import (
    COMPLETION_INDEX,
    JOB_ROLE,
    REPLICA_INDEX,
    REPLICA_TYPE,
    Framework,
    RoleAdditions,
    selector,
)
from trainop.engine.gang import policy_class
from trainop.engine.in_place import rules_of
from trainop.engine.job import Job, Port, Role
from trainop.engine.progress import access_of
from trainop.engine.seen import FILE, Options
from trainop.runtime import Json, owner_reference
from trainop.runtime.lowlevel import FORBIDDEN, FieldError

POD_RESTART_POLICY = {"ExitCode": "Never"}
"""Restart policies of roles that pods do not know: with ExitCode the operator, not the kubelet, restarts."""

MAX_VARIABLE_SIZE = 128 * 1024 - 1
"""Bytes of `NAME=value`. With a longer variable `execve` fails (Linux `MAX_ARG_STRLEN`, minus the terminating byte)."""

MAX_BODY_SIZE = 3 * 1024 * 1024
"""Bytes of a request body that the API server accepts (kubernetes `staging/src/k8s.io/apiserver/pkg/server/config.go`,
`MaxRequestBodyBytes`)."""

_PLACEHOLDER = msgspec.Raw(b"\0")
"""Marks the places for values of one replica. Encoded JSON never contains this byte, because it is escaped in
strings."""

_encode = msgspec.json.Encoder().encode


class _Template(NamedTuple):
    """The JSON of a role's pods, cut at the places of name, labels, host name and variables."""

    to_name: bytes
    to_labels: bytes
    labels: bytes
    """The labels of the template, as a JSON object without its closing brace."""
    to_hostname: bytes
    """Empty if the pods have no host name of their own."""
    parts: list[bytes]
    """The rest, cut at the places of the variables; the last part closes the pod."""

    def fill(self, name: str, labels: dict[str, str], env: bytes) -> bytes:
        """The manifest of one replica; `env` is the JSON of its variables without brackets."""
        named = _encode(name)
        hostname = (self.to_hostname, named) if self.to_hostname else ()
        head = (self.to_name, named, self.to_labels, self.labels, _encode(labels)[1:], *hostname, self.parts[0])
        return env.join([b"".join(head), *self.parts[1:]])

    def size(self, env: bytes) -> int:
        """Bytes of a pod with these variables, without its name and the labels of its replica."""
        texts = (self.to_name, self.to_labels, self.labels, self.to_hostname, *self.parts)
        fixed = sum(map(len, texts))
        return fixed + len(env) * (len(self.parts) - 1)


class Manifests:
    """Encodes the pods and services of one job. May raise what `framework.additions` raises, such as
    `TemplateError`."""

    def __init__(self, framework: Framework, job: Job, options: Options, avoidance: Avoidance | None = None) -> None:
        """`avoidance`: the nodes that the pods are kept away from."""
        self._framework = framework
        self._job = job
        self._options = options
        self._avoidance = avoidance
        self._additions = framework.additions(job, options)
        self._environment = self._additions.variables
        endpoint = options.progress
        self._progress = access_of(job.metadata, framework.resource, endpoint) if endpoint else None
        self._selector = selector(framework, job.name)
        self._owners = [
            owner_reference(framework.resource.api_version, framework.kind, job.name, job.metadata.uid),
        ]
        self._templates: dict[tuple[str, bool], _Template] = {}
        self._ports: dict[str, msgspec.Raw] = {}

    @cached_property
    def size_error(self) -> FieldError | None:
        """The error of a job whose pods cannot work: a variable is too long for Linux, or a pod too large for a
        request."""
        for role in filter(attrgetter("has_valid_template"), self._job.roles):
            at = f"spec.{self._framework.replica_specs}[{role.type}]"
            entries = self._environment(role, max(role.replicas, 1) - 1)
            for entry in entries:
                size = len(entry["name"]) + len("=") + _size(entry.get("value", ""))
                if size > MAX_VARIABLE_SIZE:
                    found = f"the variable {entry['name']} of {role.type} replicas would have {size} bytes"
                    limit = f"Linux starts no program with more than {MAX_VARIABLE_SIZE}"
                    return FieldError(at, FORBIDDEN, f"{found}, and {limit}")
            size = self._size_of_pod(role, entries)
            if size > MAX_BODY_SIZE:
                found = f"a pod of {role.type} replicas would have at least {size} bytes"
                limit = f"the API server takes no request with more than {MAX_BODY_SIZE}"
                return FieldError(at, FORBIDDEN, f"{found}, and {limit}")
        return None

    def _size_of_pod(self, role: Role, entries: Sequence[Json]) -> int:
        """A lower bound of the bytes of a pod. If the variables alone exceed the limit, the pod is not encoded."""
        variables = _encode(entries)[1:-1]
        if self._additions.in_all_containers:
            size = len(variables) * len(role.template["spec"]["containers"])
            if size > MAX_BODY_SIZE:
                return size
        return self._template(role, bool(entries)).size(variables)

    def pod(self, role: Role, index: int) -> bytes:
        """The manifest of one replica's pod as JSON."""
        entries = self._environment(role, index)
        labels = self._labels(role, index)
        if self._framework.is_master(self._job, role, index):
            labels[JOB_ROLE] = "master"
        elif JOB_ROLE in (given := _labels_of(role)):
            labels[JOB_ROLE] = given[JOB_ROLE]
        name = child_name(self._job.name, role, index)
        return self._template(role, bool(entries)).fill(name, labels, _encode(entries)[1:-1])

    def service(self, role: Role, index: int) -> bytes:
        """The manifest of one replica's headless service as JSON."""
        labels = self._labels(role, index)
        ports = self._ports.get(role.type)
        if ports is None:
            ports = self._ports[role.type] = msgspec.Raw(_encode(service_ports(role.ports)))
        return _encode(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": self._metadata(child_name(self._job.name, role, index), labels),
                "spec": {"clusterIP": "None", "selector": labels, "ports": ports},
            }
        )

    def shared_service(self) -> bytes:
        """The manifest of the headless service of the whole job as JSON. Pods have their names there before they are
        Ready, because frameworks connect while they start."""
        ports = [port for role in self._job.roles for port in role.ports]
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self._selector,
            "ports": service_ports(tuple(ports)),
        }
        metadata = self._metadata(service_name(self._job.name), self._selector)
        return _encode({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})

    def _labels(self, role: Role, index: int) -> dict[str, str]:
        own = {REPLICA_TYPE: role.label, REPLICA_INDEX: str(index)} if role.indexed else {REPLICA_TYPE: role.label}
        if TRAIN_NODE in self._job.metadata.annotations:
            own[COMPLETION_INDEX] = str(index)
        return {**self._selector, **own}

    def _metadata(self, name: object, labels: object) -> Json:
        return {
            "name": name,
            "namespace": self._job.namespace,
            "labels": labels,
            "ownerReferences": self._owners,
        }

    def _template(self, role: Role, with_variables: bool) -> _Template:
        key = (role.type, with_variables)
        if key not in self._templates:
            self._templates[key] = self._make_template(role, with_variables)
        return self._templates[key]

    def _make_template(self, role: Role, with_variables: bool) -> _Template:
        metadata = role.template.get("metadata") or {}
        kept = {name: metadata[name] for name in ("annotations", "finalizers") if metadata.get(name)}
        gang = self._options.gang
        if gang is not None and (added := gang.pod_annotations(self._job.name, role.label)):
            kept["annotations"] = kept.get("annotations", {}) | added
        if self._progress is not None:
            kept["annotations"] = kept.get("annotations", {}) | self._progress.annotations
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**self._metadata(_PLACEHOLDER, _PLACEHOLDER), **kept},
            "spec": self._pod_spec(role, with_variables),
        }
        to_name, to_labels, *parts = _encode(manifest).split(bytes(_PLACEHOLDER))
        to_hostname = parts.pop(0) if subdomain_of(self._job) else b""
        own = {*self._labels(role, 0), JOB_ROLE}
        given = _labels_of(role) | (gang.pod_labels(self._job.name) if gang else {})
        shared = _encode({name: value for name, value in given.items() if name not in own})
        return _Template(to_name, to_labels, b"{" if shared == b"{}" else shared[:-1] + b",", to_hostname, parts)

    def _pod_spec(self, role: Role, with_variables: bool) -> Json:
        template, added = role.template["spec"], self._additions.of_role(role)
        containers = [self._container(role, each, added, with_variables) for each in template["containers"]]
        restart_policy = POD_RESTART_POLICY.get(role.restart_policy, role.restart_policy)
        names = dns_fields(self._job, self._options, template.get("dnsConfig"))
        hostname = {"hostname": _PLACEHOLDER} if names else {}  # first, before the places of the variables
        spec = {**hostname, **template, **hostname, **names, "containers": containers, "restartPolicy": restart_policy}
        if self._options.gang is not None:
            spec |= self._options.gang.pod_fields(self._job.name, template, policy_class(self._job.spec))
        if added.service_account:
            spec["serviceAccountName"] = added.service_account
        if added.mounts:
            volumes = [{"name": mount.name, **mount.source} for mount in added.mounts]
            spec["volumes"] = [*(template.get("volumes") or ()), *volumes]
        if added.init_containers:
            spec["initContainers"] = [*(template.get("initContainers") or ()), *added.init_containers]
        if self._progress is not None:
            spec = self._progress.add_to(spec, role.container)
        if self._avoidance is not None:
            spec = self._avoidance.add_to(spec)
        if grace := self._job.extensions.checkpoint.grace:
            spec = raise_grace(spec, grace)
        if self._options.answers_evictions:
            spec = add_responder(spec)
        return keep_log_ends(spec, self._options.termination_message_policy)

    def _container(self, role: Role, raw: Json, added: RoleAdditions, with_variables: bool) -> Json:
        framework = self._framework
        is_main = raw["name"] == role.container
        if not is_main and not (self._additions.in_all_containers and (with_variables or added.mounts)):
            return raw
        container = dict(raw)
        if is_main:
            ports = container.get("ports") or []
            if framework.port_name and not any(port.get("name") == framework.port_name for port in ports):
                container["ports"] = [*ports, {"name": framework.port_name, "containerPort": framework.port}]
            if added.command and not container.get("command"):
                container |= {"command": list(added.command), **({"args": list(added.args)} if added.args else {})}
            if self._job.extensions.restart_rules:
                container |= rules_of(role)
        if with_variables:
            container["env"] = [*(container.get("env") or ()), _PLACEHOLDER]
        if added.mounts:
            mounts = [{"name": mount.name, "mountPath": mount.path, "readOnly": True} for mount in added.mounts]
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *mounts]
        return container


def _size(text: str) -> int:
    """Bytes of the text in UTF-8. ASCII text, which may be long, is not copied."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _labels_of(role: Role) -> dict[str, str]:
    """The labels of the role's template."""
    return (role.template.get("metadata") or {}).get("labels") or {}


def service_ports(ports: tuple[Port, ...]) -> list[Json]:
    """One entry per number and protocol, in the order of the containers. The first name of a port counts. If there are
    several ports, which Kubernetes requires to have different names, a port without a name, or with the name of
    another, is named after its number."""
    names: dict[tuple[int, str], str] = {}
    for port in ports:
        at = (port.number, port.protocol or "TCP")
        names[at] = names.get(at) or port.name
    entries: list[Json] = []
    taken: set[str] = set()
    for (number, protocol), given in names.items():
        name = given if given and given not in taken else _port_name(number, protocol)
        if name in taken:
            continue  # only SRV records contain the ports of a headless service
        taken.add(name)
        named = given or len(names) > 1
        entry: Json = {"name": name, "port": number} if named else {"port": number}
        if protocol != "TCP":
            entry["protocol"] = protocol
        entries.append(entry)
    return entries


def _port_name(number: int, protocol: str) -> str:
    return f"port-{number}" if protocol == "TCP" else f"port-{number}-{protocol.lower()}"


# Termination messages -------------------------------------------------------------------------------------------------

_POLICY = "terminationMessagePolicy"
_LISTS = ("containers", "initContainers")


def keep_log_ends(spec: Json, policy: str) -> Json:
    """The pod spec, in which containers without a terminationMessagePolicy have `policy`. With `File` they are left to
    Kubernetes; with `FallbackToLogsOnError` they leave the end of their log in the pod's status when they fail, so that
    the operator can name it without the right to read logs. The argument is not changed; entries of a wrong type are
    left as they are."""
    if policy == FILE:
        return spec
    changed = {name: [_with_policy(each, policy) for each in spec[name]] for name in _LISTS if _is_list(spec, name)}
    return {**spec, **changed}


def _is_list(spec: Json, name: str) -> bool:
    return isinstance(spec.get(name), list | tuple) and bool(spec[name])


def _with_policy(container: Any, policy: str) -> Any:
    if not isinstance(container, dict) or container.get(_POLICY):
        return container
    return {**container, _POLICY: policy}
