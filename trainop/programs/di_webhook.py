"""The settings of `trainop di-webhook`, read from the flags of DI-orchestrator (`cmd/webhook/main.go`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.programs.flags import bind, boolean_flag, parse_port, setting
from trainop.programs.log_flags import ZAP_FLAGS
from trainop.programs.settings import Settings, parse_settings, shared

SERVICE, SECRET = "di-webhook-service", "di-webhook-server-cert"
CERTIFICATES = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108  # upstream's path, a mounted Secret

DEFAULTS = Settings(
    schemes=("DIJob",),
    webhooks_only=True,
    webhook_cert_dir=CERTIFICATES,
    webhook_service_name=SERVICE,
    webhook_secret_name=SECRET,
)

DI_WEBHOOK_FLAGS = bind(
    DEFAULTS,
    (
        *shared("kubeconfig", "metrics-bind-address", "health-probe-bind-address"),
        boolean_flag("leader-elect", default=False, text="Ignored; every replica serves."),
        *ZAP_FLAGS,
        setting("webhook-server-port", "The port of the webhook server.", parse_port, "int"),
        setting(
            "webhook-cert-dir",
            "The folder with tls.crt and tls.key, read again when they change. Without it, the certificate is made"
            " here.",
        ),
        setting("webhook-service-name", "The Service of the webhook server."),
        setting("webhook-secret-name", "The Secret with the certificate that is made here."),
    ),
)


def read_di_webhook_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, and `HelpRequested` for `-h`."""
    settings, _, rest = parse_settings(DEFAULTS, DI_WEBHOOK_FLAGS, args, environ)
    return settings, rest
