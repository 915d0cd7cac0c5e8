"""The settings of `trainop di-server`, read from the flags of DI-orchestrator (`cmd/server/main.go`) and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainop.engine.durations import parse_duration
from trainop.engine.seen import FALLBACK
from trainop.errors import UsageError
from trainop.kinds.dijob.gpus import POLICIES
from trainop.kinds.dijob.names import SERVER_URL
from trainop.logs import LogSettings
from trainop.programs.flags import (
    Flag,
    assign,
    bind,
    boolean_flag,
    one_of,
    parse_flags,
    parse_integer,
    parse_number,
    parse_positive,
    setting,
    text_flag,
)
from trainop.programs.log_flags import ZAP_FLAGS
from trainop.programs.settings import shared
from trainop.runtime.lowlevel import Address, parse_address


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
    """The only namespaces with DIJobs, separated by commas; empty: all."""
    caller_check: bool = True
    max_pods: int = 1000
    max_body: int = 128 * 1024
    connections: int = 512
    caller_rate: float = 50.0
    caller_burst: int = 200
    grace_seconds: int = 0
    ports_by_rank: bool = False
    termination_message_policy: str = FALLBACK
    kubeconfig: str = ""
    shutdown_timeout: float = 30.0
    logs: LogSettings = LogSettings()  # noqa: RUF009  # frozen


def _count(name: str, text: str, *, field: str) -> Flag:
    return setting(name, text, parse_positive, "int", field=field)


UPSTREAM_FLAGS = (
    *shared("kubeconfig"),
    boolean_flag("leader-elect", default=False, text="Ignored; every replica serves."),
    setting("server-address", "The address of di-server that pods get as KUBERNETES_SERVER_URL."),
    text_flag("server-bind-address", ":8080", "The address the server binds to."),
    setting("lease-lock-namespace", "The namespace of the leases of requests in progress.", field="lease_namespace"),
    setting("lease-lock-name", "The start of the names of these leases.", field="lease_prefix"),
    setting("agconfig-namespace", "The namespace of the AggregatorConfig.", field="config_namespace"),
    setting("agconfig-name", "The name of the AggregatorConfig.", field="config_name"),
    Flag("gpu-alloc-policy", "simple", "How GPUs are divided among pods: 'simple'.", one_of(*POLICIES), "value"),
)

OUR_FLAGS = (
    *(replace(flag, field="termination_message_policy") for flag in shared("termination-message-policy")),
    setting("namespace", "The namespaces of the DIJobs, separated by commas; empty means all."),
    Flag(
        "caller-check",
        "on",
        "'on': only the coordinator and aggregators of a job, and users with a bearer token and the permission, may"
        " change its replicas; 'off': everybody may, as upstream.",
        one_of("on", "off"),
        "value",
    ),
    _count("max-replicas-per-request", "Pods that one request may create or replace.", field="max_pods"),
    _count("max-body-bytes", "Length of a request body.", field="max_body"),
    _count("max-connections", "Open connections.", field="connections"),
    setting(
        "caller-qps", "Requests per second of one caller; 0 means no limit.", parse_number, "float", field="caller_rate"
    ),
    _count("caller-burst", "Requests that one caller may send at a time.", field="caller_burst"),
    setting(
        "delete-grace-period",
        "Grace period in seconds of deleted pods.",
        parse_integer,
        "int",
        field="grace_seconds",
    ),
    Flag(
        "ddp-ports",
        "local",
        "Ports that the pods of a ddp group publish: 'local': counted in each pod, as upstream; 'rank': by global"
        " rank, where DI-engine's processes listen.",
        one_of("local", "rank"),
        "value",
    ),
    setting(
        "graceful-shutdown-timeout",
        "Time for requests in progress at shutdown.",
        parse_duration,
        "duration",
        field="shutdown_timeout",
    ),
)

DI_SERVER_FLAGS = bind(DiServerSettings(), (*UPSTREAM_FLAGS, *ZAP_FLAGS, *OUR_FLAGS))


def read_di_server_settings(
    args: Sequence[str],
    environ: Mapping[str, str],  # as of the other programs
) -> tuple[DiServerSettings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, and `HelpRequested` for `-h`."""
    parsed = parse_flags(DI_SERVER_FLAGS, args)
    settings = assign(DiServerSettings(), DI_SERVER_FLAGS, parsed.values)
    values: dict[str, Any] = {flag.name: flag.default for flag in DI_SERVER_FLAGS} | parsed.values
    try:
        address = parse_address(values["server-bind-address"])
    except ValueError as error:
        raise UsageError(f"--server-bind-address: {error}") from None
    if address is None:
        raise UsageError("--server-bind-address: the server must have an address")
    if settings.grace_seconds < 0:
        raise UsageError("--delete-grace-period: must not be negative")
    settings = replace(
        settings,
        bind_address=address,
        caller_check=values["caller-check"] == "on",
        ports_by_rank=values["ddp-ports"] == "rank",
    )
    return settings, parsed.rest
