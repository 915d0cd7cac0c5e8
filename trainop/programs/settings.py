"""The operator's settings, read from flags, environment variables and files into one frozen value.

No other module reads these sources. The flags are those of training-operator 1.9
(`cmd/training-operator.v1/main.go`) and additional ones of trainop, all in `FLAGS`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainop.engine.durations import parse_duration
from trainop.engine.extensions import MODES
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.progress import ProgressEndpoint
from trainop.engine.seen import FALLBACK, FILE, Options
from trainop.errors import UsageError
from trainop.logs import LogSettings
from trainop.programs.flags import (
    Flag,
    assign,
    bind,
    one_of,
    parse_boolean,
    parse_flags,
    parse_integer,
    parse_number,
    parse_port,
    parse_positive,
    setting,
    split_names,
    switch,
    text_flag,
)
from trainop.programs.log_flags import ZAP_FLAGS
from trainop.runtime import ObjectReference, Resource
from trainop.runtime.lowlevel import parse_address

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE = "kubeflow"
"""The namespace of the manifests, for what is planned outside a cluster."""
TRAINING_LEASE = "1ca428e5.training-operator.kubeflow.org"


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
    queued: tuple[str, ...] = ()
    """The kinds that the operator queues with Kueue itself, as given; empty means none."""
    required: tuple[Resource, ...] = ()
    """The operator does not start if the API server serves none of these; empty: it starts without CRDs."""
    namespace: str = ""
    """The namespaces to watch, separated by commas; empty means all."""
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
    progress_bind_address: str = "0"
    """Where pods report progress, over TLS with the certificate of the webhooks."""
    progress_job_metrics: bool = False
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
        return split_names(self.namespace)


def _parse_policy(text: str) -> str:
    found = {each.casefold(): each for each in (FALLBACK, FILE)}.get(text.casefold())
    if found is None:
        raise ValueError(f"must be one of {FALLBACK}, {FILE}")
    return found


_NAMESPACES = "The namespaces to watch, separated by commas (env KUBEFLOW_NAMESPACE); empty means all namespaces."

UPSTREAM_FLAGS = (
    setting("metrics-bind-address", "The address the metric endpoint binds to; 0 disables it."),
    setting("health-probe-bind-address", "The address the probe endpoint binds to; 0 disables it."),
    switch("leader-elect", "Reconcile only while holding the leader election lease."),
    setting("leader-election-id", "The name of the leader election lease."),
    setting(
        "enable-scheme",
        "Enable a kind, for example --enable-scheme=TFJob --enable-scheme=PyTorchJob, case insensitive."
        " Kinds: TFJob, PyTorchJob, MXJob, XGBoostJob, MPIJob, PaddleJob, JAXJob, DIJob."
        " By default, all are enabled. TrainJob, those of Kubeflow's SDK, is enabled only if named: by itself, besides"
        " all others.",
        kind="value",
        field="schemes",
        repeatable=True,
    ),
    setting(
        "gang-scheduler-name",
        "The scheduler for gang scheduling: 'volcano', 'kube-scheduler' (Kubernetes 1.37), or the name of a scheduler"
        " with the coscheduling plugin; empty disables it.",
        choose_scheduler,
        field="options.gang",
    ),
    setting("namespace", _NAMESPACES),
    setting("controller-threads", "Concurrent reconciles per kind.", parse_positive, "int"),
    setting(
        "kube-api-qps", "Client-side rate limit in requests per second; unlimited by default.", parse_number, "float"
    ),
    setting("kube-api-burst", "Burst of --kube-api-qps (30 if only that flag is given).", parse_integer, "int"),
    setting(
        "pytorch-init-container-image", "The image of PyTorchJob's init container.", field="options.pytorch_init_image"
    ),
    text_flag(
        "pytorch-init-container-template-file",
        "/etc/config/initContainer.yaml",
        "The template of PyTorchJob's init container; a built-in one if the file does not exist.",
    ),
    setting(
        "pytorch-init-container-max-tries",
        "Attempts of the init container to resolve the master's name.",
        parse_integer,
        "int",
        field="options.pytorch_init_max_tries",
    ),
    setting(
        "mpi-kubectl-delivery-image",
        "The image that delivers kubectl to MPIJobs.",
        field="options.mpi_delivery_image",
    ),
    setting("webhook-server-port", "The port of the webhook server; 0 disables it.", parse_port, "int"),
    setting("webhook-service-name", "The Service of the webhook server."),
    setting("webhook-secret-name", "The Secret with the webhook server's certificate."),
    setting("kubeconfig", "Path of a kubeconfig. Default: env KUBECONFIG, the pod's service account, ~/.kube/config."),
    Flag("monitoring-port", 9443, "Ignored; accepted for compatibility with training-operator 1.7.", parse_port, "int"),
)

OUR_FLAGS = (
    setting(
        "termination-message-policy",
        f"The terminationMessagePolicy of containers whose template names none. '{FALLBACK}': of a container that"
        f" fails, the end of the log is part of the pod's status, and the operator names it; '{FILE}': as in"
        " Kubernetes.",
        _parse_policy,
        "value",
        field="options.termination_message_policy",
    ),
    switch(
        "pod-events",
        "Record an event for each pod and service created or deleted, and each pod that succeeded.",
    ),
    switch(
        "workqueue-depth-by-priority",
        "Add the label priority to the metric workqueue_depth, as newer versions of controller-runtime do.",
        field="depth_by_priority",
    ),
    switch(
        "metrics-secure",
        "Serve metrics over TLS, only to callers that are allowed to `get` /metrics. The operator needs"
        " permission to create tokenreviews and subjectaccessreviews.",
    ),
    setting(
        "metrics-cert-dir",
        "With --metrics-secure: the folder with tls.crt and tls.key. Default: a self-signed certificate for localhost.",
    ),
    setting(
        "service-mode",
        "'replica': one Service per replica, as upstream; 'leader': only the Services needed for rendezvous;"
        " 'job': one Service per job.",
        one_of(*MODES),
        "value",
        field="options.service_mode",
    ),
    setting(
        "kueue",
        "The kinds whose jobs with a queue of Kueue the operator queues itself, separated by commas, such as MXJob."
        " Only kinds that Kueue's own configuration does not integrate. By default, none.",
        split_names,
        "kinds",
        field="queued",
    ),
    setting(
        "force-delete-after",
        "Force-delete pods that are still terminating this long after their grace period (lost node). Default: never.",
        parse_duration,
        "duration",
        field="options.force_delete_after",
    ),
    setting(
        "waiting-after",
        "An unfinished job that does not move for this long says what it waits for, in the condition Waiting and an"
        " event; 0: never.",
        parse_duration,
        "duration",
        field="options.waiting_after",
    ),
    setting(
        "progress-bind-address",
        "The address to which the pods of jobs report their progress, such as :9444; 0 disables it. It has the"
        " certificate of the webhooks, and the Service --webhook-service-name must have the same port.",
    ),
    Flag(
        "progress",
        False,
        "With --progress-bind-address: the pods of all jobs can report progress, but for those with the annotation"
        ' trainop.kubeflow.org/progress: "false".',
        parse_boolean,
        boolean=True,
    ),
    switch(
        "progress-job-metrics",
        "Export the metric trainop_job_progress_ratio, with one series for each of up to 1,000 jobs that report.",
    ),
    text_flag(
        "progress-url",
        "",
        "Scheme, host and port of --progress-bind-address as pods see it. Default: https, the Service"
        " --webhook-service-name in the operator's namespace, and the same port.",
    ),
    setting("graceful-shutdown-timeout", "Grace period of the shutdown.", parse_duration, "duration"),
    setting(
        "cluster-domain",
        "The domain of the cluster's DNS, such as cluster.local: appended to the host names of MPIJobs with transport"
        " ssh, and part of the search domain of --service-mode=job (default there: cluster.local).",
        field="options.mpi_cluster_domain",
    ),
    switch(
        "mpi-job-ttl",
        "Delete MPIJobs with transport ssh after ttlSecondsAfterFinished, and not only their launchers' Jobs.",
        field="options.mpi_job_ttl",
    ),
    setting(
        "di-server-address",
        "The address of di-server that the coordinators of DIJobs get, with or without http://.",
        field="options.di_server_address",
    ),
    switch(
        "di-webhooks",
        "Serve the webhooks of DIJobs, too, and write the CA into their configurations, as di-webhook does.",
    ),
    switch(
        "di-graceful-deletion",
        "Give the pods of finished DIJobs their grace period. By default it is 0, as with DI-orchestrator.",
        field="options.di_graceful_deletion",
    ),
    setting("leader-election-namespace", "The namespace of the lease. Default: that of the operator's pod."),
    setting(
        "leader-elect-lease-duration",
        "How long standbys wait before they take a lease that is not renewed.",
        parse_duration,
        "duration",
        field="leader_lease_duration",
    ),
    setting(
        "leader-elect-renew-deadline",
        "How long the leader retries renewing before it gives up leadership.",
        parse_duration,
        "duration",
        field="leader_renew_deadline",
    ),
    setting(
        "leader-elect-retry-period",
        "Interval between attempts to acquire or renew.",
        parse_duration,
        "duration",
        field="leader_retry_period",
    ),
)

FLAGS = bind(Settings(), (*UPSTREAM_FLAGS, *ZAP_FLAGS, *OUR_FLAGS))
"""The flags of `trainop operator`."""


def shared(*names: str) -> tuple[Flag, ...]:
    """These of `FLAGS`, for another program."""
    known = {flag.name: flag for flag in FLAGS}
    return tuple(known[name] for name in names)


def read_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings from flags and environment variables; also returns the non-flag arguments.

    Raises `UsageError`, and `HelpRequested` for `-h`.
    """
    settings, values, rest = parse_settings(Settings(), FLAGS, args, environ)
    name = "pytorch-init-container-template-file"
    (template,) = shared(name)
    text = _read_template(Path(values.get(name, template.default)))
    progress = _read_endpoint(settings, values)
    options = replace(settings.options, pytorch_init_template=text, progress=progress)
    return replace(settings, options=options), rest


def parse_settings(
    settings: Settings, flags: Sequence[Flag], args: Sequence[str], environ: Mapping[str, str]
) -> tuple[Settings, Mapping[str, Any], tuple[str, ...]]:
    """The settings of a program with the given defaults and flags, as far as flags and environment variables change
    them; the values of the given flags, by name; and the non-flag arguments. Raises as `read_settings`."""
    parsed = parse_flags(flags, args)
    settings = assign(settings, flags, parsed.values)
    namespace = settings.namespace or environ.get("KUBEFLOW_NAMESPACE", "")
    installation = "namespaced" if namespace == environ.get("MY_POD_NAMESPACE") else ""
    options = replace(
        settings.options,
        cluster_domain=environ.get("CUSTOM_CLUSTER_DOMAIN", ""),
        installation=settings.options.installation or installation,
    )
    settings = replace(
        settings,
        namespace=namespace,
        options=options,
        pod_namespace=environ.get("MY_POD_NAMESPACE", "") or _service_account_namespace(),
        pod=_own_pod(environ),
        hostname=socket.gethostname(),
    )
    if not settings.leader_lease_duration > settings.leader_renew_deadline > 1.2 * settings.leader_retry_period:
        raise UsageError("--leader-elect-lease-duration > --leader-elect-renew-deadline > 1.2 x retry period must hold")
    return settings, parsed.values, parsed.rest


def _read_endpoint(settings: Settings, values: Mapping[str, Any]) -> ProgressEndpoint | None:
    """What pods are told about the endpoint for progress; None if it is disabled."""
    try:
        address = parse_address(settings.progress_bind_address)
    except ValueError as error:
        raise UsageError(f"--progress-bind-address: {error}") from None
    if address is None:
        return None
    service = f"{settings.webhook_service_name}.{settings.pod_namespace or DEFAULT_NAMESPACE}.svc"
    url = str(values.get("progress-url") or f"https://{service}:{address.port}").rstrip("/")
    if not url.startswith("https://"):
        raise UsageError(f"--progress-url: {url!r} must begin with https://: pods send tokens to it")
    return ProgressEndpoint(url, everywhere=bool(values.get("progress")))


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
