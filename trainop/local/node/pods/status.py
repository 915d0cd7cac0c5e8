"""The status of a pod as a function of what its containers do. Pure.

Sources: kubelet `pkg/kubelet/kubelet_pods.go` (getPhase), `pkg/kubelet/status/generate.go` (conditions).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from trainop.runtime.clock import timestamp
from trainop.runtime.objects.metadata import Json

Phase: TypeAlias = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running, and why."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """The command runs."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    """One run that ended. A command that never started has the same time twice."""

    code: int
    reason: str
    started: datetime
    finished: datetime
    message: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container; `last` is the run before the present state, `sidecar` an init container that stays."""

    name: str
    image: str = ""
    state: Waiting | Running | Terminated = Waiting("PodInitializing")
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    sidecar: bool = False

    @property
    def outcome(self) -> Terminated | None:
        """How the latest run that ended did end, unless another runs."""
        match self.state:
            case Terminated():
                return self.state
            case Waiting():
                return self.last
            case _:
                return None

    @property
    def initialized(self) -> bool:
        """As an init container: the next may start."""
        if self.sidecar:
            return self.started
        return isinstance(self.state, Terminated) and self.state.code == 0


@dataclass(frozen=True, slots=True)
class PodState:
    """`final`: nothing of the pod runs or will run. `failure` is why the node ended it: reason and message."""

    inits: Sequence[ContainerState] = ()
    containers: Sequence[ContainerState] = ()
    sandbox: bool = False
    final: bool = False
    failure: tuple[str, str] | None = None
    disrupted: bool = False
    """The node ended it for reasons of its own."""
    started: datetime | None = None
    address: str = ""
    host_address: str = ""


def phase(state: PodState, restart_policy: str) -> Phase:
    """One word for all containers."""
    if state.failure and state.final:
        return "Failed"
    outcomes = [container.outcome for container in state.containers]
    running = sum(isinstance(container.state, Running) for container in state.containers)
    if not any(outcomes) and not running:
        return _phase_before_start(state, restart_policy)
    if len([outcome for outcome in outcomes if outcome]) + running < len(outcomes):
        return "Failed" if state.final else "Pending"
    if running or any(init.sidecar and isinstance(init.state, Running) for init in state.inits):
        return "Running"
    succeeded = all(outcome is not None and outcome.code == 0 for outcome in outcomes)
    if state.final or restart_policy == "Never":
        return "Succeeded" if succeeded else "Failed"
    return "Succeeded" if succeeded and restart_policy == "OnFailure" else "Running"


def _phase_before_start(state: PodState, restart_policy: str) -> Phase:
    failed = any(init.outcome and init.outcome.code != 0 for init in state.inits if not init.sidecar)
    return "Failed" if state.final or (failed and restart_policy == "Never") else "Pending"


def qos_class(pod: Json) -> str:
    """Guaranteed, Burstable or BestEffort (`pkg/apis/core/v1/helper/qos/qos.go`)."""
    spec = pod["spec"]
    everyone = [*(spec.get("initContainers") or ()), *spec["containers"]]
    resources = [container.get("resources") or {} for container in everyone]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    for one in resources:
        limits = one.get("limits") or {}
        requests = {**limits, **(one.get("requests") or {})}
        if any(name not in limits or limits[name] != requests[name] for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def pod_status(pod: Json, state: PodState, now: datetime) -> Json:
    """All of `status` that a kubelet owns, with the conditions of others kept; to be merged into the pod."""
    word = phase(state, pod["spec"].get("restartPolicy") or "Always")
    status: Json = {
        "phase": word,
        "conditions": _conditions(pod, state, word, now),
        "containerStatuses": [_container_status(container) for container in state.containers],
        "hostIP": state.host_address,
        "hostIPs": [{"ip": state.host_address}],
        "qosClass": (pod.get("status") or {}).get("qosClass") or qos_class(pod),
    }
    if state.inits:
        status["initContainerStatuses"] = [_container_status(container) for container in state.inits]
    if state.started is not None:
        status["startTime"] = timestamp(state.started)
    if state.address:
        status["podIP"] = state.address
        status["podIPs"] = [{"ip": state.address}]
    if state.failure:
        status["reason"], status["message"] = state.failure
    return status


def _container_status(container: ContainerState) -> Json:
    status: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": container.ready,
        "started": container.started,
        "restartCount": container.restarts,
        "state": _render(container.state),
        "lastState": _render(container.last) if container.last else {},
    }
    if container.container_id:
        status["containerID"] = container.container_id
        status["imageID"] = IMAGE_ID
    return status


IMAGE_ID = "host://environment-of-the-caller"
"""What a container really runs in, whatever its `image` says."""


def _render(state: Waiting | Running | Terminated) -> Json:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(since):
            return {"running": {"startedAt": timestamp(since)}}
        case Terminated():
            return {
                "terminated": {
                    "exitCode": state.code,
                    "reason": state.reason,
                    **({"message": state.message} if state.message else {}),
                    "startedAt": timestamp(state.started),
                    "finishedAt": timestamp(state.finished),
                    "containerID": state.container_id,
                }
            }


_DISRUPTED = "TerminationByKubelet"
_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def _conditions(pod: Json, state: PodState, word: Phase, now: datetime) -> list[Json]:
    present = {one["type"]: one for one in (pod.get("status") or {}).get("conditions") or ()}
    initialized = _initialized(state, word)
    containers = _containers_ready(state, word)
    ready = containers or _gates_ready(pod, present)
    found = {
        "PodReadyToStartContainers": None if state.sandbox else ("", ""),
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": containers,
        "PodScheduled": None,
    }
    own = [_condition(type_, found[type_], present.get(type_), word, now) for type_ in _OWN_CONDITIONS]
    if state.disrupted and "DisruptionTarget" not in present and state.failure:
        message = state.failure[1]
        own.append(_condition("DisruptionTarget", None, None, word, now) | {"reason": _DISRUPTED, "message": message})
    return own + [one for type_, one in present.items() if type_ not in _OWN_CONDITIONS]


def _condition(type_: str, why_not: tuple[str, str] | None, before: Json | None, word: Phase, now: datetime) -> Json:
    truth = "True" if why_not is None else "False"
    changed = before is None or before.get("status") != truth
    at = timestamp(now) if changed or before is None else before.get("lastTransitionTime")
    reason, message = why_not or ("", "")
    if type_ == "Initialized" and word == "Succeeded":
        reason = "PodCompleted"
    condition: Json = {"type": type_, "status": truth, "lastProbeTime": None, "lastTransitionTime": at}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _initialized(state: PodState, word: Phase) -> tuple[str, str] | None:
    missing = [init.name for init in state.inits if not init.initialized]
    begun = any(container.outcome or isinstance(container.state, Running) for container in state.containers)
    if not missing or word == "Succeeded" or begun:
        return None
    return "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(missing)}]"


def _containers_ready(state: PodState, word: Phase) -> tuple[str, str] | None:
    if word == "Succeeded":
        return "PodCompleted", ""
    if word == "Failed":
        return "PodFailed", ""
    unready = _names(container for container in state.containers if not container.ready)
    unready += _names(init for init in state.inits if init.sidecar and not init.ready)
    if not unready:
        return None
    return "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"


def _gates_ready(pod: Json, present: dict[str, Json]) -> tuple[str, str] | None:
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed = [gate for gate in gates if present.get(gate, {}).get("status") != "True"]
    if not closed:
        return None
    return "ReadinessGatesNotReady", "; ".join(
        f'corresponding condition of pod readiness gate "{g}" does not exist.' for g in closed
    )


def _names(containers: Iterable[ContainerState]) -> list[str]:
    return [container.name for container in containers]
