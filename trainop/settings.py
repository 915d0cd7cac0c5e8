"""The operator's settings, read from flags, environment variables and files into one frozen value.

No other module reads these sources. The flags are those of training-operator 1.9
(`cmd/training-operator.v1/main.go`) and additional ones of trainop, all in `FLAGS`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainop.engine.extensions import MODES
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.seen import Options
from trainop.errors import UsageError
from trainop.flags import (
    Flag,
    boolean_flag,
    one_of,
    parse_duration,
    parse_flags,
    parse_integer,
    parse_number,
    parse_port,
    parse_positive,
    text_flag,
)
from trainop.runtime.objects.metadata import ObjectReference
from trainop.runtime.objects.resource import Resource

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TRAINING_LEASE = "1ca428e5.training-operator.kubeflow.org"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The `--zap-*` flags of controller-runtime, as far as they apply (see `trainop/logs.py`)."""

    devel: bool = True
    encoder: str | None = None
    """`json` or `console`; None is console if `devel`, else json."""
    level: str | None = None
    """`debug`, `info` or `error`; None is debug if `devel`, else info."""
    stacktrace_level: str = "panic"
    time_encoding: str = "rfc3339"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the operator, one field per flag.

    Durations are in seconds. Addresses are `host:port` or `:port`; `0` and `""` disable the server.
    """

    metrics_bind_address: str = ":8080"
    metrics_secure: bool = False
    """Serve metrics over TLS, to callers with permission to `get` the path."""
    metrics_cert_dir: str = ""
    """Folder with `tls.crt` and `tls.key`; empty means a self-signed certificate."""
    health_probe_bind_address: str = ":8081"
    leader_elect: bool = False
    leader_election_id: str = TRAINING_LEASE
    leader_election_namespace: str = ""
    leader_lease_duration: float = 15.0
    leader_renew_deadline: float = 10.0
    leader_retry_period: float = 2.0
    schemes: tuple[str, ...] = ()
    """Enabled kinds, as given; empty means all."""
    required: tuple[Resource, ...] = ()
    """The operator does not start if the API server serves none of these; empty: it starts without CRDs."""
    namespace: str = ""
    """The namespace to watch; empty means all."""
    controller_threads: int = 8
    kube_api_qps: float | None = None
    """Client-side rate limit in requests per second; None leaves rate limiting to the API server."""
    kube_api_burst: int | None = None
    webhook_server_port: int = 9443
    """0 disables admission webhooks, as does an empty `pod_namespace`."""
    webhook_cert_dir: str = ""
    """Folder with `tls.crt` and `tls.key`; without a certificate there at start, one is maintained in a Secret."""
    di_webhooks: bool = False
    """Serve the webhooks of DIJobs, too, which have webhook configurations of their own."""
    webhooks_only: bool = False
    """Serve the webhooks of the enabled kinds, and run no controllers."""
    webhook_service_name: str = "training-operator"
    webhook_secret_name: str = "training-operator-webhook-cert"  # noqa: S105  # a name
    kubeconfig: str = ""
    graceful_shutdown_timeout: float = 30.0
    pod_events: bool = False
    depth_by_priority: bool = False
    options: Options = field(default_factory=Options)
    logs: LogSettings = field(default_factory=LogSettings)
    pod_namespace: str = ""
    """The namespace of the operator's pod; empty outside a cluster."""
    pod: ObjectReference | None = None
    """The operator's own pod; None outside a cluster."""
    hostname: str = ""
    """Part of the identity in leader election."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to watch; empty means all."""
        return (self.namespace,) if self.namespace else ()


def _parse_level(text: str) -> str:
    """Parses a level, or a verbosity above 0, which means debug."""
    if text.lower() in {"debug", "info", "error"}:
        return text.lower()
    if text.isdecimal() and int(text) > 0:
        return "debug"
    raise ValueError(f'invalid log level "{text}"')


def _int(name: str, default: int, help_: str) -> Flag:
    return Flag(name, default, help_, parse_integer, "int")


UPSTREAM_FLAGS = (
    text_flag("metrics-bind-address", ":8080", "The address the metric endpoint binds to; 0 disables it."),
    text_flag("health-probe-bind-address", ":8081", "The address the probe endpoint binds to; 0 disables it."),
    boolean_flag("leader-elect", default=False, text="Reconcile only while holding the leader election lease."),
    text_flag("leader-election-id", TRAINING_LEASE, "The name of the leader election lease."),
    Flag(
        "enable-scheme",
        (),
        "Enable a kind, for example --enable-scheme=TFJob --enable-scheme=PyTorchJob, case insensitive."
        " Kinds: TFJob, PyTorchJob, MXJob, XGBoostJob, MPIJob, PaddleJob, JAXJob, DIJob."
        " By default, all are enabled.",
        str,
        "value",
        repeatable=True,
    ),
    text_flag(
        "gang-scheduler-name",
        "",
        "The scheduler for gang scheduling: 'volcano', or the name of a scheduler with the coscheduling plugin;"
        " empty disables it.",
    ),
    text_flag("namespace", "", "The namespace to watch (env KUBEFLOW_NAMESPACE); empty means all namespaces."),
    Flag("controller-threads", 8, "Concurrent reconciles per kind.", parse_positive, "int"),
    Flag(
        "kube-api-qps",
        None,
        "Client-side rate limit in requests per second; unlimited by default.",
        parse_number,
        "float",
    ),
    Flag("kube-api-burst", None, "Burst of --kube-api-qps (30 if only that flag is given).", parse_integer, "int"),
    text_flag("pytorch-init-container-image", "alpine:3.10", "The image of PyTorchJob's init container."),
    text_flag(
        "pytorch-init-container-template-file",
        "/etc/config/initContainer.yaml",
        "The template of PyTorchJob's init container; a built-in one if the file does not exist.",
    ),
    _int("pytorch-init-container-max-tries", 100, "Attempts of the init container to resolve the master's name."),
    text_flag(
        "mpi-kubectl-delivery-image", "kubeflow/kubectl-delivery:latest", "The image that delivers kubectl to MPIJobs."
    ),
    Flag("webhook-server-port", 9443, "The port of the webhook server; 0 disables it.", parse_port, "int"),
    text_flag("webhook-service-name", "training-operator", "The Service of the webhook server."),
    text_flag(
        "webhook-secret-name", "training-operator-webhook-cert", "The Secret with the webhook server's certificate."
    ),
    text_flag(
        "kubeconfig", "", "Path of a kubeconfig. Default: env KUBECONFIG, the pod's service account, ~/.kube/config."
    ),
    Flag("monitoring-port", 9443, "Ignored; accepted for compatibility with training-operator 1.7.", parse_port, "int"),
)

ZAP_FLAGS = (
    boolean_flag(
        "zap-devel", default=True, text="Development defaults: encoder console, level debug; if false: json, info."
    ),
    Flag("zap-encoder", None, "'json' or 'console'.", one_of("json", "console"), "value"),
    Flag(
        "zap-log-level",
        None,
        "'debug', 'info', 'error', or a number above 0, which means debug.",
        _parse_level,
        "value",
    ),
    Flag(
        "zap-stacktrace-level",
        "panic",
        "The lowest level with stack traces: 'info', 'error' or 'panic'.",
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
    boolean_flag(
        "pod-events",
        default=False,
        text="Record an event for each pod and service created or deleted, and each pod that succeeded.",
    ),
    boolean_flag(
        "workqueue-depth-by-priority",
        default=False,
        text="Add the label priority to the metric workqueue_depth, as newer versions of controller-runtime do.",
    ),
    boolean_flag(
        "metrics-secure",
        default=False,
        text="Serve metrics over TLS, only to callers that are allowed to `get` /metrics. The operator needs"
        " permission to create tokenreviews and subjectaccessreviews.",
    ),
    text_flag(
        "metrics-cert-dir",
        "",
        "With --metrics-secure: the folder with tls.crt and tls.key. Default: a self-signed certificate for localhost.",
    ),
    Flag(
        "service-mode",
        "replica",
        "'replica': one Service per replica, as upstream; 'leader': only the Services needed for rendezvous;"
        " 'job': one Service per job.",
        one_of(*MODES),
        "value",
    ),
    Flag(
        "force-delete-after",
        None,
        "Force-delete pods that are still terminating this long after their grace period (lost node). Default: never.",
        parse_duration,
        "duration",
    ),
    Flag("graceful-shutdown-timeout", 30.0, "Grace period of the shutdown.", parse_duration, "duration"),
    text_flag(
        "cluster-domain",
        "",
        "The domain of the cluster's DNS, such as cluster.local: appended to the host names of MPIJobs with transport"
        " ssh, and part of the search domain of --service-mode=job (default there: cluster.local).",
    ),
    boolean_flag(
        "mpi-job-ttl",
        default=False,
        text="Delete MPIJobs with transport ssh after ttlSecondsAfterFinished, and not only their launchers' Jobs.",
    ),
    text_flag(
        "di-server-address",
        "di-server.di-system:8080",
        "The address of di-server that the coordinators of DIJobs get, with or without http://.",
    ),
    boolean_flag(
        "di-webhooks",
        default=False,
        text="Serve the webhooks of DIJobs, too, and write the CA into their configurations, as di-webhook does.",
    ),
    boolean_flag(
        "di-graceful-deletion",
        default=False,
        text="Give the pods of finished DIJobs their grace period. By default it is 0, as with DI-orchestrator.",
    ),
    text_flag("leader-election-namespace", "", "The namespace of the lease. Default: that of the operator's pod."),
    Flag(
        "leader-elect-lease-duration",
        15.0,
        "How long standbys wait before they take a lease that is not renewed.",
        parse_duration,
        "duration",
    ),
    Flag(
        "leader-elect-renew-deadline",
        10.0,
        "How long the leader retries renewing before it gives up leadership.",
        parse_duration,
        "duration",
    ),
    Flag(
        "leader-elect-retry-period", 2.0, "Interval between attempts to acquire or renew.", parse_duration, "duration"
    ),
)

FLAGS = (*UPSTREAM_FLAGS, *ZAP_FLAGS, *OUR_FLAGS)


def read_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings from flags and environment variables; also returns the non-flag arguments.

    Raises `UsageError`, and `HelpRequested` for `-h`.
    """
    parsed = parse_flags(FLAGS, args)
    values = {flag.name: flag.default for flag in FLAGS} | parsed.values
    return settings_of(values, environ), parsed.rest


def settings_of(values: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings with these values of all `FLAGS`, by name. Raises `UsageError`."""
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
        namespace=values["namespace"] or environ.get("KUBEFLOW_NAMESPACE", ""),
        controller_threads=values["controller-threads"],
        kube_api_qps=values["kube-api-qps"],
        kube_api_burst=values["kube-api-burst"],
        webhook_server_port=values["webhook-server-port"],
        di_webhooks=values["di-webhooks"],
        webhook_service_name=values["webhook-service-name"],
        webhook_secret_name=values["webhook-secret-name"],
        kubeconfig=values["kubeconfig"],
        graceful_shutdown_timeout=values["graceful-shutdown-timeout"],
        pod_events=values["pod-events"],
        depth_by_priority=values["workqueue-depth-by-priority"],
        options=_options(values, environ),
        logs=read_logs(values),
        pod_namespace=environ.get("MY_POD_NAMESPACE", "") or _service_account_namespace(),
        pod=_own_pod(environ),
        hostname=socket.gethostname(),
    )
    if not settings.leader_lease_duration > settings.leader_renew_deadline > 1.2 * settings.leader_retry_period:
        raise UsageError("--leader-elect-lease-duration > --leader-elect-renew-deadline > 1.2 x retry period must hold")
    return settings


def read_logs(values: Mapping[str, Any]) -> LogSettings:
    """From the values of `ZAP_FLAGS`."""
    return LogSettings(
        devel=values["zap-devel"],
        encoder=values["zap-encoder"],
        level=values["zap-log-level"],
        stacktrace_level=values["zap-stacktrace-level"],
        time_encoding=values["zap-time-encoding"],
    )


def _options(values: Mapping[str, Any], environ: Mapping[str, str]) -> Options:
    return Options(
        cluster_domain=environ.get("CUSTOM_CLUSTER_DOMAIN", ""),
        pytorch_init_image=values["pytorch-init-container-image"],
        pytorch_init_template=_read_template(Path(values["pytorch-init-container-template-file"])),
        pytorch_init_max_tries=values["pytorch-init-container-max-tries"],
        force_delete_after=values["force-delete-after"],
        service_mode=values["service-mode"],
        gang=choose_scheduler(values["gang-scheduler-name"]),
        mpi_delivery_image=values["mpi-kubectl-delivery-image"],
        mpi_cluster_domain=values["cluster-domain"],
        mpi_job_ttl=values["mpi-job-ttl"],
        di_server_address=values["di-server-address"],
        di_graceful_deletion=values["di-graceful-deletion"],
    )


def _own_pod(environ: Mapping[str, str]) -> ObjectReference | None:
    """From the variables that the Deployment sets; the UID is absent from older Deployments."""
    namespace, name = environ.get("MY_POD_NAMESPACE", ""), environ.get("MY_POD_NAME", "")
    if not namespace or not name:
        return None
    return ObjectReference("v1", "Pod", namespace, name, environ.get("MY_POD_UID", ""))


def _read_template(path: Path) -> str | None:
    """The text of the file; None, which means the built-in template, if it does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--pytorch-init-container-template-file {path}: {error}") from None


def _service_account_namespace() -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return ""
