"""All that can be set about the operator, as one frozen value. Nobody else reads flags, the environment or files.

The flags are those of training-operator 1.9 (`cmd/training-operator.v1/main.go`) and ours, in `FLAGS`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainop.engine.seen import Options
from trainop.errors import UsageError
from trainop.flags import (
    Flag,
    boolean,
    one_of,
    parse_duration,
    parse_flags,
    parse_integer,
    parse_number,
    parse_port,
    parse_positive,
)

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TRAINING_LEASE = "1ca428e5.training-operator.kubeflow.org"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`--zap-*`: what zap's own flags meant, as far as it makes sense here (`trainop/logs.py`)."""

    devel: bool = True
    encoder: str | None = None
    """`json` or `console`; None is console if `devel`, else json."""
    level: str | None = None
    """`debug`, `info` or `error`; None is debug if `devel`, else info."""
    stacktrace_level: str = "panic"
    time_encoding: str = "rfc3339"


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in seconds; addresses as `host:port` or `:port`, `0` and `""` switch a server off."""

    metrics_bind_address: str = ":8080"
    metrics_secure: bool = False
    """Over TLS, and only to who may `get` the path."""
    metrics_cert_dir: str = ""
    """With `tls.crt` and `tls.key`; empty is a certificate of our own."""
    health_probe_bind_address: str = ":8081"
    leader_elect: bool = False
    leader_election_id: str = TRAINING_LEASE
    leader_election_namespace: str = ""
    leader_lease_duration: float = 15.0
    leader_renew_deadline: float = 10.0
    leader_retry_period: float = 2.0
    schemes: tuple[str, ...] = ()
    """As given; none is all."""
    gang_scheduler_name: str = ""
    namespace: str = ""
    """The one namespace to watch; empty is all."""
    controller_threads: int = 8
    kube_api_qps: float | None = None
    """A limit on the client's side only if one is given; otherwise the API server's own rules."""
    kube_api_burst: int | None = None
    kubeconfig: str = ""
    graceful_shutdown_timeout: float = 30.0
    pod_events: bool = False
    depth_by_priority: bool = False
    options: Options = field(default_factory=Options)
    logs: LogSettings = field(default_factory=LogSettings)
    pod_namespace: str = ""
    """Where the operator itself runs; empty outside a cluster."""
    hostname: str = ""
    """Part of the identity of a leader."""


def _parse_level(text: str) -> str:
    """A level, or a verbosity above 0, which means debug."""
    if text.lower() in {"debug", "info", "error"}:
        return text.lower()
    if text.isdecimal() and int(text) > 0:
        return "debug"
    raise ValueError(f'invalid log level "{text}"')


def _text(name: str, default: str, help_: str) -> Flag:
    return Flag(name, default, help_, str, "string")


def _int(name: str, default: int, help_: str) -> Flag:
    return Flag(name, default, help_, parse_integer, "int")


UPSTREAM_FLAGS = (
    _text("metrics-bind-address", ":8080", "The address the metric endpoint binds to; 0 disables it."),
    _text("health-probe-bind-address", ":8081", "The address the probe endpoint binds to; 0 disables it."),
    boolean("leader-elect", default=False, text="Act only while holding the leader-election lease."),
    _text("leader-election-id", TRAINING_LEASE, "The name of the leader-election lease."),
    Flag(
        "enable-scheme",
        (),
        "Enable a kind, for example --enable-scheme=TFJob --enable-scheme=PyTorchJob, case insensitive."
        " Now supporting TFJob, PyTorchJob, MXJob, XGBoostJob, MPIJob, PaddleJob, JAXJob, DIJob."
        " By default, all are enabled.",
        str,
        "value",
        repeatable=True,
    ),
    _text("gang-scheduler-name", "", "The scheduler that gangs of pods are given to; empty is no gang scheduling."),
    _text("namespace", "", "The namespace to watch (env KUBEFLOW_NAMESPACE); empty is all namespaces."),
    Flag("controller-threads", 8, "Workers per kind.", parse_positive, "int"),
    Flag("kube-api-qps", None, "Requests per second at most; no limit without the flag.", parse_number, "float"),
    Flag("kube-api-burst", None, "Burst beyond --kube-api-qps (30 if only that is given).", parse_integer, "int"),
    _text("pytorch-init-container-image", "alpine:3.10", "The image of PyTorchJob's init container."),
    _text(
        "pytorch-init-container-template-file",
        "/etc/config/initContainer.yaml",
        "The template of PyTorchJob's init container; built in if there is no such file.",
    ),
    _int("pytorch-init-container-max-tries", 100, "How often the init container looks for the master."),
    _text("mpi-kubectl-delivery-image", "kubeflow/kubectl-delivery:latest", "Delivers kubectl to MPIJobs."),
    Flag("webhook-server-port", 9443, "The port of the webhook server.", parse_port, "int"),
    _text("webhook-service-name", "training-operator", "The Service of the webhook server."),
    _text("webhook-secret-name", "training-operator-webhook-cert", "The Secret with the webhook server's certificate."),
    _text("kubeconfig", "", "Path of a kubeconfig; else env KUBECONFIG, the pod's own account, ~/.kube/config."),
    Flag("monitoring-port", 9443, "Accepted for training-operator 1.7 and ignored.", parse_port, "int"),
)

ZAP_FLAGS = (
    boolean("zap-devel", default=True, text="By default encoder console and level debug; else json and info."),
    Flag("zap-encoder", None, "'json' or 'console'.", one_of("json", "console"), "value"),
    Flag("zap-log-level", None, "'debug', 'info', 'error', or a number above 0: debug.", _parse_level, "value"),
    Flag(
        "zap-stacktrace-level",
        "panic",
        "The level from which call stacks are logged: 'info', 'error' or 'panic'.",
        one_of("info", "error", "panic"),
        "value",
    ),
    Flag(
        "zap-time-encoding",
        "rfc3339",
        "'epoch', 'millis', 'nanos', 'iso8601', 'rfc3339' or 'rfc3339nano'.",
        one_of("epoch", "millis", "nano", "nanos", "iso8601", "rfc3339", "rfc3339nano"),
        "value",
    ),
)

OUR_FLAGS = (
    boolean(
        "pod-events", default=False, text="Record an event for each pod and service created, deleted or ended well."
    ),
    boolean(
        "workqueue-depth-by-priority",
        default=False,
        text="Split the metric workqueue_depth by one more label, priority, as newer controller-runtimes do.",
    ),
    boolean(
        "metrics-secure",
        default=False,
        text="Serve metrics over TLS, and only to callers whom the API server lets `get` /metrics. The operator needs"
        " the right to create tokenreviews and subjectaccessreviews.",
    ),
    _text(
        "metrics-cert-dir",
        "",
        "With --metrics-secure: the folder with tls.crt and tls.key; by default a self-signed one for localhost.",
    ),
    Flag(
        "service-mode",
        "replica",
        "'replica': one Service per replica, as upstream; 'leader': only those that rendezvous needs.",
        one_of("replica", "leader"),
        "value",
    ),
    Flag(
        "force-delete-after",
        None,
        "Delete by force what still terminates this long after its grace period (a dead node); else never.",
        parse_duration,
        "duration",
    ),
    Flag("graceful-shutdown-timeout", 30.0, "How long a stop may take.", parse_duration, "duration"),
    _text("leader-election-namespace", "", "The namespace of the lease; by default the operator's own."),
    Flag("leader-elect-lease-duration", 15.0, "How long a lease is valid.", parse_duration, "duration"),
    Flag("leader-elect-renew-deadline", 10.0, "How long to try to renew it.", parse_duration, "duration"),
    Flag("leader-elect-retry-period", 2.0, "How long to wait between tries.", parse_duration, "duration"),
)

FLAGS = (*UPSTREAM_FLAGS, *ZAP_FLAGS, *OUR_FLAGS)


def read_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """The settings that the command line and the environment ask for, and the arguments that are no flags.

    Raises `UsageError`, and `HelpRequested` on `-h`.
    """
    parsed = parse_flags(FLAGS, args)
    values = {flag.name: flag.default for flag in FLAGS} | parsed.values
    return _settings(values, environ), parsed.rest


def _settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    settings = Settings(
        metrics_bind_address=values["metrics-bind-address"],
        metrics_secure=values["metrics-secure"],
        metrics_cert_dir=values["metrics-cert-dir"],
        health_probe_bind_address=values["health-probe-bind-address"],
        leader_elect=values["leader-elect"],
        leader_election_id=values["leader-election-id"],
        leader_election_namespace=values["leader-election-namespace"],
        leader_lease_duration=values["leader-elect-lease-duration"],
        leader_renew_deadline=values["leader-elect-renew-deadline"],
        leader_retry_period=values["leader-elect-retry-period"],
        schemes=values["enable-scheme"],
        gang_scheduler_name=values["gang-scheduler-name"],
        namespace=values["namespace"] or environ.get("KUBEFLOW_NAMESPACE", ""),
        controller_threads=values["controller-threads"],
        kube_api_qps=values["kube-api-qps"],
        kube_api_burst=values["kube-api-burst"],
        kubeconfig=values["kubeconfig"],
        graceful_shutdown_timeout=values["graceful-shutdown-timeout"],
        pod_events=values["pod-events"],
        depth_by_priority=values["workqueue-depth-by-priority"],
        options=_options(values, environ),
        logs=LogSettings(
            devel=values["zap-devel"],
            encoder=values["zap-encoder"],
            level=values["zap-log-level"],
            stacktrace_level=values["zap-stacktrace-level"],
            time_encoding=values["zap-time-encoding"],
        ),
        pod_namespace=environ.get("MY_POD_NAMESPACE", "") or _own_namespace(),
        hostname=socket.gethostname(),
    )
    if not settings.leader_lease_duration > settings.leader_renew_deadline > 1.2 * settings.leader_retry_period:
        raise UsageError("--leader-elect-lease-duration > --leader-elect-renew-deadline > 1.2 x retry period must hold")
    return settings


def _options(values: Mapping[str, Any], environ: Mapping[str, str]) -> Options:
    return Options(
        cluster_domain=environ.get("CUSTOM_CLUSTER_DOMAIN", ""),
        pytorch_init_image=values["pytorch-init-container-image"],
        pytorch_init_template=_read_template(Path(values["pytorch-init-container-template-file"])),
        pytorch_init_max_tries=values["pytorch-init-container-max-tries"],
        force_delete_after=values["force-delete-after"],
        service_mode=values["service-mode"],
    )


def _read_template(path: Path) -> str | None:
    """The text of the file; None if there is none, which means the built-in template."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--pytorch-init-container-template-file {path}: {error}") from None


def _own_namespace() -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return ""
