"""The settings of `trainop di-operator`, read from the flags of DI-orchestrator's operator (`cmd/operator/main.go`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainop.programs.flags import bind
from trainop.programs.log_flags import ZAP_FLAGS
from trainop.programs.settings import Settings, parse_settings, shared

LEASE = "12841a5d.opendilab.org"

DEFAULTS = Settings(schemes=("DIJob",), leader_election_id=LEASE, webhook_server_port=0)

_OWN = shared("di-server-address", "di-graceful-deletion")

DI_FLAGS = bind(
    DEFAULTS,
    (
        *shared(
            "force-delete-after",
            "health-probe-bind-address",
            "kubeconfig",
            "leader-elect",
            "leader-election-namespace",
            "metrics-bind-address",
            "namespace",
            "pod-events",
            "waiting-after",
            "termination-message-policy",
        ),
        *(replace(flag, name=flag.name.removeprefix("di-")) for flag in _OWN),
        *ZAP_FLAGS,
    ),
)


def read_di_settings(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Reads the settings; also returns the non-flag arguments. Raises `UsageError`, and `HelpRequested` for `-h`."""
    settings, _, rest = parse_settings(DEFAULTS, DI_FLAGS, args, environ)
    return settings, rest
