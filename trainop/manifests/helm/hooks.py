"""Webhooks: their failure policy, and certificates that cert-manager makes instead of the operator."""

from __future__ import annotations

from collections.abc import Iterable

from trainop.controllers.admission import webhooks_of
from trainop.manifests.helm import schemas
from trainop.manifests.helm.chart import NAMESPACE_NAME, placed, when
from trainop.manifests.helm.template import Expression, Lines, Node, replace
from trainop.manifests.helm.values import Value
from trainop.programs.schemes import all_kinds
from trainop.runtime import Json

CERT_MANAGER = "$.Values.certManager.enabled"
_VALUES = (
    Value(
        "certManager.enabled",
        default=False,
        schema=schemas.BOOLEAN,
        comment="cert-manager makes the certificate of the webhooks and writes its CA; otherwise the operator does.",
    ),
    Value(
        "certManager.issuerRef",
        {},
        schemas.structure("name", "kind", "group"),
        "Empty: an Issuer of this release, with which the certificate signs itself.",
    ),
)
_ISSUER = "$.Values.certManager.issuerRef"
_GROUP = "cert-manager.io"


def certificate(chart: str, name: str, service: str, secret: str) -> list[Node]:
    """The certificate for a Service, and its issuer unless the values name one. The operator serves the Secret."""
    version = f"{_GROUP}/v1"
    issuer: Json = {"apiVersion": version, "kind": "Issuer", "metadata": {"name": name}, "spec": {"selfSigned": {}}}
    spec = {
        "secretName": secret,
        "dnsNames": [Expression(f'printf "{service}.%s.svc" {NAMESPACE_NAME}')],
        **when(_ISSUER, {"issuerRef": Lines(f"toYaml {_ISSUER}")}),
        **when(f"not {_ISSUER}", {"issuerRef": {"kind": "Issuer", "name": name}}),
    }
    certificate: Json = {"apiVersion": version, "kind": "Certificate", "metadata": {"name": name}, "spec": spec}
    objects = [when(f"not {_ISSUER}", placed(chart, [issuer])), *placed(chart, [certificate])]
    return [when(CERT_MANAGER, objects)]


def values(policy: str, comment: str) -> list[Value]:
    """The values of webhooks whose failure policy is `policy` by default."""
    return [Value("webhooks.failurePolicy", policy, schemas.one_of("Ignore", "Fail"), comment), *_VALUES]


def configured(chart: str, configurations: Iterable[Json], certificate: str) -> list[Node]:
    """The webhook configurations with the failure policy of the values, but for webhooks that only warn, and the
    annotation by which cert-manager writes the CA."""
    warning = {webhook.path for webhook in webhooks_of(all_kinds()) if not webhook.refuses}
    policy = Expression("$.Values.webhooks.failurePolicy")
    source = Expression(f'printf "%s/{certificate}" {NAMESPACE_NAME} | quote')
    entry = when(CERT_MANAGER, {"annotations": {f"{_GROUP}/inject-ca-from": source}})
    found: list[Node] = []
    for configuration in configurations:
        item: Node = {**configuration, "metadata": {**configuration["metadata"], **entry}}
        for index, webhook in enumerate(configuration["webhooks"]):
            if webhook["clientConfig"]["service"]["path"] not in warning:
                item = replace(item, ("webhooks", index, "failurePolicy"), policy)
        found.append(item)
    return placed(chart, found)
