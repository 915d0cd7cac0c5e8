"""What a program serves: health probes, metrics, and admission webhooks with their certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from trainop.runtime.builder.context import OperatorParts
from trainop.runtime.metrics.authorize import Authorizer, require_permission
from trainop.runtime.serving.certificate_folder import CertificateFolder, ServingCertificate
from trainop.runtime.serving.server import Address, HttpServer, health_application, metrics_application
from trainop.runtime.webhook.admission import AdmissionHandler
from trainop.runtime.webhook.rotation import CertificateRotation, RotationOptions
from trainop.runtime.webhook.server import WebhookServer


def serve_probes(parts: OperatorParts, address: Address | None) -> None:
    """Serves `/healthz` and `/readyz`; None: nowhere."""
    manager = parts.manager
    application = health_application(manager.health, manager.ready)
    manager.add_http(HttpServer("health probes", address, application), "health probes")


def serve_metrics(parts: OperatorParts, address: Address | None, secure: Path | bool) -> None:
    """Serves `/metrics`; None: nowhere. If `secure`, over TLS and to callers with the permission to read it, with the
    certificate in that folder, which is read again when it changes, or else one for localhost that is made here."""
    registry = parts.metrics.registry
    if secure is False:
        server = HttpServer("metrics", address, metrics_application(registry))
    else:
        application = metrics_application(registry, require_permission(Authorizer(parts.unfenced)))
        server = HttpServer("metrics", address, application, _metrics_certificate(parts, secure).context)
    parts.manager.add_http(server, "metrics")


def _metrics_certificate(parts: OperatorParts, folder: Path | bool) -> ServingCertificate:
    certificate = ServingCertificate()
    if isinstance(folder, Path):
        parts.manager.add(CertificateFolder(folder, certificate, metrics=parts.metrics), "metrics certificate")
        return certificate
    from trainop.runtime.webhook.certificates import issue, make_authority  # noqa: PLC0415  # `cryptography` takes 20 MiB

    now = datetime.now(UTC)
    pair = issue(make_authority("metrics-ca", "metrics", now), ["localhost"], now)
    certificate.load(pair.certificate, pair.key)
    return certificate


def serve_webhooks(
    parts: OperatorParts,
    handlers: Mapping[str, AdmissionHandler],
    options: RotationOptions,
    *,
    port: int = 9443,
    folder: Path | None = None,
    announce: Callable[[str], None] | None = None,
) -> ServingCertificate:
    """Serves admission webhooks by path, on every replica; controllers never wait for them. The certificate is that in
    `folder`, read again when it changes; without a `tls.crt` there it is made, rotated and stored in a Secret as
    `options` say, and `announce` gets what an administrator has to change. The program is ready once the server
    accepts TLS connections, or if it has no permission to maintain a certificate. Other servers may use the returned
    certificate."""
    certificate = ServingCertificate(server_name=options.names[0])
    server = WebhookServer(certificate, address=Address(None, port), metrics=parts.metrics, clock=parts.clock)
    for path, handler in handlers.items():
        server.register(path, handler)
    manager = parts.manager
    manager.add_webhooks(server)
    if folder and (folder / "tls.crt").exists():
        watched = CertificateFolder(folder, certificate, metrics=parts.metrics, clock=parts.clock)
        manager.add(watched, "certificates")
        manager.ready.add("webhooks", server.check)
        return certificate
    rotation = CertificateRotation(
        parts.unfenced, options, certificate, clock=parts.clock, rng=parts.rng, metrics=parts.metrics, announce=announce
    )
    manager.add(rotation, "certificates")

    async def check() -> None:
        rotation.check()
        if certificate.loaded:
            await server.check()

    manager.ready.add("webhooks", check)
    return certificate
