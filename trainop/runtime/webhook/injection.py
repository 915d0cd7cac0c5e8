"""The `caBundle` in webhook configurations: whom the API server trusts when it calls us."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource

_ADMISSION = "admissionregistration.k8s.io"
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    _ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    _ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False
)

FOREIGN = "cert-manager.io/"
"""Annotations that begin so tell that cert-manager writes the object: the bundle (`inject-ca-from` and its kin) or the
Secret (`certificate-name`)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One webhook configuration of ours, by kind and name."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}"


def is_foreign(obj: Json) -> bool:
    """Whether somebody else has been asked to write our part of it."""
    return any(name.startswith(FOREIGN) for name in obj["metadata"].get("annotations") or {})


def injection(configuration: Json, bundle: bytes) -> list[Json]:
    """The JSON patch that puts `bundle` (PEM) into every webhook, each only if its client configuration is still what
    was read; empty if all have it."""
    wanted = base64.b64encode(bundle).decode()
    operations: list[Json] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        client = webhook.get("clientConfig") or {}
        if client.get("caBundle") != wanted:
            place = f"/webhooks/{index}/clientConfig"
            operations.append({"op": "test", "path": place, "value": client})
            operations.append({"op": "add", "path": f"{place}/caBundle", "value": wanted})
    return operations
