"""The settings of `trainop di-server`, read from the flags of DI-orchestrator (`cmd/server/main.go`) and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainop.errors import UsageError
from trainop.flags import (
    Flag,
    boolean_flag,
    one_of,
    parse_duration,
    parse_flags,
    parse_integer,
    parse_number,
    parse_positive,
    text_flag,
)
from trainop.kinds.dijob.gpus import POLICIES
from trainop.kinds.dijob.names import SERVER_URL
from trainop.runtime.serving.server import Address, parse_address
from trainop.settings import ZAP_FLAGS, LogSettings, read_logs


@dataclass(frozen=True, slots=True)
class DiServerSettings:
    """The settings of di-server; durations in seconds."""

    server_address: str = SERVER_URL
    """What pods get as the address of di-server."""
    bind_address: Address | None = Address(None, 8080)  # noqa: RUF009  # immutable
    config_namespace: str = "di-system"
    config_name: str = "aggregator-config"
    lease_namespace: str = "di-system"
    lease_prefix: str = "di-server"
    namespace: str = ""
    """The only namespace with DIJobs; empty: all."""
    caller_check: bool = True
    max_pods: int = 1000
    max_body: int = 128 * 1024
    connections: int = 512
    caller_rate: float = 50.0
    caller_burst: int = 200
    grace_seconds: int = 0
    ports_by_rank: bool = False
    kubeconfig: str = ""
    shutdown_timeout: float = 30.0
    logs: LogSettings = LogSettings()  # noqa: RUF009  # frozen


def _count(name: str, default: int, help_: str) -> Flag:
    return Flag(name, default, help_, parse_positive, "int")


UPSTREAM_FLAGS = (
    text_flag(
        "kubeconfig", "", "Path of a kubeconfig. Default: env KUBECONFIG, the pod's service account, ~/.kube/config."
    ),
    boolean_flag("leader-elect", default=False, text="Ignored; every replica serves."),
    text_flag("server-address", SERVER_URL, "The address of di-server that pods get as KUBERNETES_SERVER_URL."),
    text_flag("server-bind-address", ":8080", "The address the server binds to."),
    text_flag("lease-lock-namespace", "di-system", "The namespace of the leases of requests in progress."),
    text_flag("lease-lock-name", "di-server", "The start of the names of these leases."),
    text_flag("agconfig-namespace", "di-system", "The namespace of the AggregatorConfig."),
    text_flag("agconfig-name", "aggregator-config", "The name of the AggregatorConfig."),
    Flag("gpu-alloc-policy", "simple", "How GPUs are divided among pods: 'simple'.", one_of(*POLICIES), "value"),
)

OUR_FLAGS = (
    text_flag("namespace", "", "The namespace of the DIJobs; empty means all namespaces."),
    Flag(
        "caller-check",
        "on",
        "'on': only the coordinator and aggregators of a job, and users with a bearer token and the permission, may"
        " change its replicas; 'off': everybody may, as upstream.",
        one_of("on", "off"),
        "value",
    ),
    _count("max-replicas-per-request", 1000, "Pods that one request may create or replace."),
    _count("max-body-bytes", 128 * 1024, "Length of a request body."),
    _count("max-connections", 512, "Open connections."),
    Flag("caller-qps", 50.0, "Requests per second of one caller; 0 means no limit.", parse_number, "float"),
    _count("caller-burst", 200, "Requests that one caller may send at a time."),
    Flag("delete-grace-period", 0, "Grace period in seconds of deleted pods.", parse_integer, "int"),
    Flag(
        "ddp-ports",
        "local",
        "Ports that the pods of a ddp group publish: 'local': counted in each pod, as upstream; 'rank': by global"
        " rank, where DI-engine's processes listen.",
        one_of("local", "rank"),
        "value",
    ),
    Flag("graceful-shutdown-timeout", 30.0, "Time for requests in progress at shutdown.", parse_duration, "duration"),
)

DI_SERVER_FLAGS = (*UPSTREAM_FLAGS, *ZAP_FLAGS, *OUR_FLAGS)


def read_di_server_settings(
    args: Sequence[str],
    environ: Mapping[str, str],  # as of the other programs
) -> tuple[DiServerSettings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, and `HelpRequested` for `-h`."""
    parsed = parse_flags(DI_SERVER_FLAGS, args)
    values: dict[str, Any] = {flag.name: flag.default for flag in DI_SERVER_FLAGS} | parsed.values
    try:
        address = parse_address(values["server-bind-address"])
    except ValueError as error:
        raise UsageError(f"--server-bind-address: {error}") from None
    if address is None:
        raise UsageError("--server-bind-address: the server must have an address")
    if values["delete-grace-period"] < 0:
        raise UsageError("--delete-grace-period: must not be negative")
    settings = DiServerSettings(
        server_address=values["server-address"],
        bind_address=address,
        config_namespace=values["agconfig-namespace"],
        config_name=values["agconfig-name"],
        lease_namespace=values["lease-lock-namespace"],
        lease_prefix=values["lease-lock-name"],
        namespace=values["namespace"],
        caller_check=values["caller-check"] == "on",
        max_pods=values["max-replicas-per-request"],
        max_body=values["max-body-bytes"],
        connections=values["max-connections"],
        caller_rate=values["caller-qps"],
        caller_burst=values["caller-burst"],
        grace_seconds=values["delete-grace-period"],
        ports_by_rank=values["ddp-ports"] == "rank",
        kubeconfig=values["kubeconfig"],
        shutdown_timeout=values["graceful-shutdown-timeout"],
        logs=read_logs(values),
    )
    return settings, parsed.rest
