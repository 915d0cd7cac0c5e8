"""Names where nothing resolves them: which loopback address a word in a pod's environment stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainop.local.node.network.addresses import AddressBook, AddressOf
from trainop.local.node.network.names import DOMAIN, NameSpace, is_ready, selects
from trainop.runtime.objects.metadata import Json, Key, Unstructured

_ZONES = ("", "{namespace}", "{namespace}.svc", f"{{namespace}}.svc.{DOMAIN}")


class LoopbackNames:
    """Addresses are known before their pods exist: each name keeps its own."""

    def __init__(self, names: NameSpace, book: AddressBook) -> None:
        self._names = names
        self._book = book

    def address_of(self, namespace: str, metadata: Json) -> AddressOf:
        """For a pod with this metadata: Services and pods of its namespace, and pods that its owner will make."""
        zones = {zone.format(namespace=namespace) for zone in _ZONES}
        siblings = _siblings(metadata)

        def lookup(word: str) -> str | None:
            name, _, rest = word.partition(".")
            if rest in zones:
                return self._find(namespace, name, siblings)
            service, _, zone = rest.partition(".")
            if zone in zones and self._names.service(namespace, service) is not None:
                return self._book.reserve(Key(namespace, name))
            return None

        return lookup

    def _find(self, namespace: str, name: str, siblings: re.Pattern[str]) -> str | None:
        service = self._names.service(namespace, name)
        if service is not None:
            pod = next((pod for pod in self._names.pods(namespace) if selects(service.raw, pod.raw)), None)
            return self._book.reserve(pod.metadata.key if pod else Key(namespace, name))
        if siblings.fullmatch(name) or self._names.pod(namespace, name) is not None:
            return self._book.reserve(Key(namespace, name))
        return None


def _siblings(metadata: Json) -> re.Pattern[str]:
    """Names as controllers of jobs give them: `<job>-<role>-<index>`."""
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    return re.compile("|".join(rf"{re.escape(owner)}-[a-z]+-\d+" for owner in owners) or r"(?!)")


def ready_addresses(pods: Iterable[Unstructured]) -> str:
    """One address per line, for the pods' `nslookup`."""
    found = {str(pod.raw["status"].get("podIP") or "") for pod in pods if is_ready(pod.raw)}
    return "".join(f"{address}\n" for address in sorted(found))
