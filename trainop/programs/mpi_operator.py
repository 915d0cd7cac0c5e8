"""The settings of `trainop mpi-operator`, read from the flags of mpi-operator (`cmd/mpi-operator/app/options`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.seen import Options
from trainop.errors import UsageError
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.logs import LogSettings
from trainop.programs.flags import (
    Flag,
    bind,
    boolean_flag,
    one_of,
    parse_integer,
    parse_port,
    parse_positive,
    setting,
    text_flag,
)
from trainop.programs.settings import Settings, parse_settings, shared

LEASE = "mpi-operator"
RETRY_PERIOD = 3.0
RENEW_DEADLINE = RETRY_PERIOD + 5.0
"""Seconds after the last renewal. client-go counts the 5 s of mpi-operator from its next attempt, a retry period later:
with 5 s in all, a busy API server would have 2 s to answer."""
DEBUG_VERBOSITY = 4
"""Value of `-v` from which on debug messages are logged."""

DEFAULTS = Settings(
    schemes=("MPIJob",),
    required=(MPI_V1, MPI_V2),
    metrics_bind_address="0",
    health_probe_bind_address=":8080",
    webhook_server_port=0,
    leader_elect=True,
    leader_election_id=LEASE,
    leader_election_namespace="mpi-operator",
    leader_lease_duration=15.0,
    leader_renew_deadline=RENEW_DEADLINE,
    leader_retry_period=RETRY_PERIOD,
    controller_threads=2,
    options=Options(installation="mpi-operator"),
    logs=LogSettings(encoder="console", level="info"),
)

_IGNORED = "Ignored; accepted for compatibility with mpi-operator."


class VersionRequested(Exception):  # noqa: N818  # not an error: the user requested the version
    """The arguments include `--version`."""


MPI_FLAGS = bind(
    DEFAULTS,
    (
        text_flag("master", "", "Not supported: use --kubeConfig."),
        setting("kubeConfig", "Path of a kubeconfig; env KUBECONFIG takes precedence.", field="kubeconfig"),
        *shared("namespace"),
        setting(
            "threadiness", "Concurrent reconciles per transport.", parse_positive, "int", field="controller_threads"
        ),
        boolean_flag("version", default=False, text="Print the version and exit."),
        Flag("monitoring-port", 0, "The port of the metrics endpoint; 0 disables it.", parse_port, "int"),
        setting(
            "gang-scheduling",
            "The scheduler for gang scheduling: volcano, kube-scheduler or another; empty disables it.",
            choose_scheduler,
            field="options.gang",
        ),
        setting("lock-namespace", "The namespace of the leader election lease.", field="leader_election_namespace"),
        *shared("kube-api-qps"),
        setting("kube-api-burst", "Burst of --kube-api-qps.", parse_integer, "int"),
        Flag("controller-queue-rate-limit", 10, _IGNORED, parse_integer, "int"),
        Flag("controller-queue-burst", 100, _IGNORED, parse_integer, "int"),
        setting(
            "cluster-domain",
            "Appended to the host names of transport ssh, such as cluster.local.",
            field="options.mpi_cluster_domain",
        ),
        *shared("mpi-job-ttl", "force-delete-after", "waiting-after", "termination-message-policy"),
        Flag("logging-format", "text", "'text' or 'json'.", one_of("text", "json"), "value"),
        Flag("v", 0, "Verbosity; debug messages from 4 on.", parse_integer, "int"),
        *(
            boolean_flag(name, default=False, text=_IGNORED)
            for name in ("alsologtostderr", "add_dir_header", "skip_headers", "skip_log_headers")
        ),
        boolean_flag("logtostderr", default=True, text=_IGNORED),
        Flag("stderrthreshold", 2, _IGNORED, str, "value"),
        boolean_flag("one_output", default=False, text=_IGNORED),
        *(text_flag(name, "", _IGNORED) for name in ("vmodule", "log_backtrace_at", "log_dir", "log_file")),
        Flag("log_file_max_size", 1800, _IGNORED, parse_integer, "int"),
    ),
)


def read_mpi_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, `HelpRequested` for `-h` and
    `VersionRequested` for `--version`."""
    settings, values, rest = parse_settings(DEFAULTS, MPI_FLAGS, args, environ)
    if values.get("version"):
        raise VersionRequested
    if values.get("master"):
        raise UsageError("--master is not supported: use --kubeConfig")
    logs = settings.logs
    if values.get("logging-format") == "json":
        logs = replace(logs, encoder="json")
    if values.get("v", 0) >= DEBUG_VERBOSITY:
        logs = replace(logs, level="debug")
    port = values.get("monitoring-port")
    return replace(
        settings,
        metrics_bind_address=f":{port}" if port else "0",
        kubeconfig=environ.get("KUBECONFIG", "") or settings.kubeconfig,
        logs=logs,
    ), rest
