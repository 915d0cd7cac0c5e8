"""How the programs of an installation find their cluster."""

from __future__ import annotations

from trainop.errors import StartError
from trainop.runtime import ConfigError, Metrics, Operator, load_config


def run_on_cluster(operator: Operator, kubeconfig: str, metrics: Metrics) -> int:
    """Runs the operator on the cluster of the kubeconfig, or on the one that the process is in; returns the exit code.
    Raises `StartError` if there is no usable configuration."""
    try:
        return operator.run_on(load_config(kubeconfig or None), metrics=metrics)
    except ConfigError as error:
        raise StartError(str(error)) from None
