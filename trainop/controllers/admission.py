"""Admission webhooks of the operator: each kind's `judge` as a handler, and the certificates of their server.

Paths, names and messages are those of training-operator (`pkg/webhooks`, `pkg/cert`). Every kind is served, also one
that `--enable-scheme` leaves out: a cluster may have one webhook configuration for all kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainop.engine.admission import Judgement
from trainop.engine.fields import sentence
from trainop.engine.kind import Kind
from trainop.runtime.errors import UNREADABLE
from trainop.runtime.objects.metadata import Json, Key, Unstructured
from trainop.runtime.serving.certificate_folder import ServingCertificate
from trainop.runtime.serving.server import Check
from trainop.runtime.texts import cut
from trainop.runtime.webhook.admission import (
    AdmissionRequest,
    AdmissionResponse,
    Handler,
    allow,
    deny,
    refuse,
    validating_path,
)
from trainop.runtime.webhook.injection import VALIDATING_WEBHOOK_CONFIGURATIONS, Configuration
from trainop.runtime.webhook.rotation import CertificateRotation, RotationOptions
from trainop.runtime.webhook.server import WebhookServer

CONFIGURATION = "validator.training-operator.kubeflow.org"
"""The ValidatingWebhookConfiguration that gets the `caBundle`."""

MAX_WARNINGS = 10
MAX_WARNING_LENGTH = 256
"""Bytes of one warning, the API server's limit (apiserver `pkg/endpoints/filters/warning.go`)."""


def register_kinds(server: WebhookServer, kinds: Iterable[Kind]) -> None:
    """Serves the validation of each kind at upstream's path, such as `/validate-kubeflow-org-v1-pytorchjob`."""
    for kind in kinds:
        server.register(validating_path(kind.resource), build_handler(kind))


def build_handler(kind: Kind) -> Handler:
    """The handler that validates objects of `kind` when they are created or updated. All other operations are
    admitted."""

    def answer(request: AdmissionRequest) -> AdmissionResponse:
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return allow()
        try:
            new, old = _read(request.object), _read(request.old_object)
        except (*UNREADABLE, AttributeError) as error:  # only from callers other than the API server
            return refuse(400, cut(f"the object cannot be decoded: {error}"))
        return respond(kind.judge(new, old)) if new is not None else allow()

    return answer


def _read(raw: Json | None) -> Unstructured | None:
    return None if raw is None else Unstructured(raw)


def respond(judgement: Judgement) -> AdmissionResponse:
    """Admits the object or denies it with 403 Forbidden: one error as it is, several as `[e1, e2]`, bounded in
    length."""
    warnings = tuple(_bound(judgement.warnings))
    if not judgement.errors:
        return allow(*warnings)
    return deny(sentence(judgement.errors, judgement.more_errors), *warnings)


def _bound(warnings: Sequence[str]) -> Iterable[str]:
    """At most `MAX_WARNINGS`, each cut short: the API server drops what exceeds its own limits."""
    yield from (cut(warning, MAX_WARNING_LENGTH) for warning in warnings[:MAX_WARNINGS])
    if len(warnings) > MAX_WARNINGS:
        yield f"{len(warnings) - MAX_WARNINGS:,} more warnings are left out"


def rotation_options(namespace: str, service: str, secret: str) -> RotationOptions:
    """The certificates of upstream's webhook server: one Secret, one DNS name, one configuration."""
    return RotationOptions(
        secret=Key(namespace, secret),
        names=(f"{service}.{namespace}.svc",),
        configurations=(Configuration(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION),),
        authority="training-operator-ca",
        organization="training-operator",
    )


def readiness(rotation: CertificateRotation, certificate: ServingCertificate, server: WebhookServer) -> Check:
    """The readiness check of webhooks: certificates are ready, and the server accepts a TLS connection. Without the
    permission to maintain certificates there is no certificate, and the operator is ready without webhooks."""

    async def check() -> None:
        rotation.check()
        if certificate.loaded:
            await server.check()

    return check
