"""What `kubectl get pods` says of a pod: one word for its status, containers that are ready, restarts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trainop.local.api.schema.durations import age
from trainop.runtime.objects.metadata import Json


def pod_status(pod: Json) -> str:
    """The STATUS column: the phase, or the first thing that keeps the pod from it (`Init:0/2`, `CrashLoopBackOff`)."""
    status = pod.get("status") or {}
    phase = status.get("phase", "")
    word = status.get("reason") or phase
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in _conditions(pod)):
        word = "SchedulingGated"
    initializing = _initializing(pod)
    if initializing:
        word = initializing
    if not initializing or _is_true(pod, "Initialized"):
        word = _running_word(pod, word)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        return word if phase in {"Succeeded", "Failed"} else "Terminating"
    return str(word)


def pod_ready(pod: Json) -> str:
    """The READY column: containers that are ready, of all that keep running."""
    spec = pod.get("spec") or {}
    sidecars = _sidecars(pod)
    ready = sum(
        1
        for s in _statuses(pod, "initContainerStatuses")
        if s["name"] in sidecars and s.get("started") and s.get("ready")
    )
    if not _initializing(pod) or _is_true(pod, "Initialized"):
        ready += sum(1 for s in _statuses(pod, "containerStatuses") if _is_running(s))
    return f"{ready}/{len(spec.get('containers') or ()) + len(sidecars)}"


def pod_restarts(pod: Json, now: datetime) -> str:
    """The RESTARTS column: those of init containers while they run, later those of the others and of sidecars."""
    init = _statuses(pod, "initContainerStatuses")
    if not _initializing(pod) or _is_true(pod, "Initialized"):
        sidecars = _sidecars(pod)
        counted = [s for s in init if s["name"] in sidecars] + _statuses(pod, "containerStatuses")
    else:
        counted = _begun(pod, init)
    restarts = sum(int(s.get("restartCount", 0)) for s in counted)
    finished = [((s.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for s in counted]
    last = max((moment for moment in finished if moment), default=None)
    return f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)


def readiness_gates(pod: Json) -> str:
    """The READINESS GATES column: those that are true, of all."""
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    return f"{sum(_is_true(pod, gate['conditionType']) for gate in gates)}/{len(gates)}" if gates else "<none>"


def _initializing(pod: Json) -> str:
    """What the first unfinished init container is doing; empty once all are done."""
    sidecars = _sidecars(pod)
    for index, status in enumerate(_statuses(pod, "initContainerStatuses")):
        if not _is_done(status, sidecars):
            return _init_word(status, index, len((pod.get("spec") or {}).get("initContainers") or ()))
    return ""


def _begun(pod: Json, statuses: list[Json]) -> list[Json]:
    """The init containers up to the first unfinished one."""
    sidecars = _sidecars(pod)
    unfinished = [index for index, status in enumerate(statuses) if not _is_done(status, sidecars)]
    return statuses[: unfinished[0] + 1] if unfinished else statuses


def _is_done(status: Json, sidecars: set[str]) -> bool:
    terminated = (status.get("state") or {}).get("terminated")
    if terminated is not None and not terminated.get("exitCode"):
        return True
    return status["name"] in sidecars and bool(status.get("started"))


def _init_word(status: Json, index: int, count: int) -> str:
    state = status.get("state") or {}
    if state.get("terminated"):
        return f"Init:{_end_word(state['terminated'])}"
    waiting = (state.get("waiting") or {}).get("reason", "")
    return f"Init:{waiting}" if waiting not in {"", "PodInitializing"} else f"Init:{index}/{count}"


def _running_word(pod: Json, word: str) -> str:
    """What the first container that has something to say is doing."""
    statuses = _statuses(pod, "containerStatuses")
    for status in reversed(statuses):
        state = status.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            word = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            word = _end_word(state["terminated"])
    if word == "Completed" and any(_is_running(status) for status in statuses):
        return "Running" if _is_true(pod, "Ready") else "NotReady"
    return word


def _end_word(terminated: Json) -> str:
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
    """Names of the init containers that keep running beside the others (`restartPolicy: Always`)."""
    containers = (pod.get("spec") or {}).get("initContainers") or ()
    return {str(container["name"]) for container in containers if container.get("restartPolicy") == "Always"}
