"""Name resolution for mode `addresses`, where pods have no DNS: maps words in a container's spec to loopback addresses.

The result is used by `addresses.rewrite_command` when a container starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainop.local.node.network.addresses import AddressAllocator, AddressOf
from trainop.local.node.network.names import DOMAIN, ObjectLookup, has_succeeded, is_ready, selects
from trainop.runtime import Json, Key, Unstructured

_ZONES = ("", "{namespace}", "{namespace}.svc", f"{{namespace}}.svc.{DOMAIN}")


class LoopbackNames:
    """Resolves names to reserved loopback addresses, also for pods that do not exist yet."""

    def __init__(self, objects: ObjectLookup, addresses: AddressAllocator) -> None:
        self._objects = objects
        self._addresses = addresses

    def address_of(self, namespace: str, metadata: Json) -> AddressOf:
        """A lookup for the pod with this `metadata`.

        It resolves Services and pods in the pod's namespace, and names of replicas that the pod's controller may still
        create.
        """
        zones = {zone.format(namespace=namespace) for zone in _ZONES}
        siblings = _siblings(metadata)

        def lookup(word: str) -> str | None:
            name, _, rest = word.partition(".")
            if rest in zones:
                return self._find(namespace, name, siblings)
            service, _, zone = rest.partition(".")
            sibling = bool(zone) and siblings.fullmatch(name)  # its Service may not exist yet
            known = sibling or self._objects.service(namespace, service) is not None
            if zone in zones and known:
                return self._addresses.reserve(Key(namespace, name))
            return None

        return lookup

    def _find(self, namespace: str, name: str, siblings: re.Pattern[str]) -> str | None:
        """The address for a Service (of its first pod, or reserved for a pod of the same name) or for a pod."""
        service = self._objects.service(namespace, name)
        if service is not None:
            pod = next((pod for pod in self._objects.pods(namespace) if selects(service.raw, pod.raw)), None)
            return self._addresses.reserve(pod.metadata.key if pod else Key(namespace, name))
        if siblings.fullmatch(name) or self._objects.pod(namespace, name) is not None:
            return self._addresses.reserve(Key(namespace, name))
        return None


def _siblings(metadata: Json) -> re.Pattern[str]:
    """Matches the pod names that job controllers generate: `<job>-<role>-<index>`."""
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    return re.compile("|".join(rf"{re.escape(owner)}-[a-z]+-\d+" for owner in owners) or r"(?!)")


def ready_addresses(pods: Iterable[Unstructured]) -> str:
    """Addresses of pods that are ready, or have been and succeeded, one per line: the `nslookup` fallback reads this
    file. Who comes late must not wait for a master that has ended until its tries are used up."""
    statuses = [pod.raw["status"] for pod in pods if is_ready(pod.raw) or has_succeeded(pod.raw)]
    found = {str(status.get("podIP") or "") for status in statuses}
    return "".join(f"{address}\n" for address in sorted(found))
