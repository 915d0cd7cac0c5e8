"""The settings of `trainop di-operator`, read from the flags of DI-orchestrator's operator (`cmd/operator/main.go`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.flags import Flag, boolean_flag, parse_flags
from trainop.settings import FLAGS, ZAP_FLAGS, Settings, settings_of

LEASE = "12841a5d.opendilab.org"

_NAMES = (
    "health-probe-bind-address",
    "kubeconfig",
    "leader-elect",
    "leader-election-namespace",
    "metrics-bind-address",
    "namespace",
    "pod-events",
)
"""The flags that this command has in common with `trainop operator`."""
_OWN = ("server-address", "graceful-deletion")
"""Those that have the prefix `di-` there."""

DI_FLAGS = (
    *(flag for flag in FLAGS if flag.name in _NAMES),
    Flag(
        "server-address",
        "di-server.di-system:8080",
        "The address of di-server that the coordinators get, with or without http://.",
        str,
        "string",
    ),
    boolean_flag(
        "graceful-deletion",
        default=False,
        text="Give the pods of finished jobs their grace period. By default it is 0, as with DI-orchestrator.",
    ),
    *ZAP_FLAGS,
)


def read_di_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, and `HelpRequested` for `-h`."""
    parsed = parse_flags(DI_FLAGS, args)
    values = {flag.name: flag.default for flag in FLAGS} | parsed.values
    values |= {f"di-{name}": parsed.values[name] for name in _OWN if name in parsed.values}
    lease = {"enable-scheme": ("DIJob",), "leader-election-id": LEASE, "webhook-server-port": 0}
    return settings_of(values | lease, environ), parsed.rest
