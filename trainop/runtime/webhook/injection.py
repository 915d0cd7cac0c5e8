"""Computes the patches that set `caBundle` in webhook configurations. Pure.

The API server verifies the webhook server's certificate with the `caBundle`.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass

from trainop.runtime.objects.metadata import Json, Resource

_ADMISSION = "admissionregistration.k8s.io"
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    _ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    _ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False
)

CERT_MANAGER_PREFIX = "cert-manager.io/"
"""Prefix of the annotations on objects that cert-manager writes: webhook configurations (`inject-ca-from`,
`inject-ca-from-secret`, `inject-apiserver-ca`) and Secrets (`certificate-name`)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Reference to a webhook configuration of this operator."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}"


def is_managed_by_cert_manager(obj: Json) -> bool:
    """Whether cert-manager writes the certificates of this Secret or webhook configuration."""
    return any(name.startswith(CERT_MANAGER_PREFIX) for name in obj["metadata"].get("annotations") or {})


def injection(configuration: Json, bundle: bytes, names: Collection[str] = ()) -> list[Json]:
    """The JSON patch (RFC 6902) that sets `caBundle` of every webhook to `bundle` (PEM); empty if all have it.

    With `names`, a webhook whose Service has another DNS name is left out: it is served by another program, with a CA
    of its own. A `test` operation precedes each change: the patch fails if another writer changed the `clientConfig`.
    """
    expected = base64.b64encode(bundle).decode()
    operations: list[Json] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        client = webhook.get("clientConfig") or {}
        if client.get("caBundle") != expected and _is_served_by(names, client.get("service")):
            place = f"/webhooks/{index}/clientConfig"
            operations.append({"op": "test", "path": place, "value": client})
            operations.append({"op": "add", "path": f"{place}/caBundle", "value": expected})
    return operations


def _is_served_by(names: Collection[str], service: Json | None) -> bool:
    if not names or not service:
        return True
    return f"{service.get('name')}.{service.get('namespace')}.svc" in names
