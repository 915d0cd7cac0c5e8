"""Services: defaults, validation, allocation of cluster IPs and node ports (kubernetes `pkg/registry/core/service`)."""

from __future__ import annotations

import ipaddress

from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Strategy
from trainop.local.api.registry.names import dns_1035_label, dns_label, port_name
from trainop.local.api.registry.object_meta import validate_labels
from trainop.local.api.schema.field_errors import duplicate, invalid, not_supported, required
from trainop.runtime import SERVICES, Json
from trainop.runtime.lowlevel import FieldError

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_PORT_RANGE = "must be between 1 and 65535, inclusive"
_NODE_PORTS = range(30000, 32768)


class ServiceStrategy(Strategy):
    """Services; cluster IPs are allocated from the CIDR `network`."""

    has_status = True
    returns_deleted = True

    def __init__(self, backend: Backend, network: str) -> None:
        self._backend = backend
        self._network = ipaddress.ip_network(network)

    def check_name(self, name: str) -> list[str]:
        return dns_1035_label(name)

    def default(self, value: Json) -> None:
        spec = value.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        spec.setdefault("internalTrafficPolicy", "Cluster")
        if spec["type"] in {"NodePort", "LoadBalancer"}:
            spec.setdefault("externalTrafficPolicy", "Cluster")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            if not port.get("targetPort"):
                port["targetPort"] = port.get("port", 0)

    def prepare_create(self, value: Json) -> None:
        spec = value["spec"]
        value["status"] = {"loadBalancer": {}}
        if spec["type"] == "ExternalName":
            spec.pop("internalTrafficPolicy", None)
            return
        spec["ipFamilies"] = ["IPv4"]
        spec["ipFamilyPolicy"] = "SingleStack"
        if self.validate(value):
            return
        address = spec.get("clusterIP") or (spec.get("clusterIPs") or [""])[0] or self._allocate_address()
        spec |= {"clusterIP": address, "clusterIPs": [address]}
        self._allocate_node_ports(spec)

    def prepare_update(self, value: Json, old: Json) -> None:
        spec, before = value["spec"], old.get("spec") or {}
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(field) and field in before:
                spec[field] = before[field]
        if spec.get("clusterIP") != before.get("clusterIP") and spec.get("clusterIPs") == before.get("clusterIPs"):
            spec["clusterIPs"] = [spec["clusterIP"]]
        self._allocate_node_ports(spec)

    def validate(self, value: Json) -> list[FieldError]:
        spec = value["spec"]
        ports = spec.get("ports") or []
        errors: list[FieldError] = []
        if not ports and spec.get("clusterIP") != "None" and spec["type"] != "ExternalName":
            errors.append(required("spec.ports"))
        if spec["type"] == "ExternalName" and not spec.get("externalName"):
            errors.append(required("spec.externalName"))
        errors += _validate_ports(ports)
        errors += validate_labels(spec.get("selector") or {}, "spec.selector")
        if spec["type"] not in _TYPES:
            errors.append(not_supported("spec.type", spec["type"], _TYPES))
        return errors + self._validate_cluster_ip(value)

    def validate_update(self, value: Json, old: Json) -> list[FieldError]:
        before, after = (old.get("spec") or {}).get("clusterIPs"), value["spec"].get("clusterIPs")
        if before and after != before and value["spec"]["type"] != "ExternalName":
            return [invalid("spec.clusterIPs[0]", after, "may not change once set")]
        return []

    def _validate_cluster_ip(self, value: Json) -> list[FieldError]:
        address = value["spec"].get("clusterIP") or ""
        if address in {"", "None"}:
            return []
        try:
            inside = ipaddress.ip_address(address) in self._network
        except ValueError:
            return [
                invalid("spec.clusterIPs[0]", address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
            ]
        own = (value["metadata"].get("namespace", ""), value["metadata"].get("name", ""))
        if own in self._backend.store.table(SERVICES.plural).objects:
            return []  # allocated to this Service; validate_update rejects a change
        if not inside:
            reason = (
                "failed to allocate IP " + address + ": the provided IP "
                f"({address}) is not in the valid range. The range of valid IPs is {self._network}"
            )
            return [invalid("spec.clusterIPs", [address], reason)]
        if address in self._allocated():
            reason = f"failed to allocate IP {address}: provided IP is already allocated"
            return [invalid("spec.clusterIPs", [address], reason)]
        return []

    def _allocated(self) -> set[str]:
        objects = self._backend.store.table(SERVICES.plural).objects.values()
        return {stored.value["spec"].get("clusterIP", "") for stored in objects}

    def _allocate_address(self) -> str:
        """A random free address, so that a recreated Service does not receive connections to its predecessor."""
        taken = self._allocated() | {str(self._network[1])}  # that of the API server, as in Kubernetes
        size = self._network.num_addresses
        offset = self._backend.rng.randrange(1, size - 1)
        for step in range(size - 2):
            address = str(self._network[(offset - 1 + step) % (size - 2) + 1])
            if address not in taken:
                return address
        raise RuntimeError(f"no address of {self._network} is free")

    def _allocate_node_ports(self, spec: Json) -> None:
        if spec["type"] not in {"NodePort", "LoadBalancer"}:
            return
        objects = self._backend.store.table(SERVICES.plural).objects.values()
        taken = {port.get("nodePort") for stored in objects for port in stored.value["spec"].get("ports") or []}
        free = (number for number in _NODE_PORTS if number not in taken)
        for port in spec.get("ports") or []:
            if not port.get("nodePort"):
                port["nodePort"] = next(free)


def _validate_ports(ports: list[Json]) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        errors += _validate_port(port, f"spec.ports[{index}]", names, several=len(ports) > 1)
    seen: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        place = (port["protocol"], port.get("port", 0))
        if place in seen:
            shown = {
                "Name": "",
                "Protocol": place[0],
                "AppProtocol": None,
                "Port": place[1],
                "TargetPort": 0,
                "NodePort": 0,
            }
            errors.append(duplicate(f"spec.ports[{index}]", shown))
        seen.add(place)
    return errors


def _validate_port(port: Json, path: str, names: set[str], *, several: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    name = port.get("name") or ""
    if not name and several:
        errors.append(required(f"{path}.name"))
    elif name:
        errors += [invalid(f"{path}.name", name, problem) for problem in dns_label(name)]
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
    number = port.get("port") or 0
    if not 1 <= number <= 65535:
        errors.append(invalid(f"{path}.port", number, _PORT_RANGE))
    if port["protocol"] not in _PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", port["protocol"], _PROTOCOLS))
    target = port.get("targetPort")
    if isinstance(target, int) and not 1 <= target <= 65535:
        errors.append(invalid(f"{path}.targetPort", target, _PORT_RANGE))
    if isinstance(target, str):
        errors += [invalid(f"{path}.targetPort", target, problem) for problem in port_name(target)]
    return errors
