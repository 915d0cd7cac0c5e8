"""The settings of `trainop mpi-operator`, read from the flags of mpi-operator (`cmd/mpi-operator/app/options`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainop.engine.gang_scheduler import choose_scheduler
from trainop.errors import UsageError
from trainop.flags import (
    Flag,
    boolean_flag,
    parse_flags,
    parse_integer,
    parse_number,
    parse_port,
    parse_positive,
    text_flag,
)
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.settings import LogSettings, Settings, read_settings

LEASE = "mpi-operator"
RETRY_PERIOD = 3.0
RENEW_DEADLINE = RETRY_PERIOD + 5.0
"""Seconds after the last renewal. client-go counts the 5 s of mpi-operator from its next attempt, a retry period later:
with 5 s in all, a busy API server would have 2 s to answer."""
DEBUG_VERBOSITY = 4
"""Value of `-v` from which on debug messages are logged."""

_IGNORED = "Ignored; accepted for compatibility with mpi-operator."


class VersionRequested(Exception):  # noqa: N818  # not an error: the user requested the version
    """The arguments include `--version`."""


MPI_FLAGS = (
    text_flag("master", "", "Not supported: use --kubeConfig."),
    text_flag("kubeConfig", "", "Path of a kubeconfig; env KUBECONFIG takes precedence."),
    text_flag("namespace", "", "The namespace to watch (env KUBEFLOW_NAMESPACE); empty means all namespaces."),
    Flag("threadiness", 2, "Concurrent reconciles per transport.", parse_positive, "int"),
    boolean_flag("version", default=False, text="Print the version and exit."),
    Flag("monitoring-port", 0, "The port of the metrics endpoint; 0 disables it.", parse_port, "int"),
    text_flag("gang-scheduling", "", "The scheduler for gang scheduling: volcano or another; empty disables it."),
    text_flag("lock-namespace", "mpi-operator", "The namespace of the leader election lease."),
    Flag("kube-api-qps", None, "Client-side rate limit in requests per second; unlimited by default.", parse_number),
    Flag("kube-api-burst", None, "Burst of --kube-api-qps.", parse_integer, "int"),
    Flag("controller-queue-rate-limit", 10, _IGNORED, parse_integer, "int"),
    Flag("controller-queue-burst", 100, _IGNORED, parse_integer, "int"),
    text_flag("cluster-domain", "", "Appended to the host names of transport ssh, such as cluster.local."),
    boolean_flag(
        "mpi-job-ttl",
        default=False,
        text="Delete MPIJobs with transport ssh after ttlSecondsAfterFinished, and not only their launchers' Jobs.",
    ),
    Flag("v", 0, "Verbosity; debug messages from 4 on.", parse_integer, "int"),
    *(
        boolean_flag(name, default=False, text=_IGNORED)
        for name in ("alsologtostderr", "logtostderr", "add_dir_header", "skip_headers", "skip_log_headers")
    ),
    boolean_flag("one_output", default=False, text=_IGNORED),
    *(
        text_flag(name, "", _IGNORED)
        for name in ("stderrthreshold", "vmodule", "log_backtrace_at", "log_dir", "log_file")
    ),
    Flag("log_file_max_size", 1800, _IGNORED, parse_integer, "int"),
)


def read_mpi_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, `HelpRequested` for `-h` and
    `VersionRequested` for `--version`."""
    parsed = parse_flags(MPI_FLAGS, args)
    values = {flag.name: flag.default for flag in MPI_FLAGS} | parsed.values
    if values["version"]:
        raise VersionRequested
    if values["master"]:
        raise UsageError("--master is not supported: use --kubeConfig")
    base, _ = read_settings((), environ)
    domain, gang = values["cluster-domain"], choose_scheduler(values["gang-scheduling"])
    settings = replace(
        base,
        schemes=("MPIJob",),
        required=(MPI_V1, MPI_V2),
        metrics_bind_address=f":{values['monitoring-port']}" if values["monitoring-port"] else "0",
        health_probe_bind_address=":8080",
        webhook_server_port=0,
        leader_elect=True,
        leader_election_id=LEASE,
        leader_election_namespace=values["lock-namespace"],
        leader_lease_duration=15.0,
        leader_renew_deadline=RENEW_DEADLINE,
        leader_retry_period=RETRY_PERIOD,
        namespace=values["namespace"] or base.namespace,
        controller_threads=values["threadiness"],
        kube_api_qps=values["kube-api-qps"],
        kube_api_burst=values["kube-api-burst"],
        kubeconfig=environ.get("KUBECONFIG", "") or values["kubeConfig"],
        options=replace(base.options, gang=gang, mpi_cluster_domain=domain, mpi_job_ttl=values["mpi-job-ttl"]),
        logs=LogSettings(encoder="console", level="debug" if values["v"] >= DEBUG_VERBOSITY else "info"),
    )
    return settings, parsed.rest
