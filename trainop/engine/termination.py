"""Containers that leave the end of their log in the pod's status when they fail, so that the operator can name it
without the right to read logs."""

from __future__ import annotations

from typing import Any

from trainop.runtime import Json

POLICY = "terminationMessagePolicy"
FALLBACK, FILE = "FallbackToLogsOnError", "File"
"""The kubelet takes the termination message from the log of a container that fails without one: up to 2 KiB or 80 lines
(kubernetes `pkg/kubelet/kuberuntime/kuberuntime_container.go`). `File`, the default of Kubernetes: it does not."""

_LISTS = ("containers", "initContainers")


def keep_log_ends(spec: Json, policy: str) -> Json:
    """The pod spec, in which containers without a policy have `policy`. With `File` they are left to Kubernetes. The
    argument is not changed; entries of a wrong type are left as they are."""
    if policy == FILE:
        return spec
    changed = {name: [_with_policy(each, policy) for each in spec[name]] for name in _LISTS if _is_list(spec, name)}
    return {**spec, **changed}


def _is_list(spec: Json, name: str) -> bool:
    return isinstance(spec.get(name), list | tuple) and bool(spec[name])


def _with_policy(container: Any, policy: str) -> Any:
    if not isinstance(container, dict) or container.get(POLICY):
        return container
    return {**container, POLICY: policy}
