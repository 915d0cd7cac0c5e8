"""Finds the cluster configuration: a kubeconfig file, or the service account of the pod that this process runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainop.runtime.client.cluster import AuthHeaders, ClusterConfig, ConfigError, Credentials, Pem
from trainop.runtime.client.credentials import TokenFile
from trainop.runtime.clock import Clock, SystemClock

__all__ = ["AuthHeaders", "ClusterConfig", "ConfigError", "Credentials", "Pem", "in_cluster_config", "load_config"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_config(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Loads the cluster configuration from the first source that exists: the file `kubeconfig` (a flag), the files in
    `$KUBECONFIG`, the pod's service account, `~/.kube/config`.

    `context` selects a context of the kubeconfig; the default is its current one. Raises `ConfigError`.
    """
    clock = clock or SystemClock()
    environ = os.environ if environ is None else environ
    files = _given_files(kubeconfig, environ)
    if not files:
        if environ.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
            return in_cluster_config(clock, environ, service_account)
        home = _expand(environ.get("HOME") or "~") / ".kube" / "config"
        if not home.is_file():
            raise ConfigError(
                f"no cluster is configured: neither --kubeconfig nor $KUBECONFIG is set, this is not a pod with a "
                f"service account, and {home} does not exist"
            )
        files = [home]
    from trainop.runtime.client import kubeconfig as files_of  # noqa: PLC0415  # not needed in a pod

    return files_of.read(files).config(clock, environ, context)


def _expand(path: str) -> Path:
    """Replaces a leading `~`, unless the user has neither $HOME nor an account, as is usual in containers."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _given_files(kubeconfig: str | None, environ: Mapping[str, str]) -> list[Path]:
    if kubeconfig:
        path = _expand(kubeconfig)
        if not path.is_file():
            raise ConfigError(f"--kubeconfig {kubeconfig}: no such file; it must be a kubeconfig file")
        return [path]
    listed = [Path(entry) for entry in environ.get("KUBECONFIG", "").split(os.pathsep) if entry]
    present = [path for path in listed if path.is_file()]
    if listed and not present:
        raise ConfigError(f"$KUBECONFIG is {environ['KUBECONFIG']}: no such file; unset it or name a kubeconfig file")
    return present


def in_cluster_config(
    clock: Clock, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> ClusterConfig:
    """The API server from `$KUBERNETES_SERVICE_HOST`, with the pod's service account and without a proxy (client-go
    `rest.InClusterConfig`)."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    namespace = service_account / "namespace"
    ca = service_account / "ca.crt"
    if not ca.is_file():
        raise ConfigError(f"{ca} does not exist; mount the service account token into this pod")
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=TokenFile(service_account / "token", clock),
        ca=ca,
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )
