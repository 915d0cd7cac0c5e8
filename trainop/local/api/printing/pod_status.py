"""The columns READY, STATUS, RESTARTS and READINESS GATES of pods.

Source: `printPod` in kubernetes `pkg/printers/internalversion/printers.go`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trainop.local.api.schema.durations import age
from trainop.runtime import Json


def pod_status(pod: Json) -> str:
    """The STATUS column: the phase, or a more specific reason such as `Init:0/2`, `CrashLoopBackOff`, `Terminating`."""
    status = pod.get("status") or {}
    phase = status.get("phase", "")
    reason = status.get("reason") or phase
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in _conditions(pod)):
        reason = "SchedulingGated"
    init_status = _init_status(pod)
    if init_status:
        reason = init_status
    if not init_status or _is_true(pod, "Initialized"):
        reason = _container_reason(pod, reason)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        return reason if phase in {"Succeeded", "Failed"} else "Terminating"
    return str(reason)


def pod_ready(pod: Json) -> str:
    """The READY column: ready containers of all containers; sidecars count, other init containers do not."""
    spec = pod.get("spec") or {}
    sidecars = _sidecars(pod)
    ready = sum(
        1
        for s in _statuses(pod, "initContainerStatuses")
        if s["name"] in sidecars and s.get("started") and s.get("ready")
    )
    if not _init_status(pod) or _is_true(pod, "Initialized"):
        ready += sum(1 for s in _statuses(pod, "containerStatuses") if _is_running(s))
    return f"{ready}/{len(spec.get('containers') or ()) + len(sidecars)}"


def pod_restarts(pod: Json, now: datetime) -> str:
    """The RESTARTS column: restarts of init containers during initialization, then of containers and sidecars."""
    init = _statuses(pod, "initContainerStatuses")
    if not _init_status(pod) or _is_true(pod, "Initialized"):
        sidecars = _sidecars(pod)
        counted = [s for s in init if s["name"] in sidecars] + _statuses(pod, "containerStatuses")
    else:
        counted = _started_init_containers(pod, init)
    restarts = sum(int(s.get("restartCount", 0)) for s in counted)
    finished = [((s.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for s in counted]
    last = max((moment for moment in finished if moment), default=None)
    return f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)


def readiness_gates(pod: Json) -> str:
    """The READINESS GATES column: the number of true gates and of all gates."""
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    return f"{sum(_is_true(pod, gate['conditionType']) for gate in gates)}/{len(gates)}" if gates else "<none>"


def _init_status(pod: Json) -> str:
    """The status of the first unfinished init container, such as `Init:0/2`; empty after initialization."""
    sidecars = _sidecars(pod)
    for index, status in enumerate(_statuses(pod, "initContainerStatuses")):
        if not _is_finished(status, sidecars):
            return _init_reason(status, index, len((pod.get("spec") or {}).get("initContainers") or ()))
    return ""


def _started_init_containers(pod: Json, statuses: list[Json]) -> list[Json]:
    """The init containers up to the first unfinished one."""
    sidecars = _sidecars(pod)
    unfinished = [index for index, status in enumerate(statuses) if not _is_finished(status, sidecars)]
    return statuses[: unfinished[0] + 1] if unfinished else statuses


def _is_finished(status: Json, sidecars: set[str]) -> bool:
    terminated = (status.get("state") or {}).get("terminated")
    if terminated is not None and not terminated.get("exitCode"):
        return True
    return status["name"] in sidecars and bool(status.get("started"))


def _init_reason(status: Json, index: int, count: int) -> str:
    state = status.get("state") or {}
    if state.get("terminated"):
        return f"Init:{_termination_reason(state['terminated'])}"
    waiting = (state.get("waiting") or {}).get("reason", "")
    return f"Init:{waiting}" if waiting not in {"", "PodInitializing"} else f"Init:{index}/{count}"


def _container_reason(pod: Json, reason: str) -> str:
    """The waiting or termination reason of the first container that has one, else `reason`. Beside containers that
    failed or still run, the first that completed does not stand for the pod."""
    statuses = _statuses(pod, "containerStatuses")
    error = ""
    for status in reversed(statuses):
        state = status.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            reason = _termination_reason(state["terminated"])
            error = reason if state["terminated"].get("exitCode") else error
    if reason != "Completed":
        return reason
    running = any(_is_running(status) for status in statuses)
    if running and _is_true(pod, "Ready"):
        return "Running"
    return error or ("NotReady" if running else reason)


def _termination_reason(terminated: Json) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_running(status: Json) -> bool:
    state = status.get("state") or {}
    waiting = (state.get("waiting") or {}).get("reason")
    return (
        bool(status.get("ready")) and state.get("running") is not None and not waiting and not state.get("terminated")
    )


def _is_true(pod: Json, condition: str) -> bool:
    return any(c.get("type") == condition and c.get("status") == "True" for c in _conditions(pod))


def _conditions(pod: Json) -> Iterable[Json]:
    return (pod.get("status") or {}).get("conditions") or ()


def _statuses(pod: Json, field: str) -> list[Json]:
    return list((pod.get("status") or {}).get(field) or ())


def _sidecars(pod: Json) -> set[str]:
    """Names of the sidecars: init containers with `restartPolicy: Always`."""
    containers = (pod.get("spec") or {}).get("initContainers") or ()
    return {str(container["name"]) for container in containers if container.get("restartPolicy") == "Always"}
