"""The settings of `trainop di-webhook`, read from the flags of DI-orchestrator (`cmd/webhook/main.go`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainop.flags import Flag, boolean_flag, parse_flags, parse_port, text_flag
from trainop.settings import ZAP_FLAGS, Settings, read_logs, read_settings

SERVICE, SECRET = "di-webhook-service", "di-webhook-server-cert"
CERTIFICATES = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108  # upstream's path, a mounted Secret


DI_WEBHOOK_FLAGS = (
    text_flag(
        "kubeconfig", "", "Path of a kubeconfig. Default: env KUBECONFIG, the pod's service account, ~/.kube/config."
    ),
    text_flag("metrics-bind-address", ":8080", "The address the metric endpoint binds to; 0 disables it."),
    text_flag("health-probe-bind-address", ":8081", "The address the probe endpoint binds to; 0 disables it."),
    boolean_flag("leader-elect", default=False, text="Ignored; every replica serves."),
    *ZAP_FLAGS,
    Flag("webhook-server-port", 9443, "The port of the webhook server.", parse_port, "int"),
    text_flag(
        "webhook-cert-dir",
        CERTIFICATES,
        "The folder with tls.crt and tls.key, read again when they change. Without it, the certificate is made here.",
    ),
    text_flag("webhook-service-name", SERVICE, "The Service of the webhook server."),
    text_flag("webhook-secret-name", SECRET, "The Secret with the certificate that is made here."),
)


def read_di_webhook_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, and `HelpRequested` for `-h`."""
    parsed = parse_flags(DI_WEBHOOK_FLAGS, args)
    values = {flag.name: flag.default for flag in DI_WEBHOOK_FLAGS} | parsed.values
    base, _ = read_settings((), environ)
    settings = replace(
        base,
        schemes=("DIJob",),
        webhooks_only=True,
        kubeconfig=values["kubeconfig"],
        metrics_bind_address=values["metrics-bind-address"],
        health_probe_bind_address=values["health-probe-bind-address"],
        webhook_server_port=values["webhook-server-port"],
        webhook_cert_dir=values["webhook-cert-dir"],
        webhook_service_name=values["webhook-service-name"],
        webhook_secret_name=values["webhook-secret-name"],
        logs=read_logs(values),
    )
    return settings, parsed.rest
