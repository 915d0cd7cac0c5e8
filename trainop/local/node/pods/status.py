"""The status of a pod as a pure function of the state of its containers.

Sources: kubelet `pkg/kubelet/kubelet_pods.go` (getPhase), `pkg/kubelet/status/generate.go` (conditions).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from trainop.runtime import Json
from trainop.runtime.lowlevel import timestamp

RESETTING = "RestartingAllContainers"
"""The reason of containers that are removed because their pod restarts in place (kubernetes
`pkg/kubelet/kubelet_pods.go`)."""

Phase: TypeAlias = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running; `reason` as in the API, for example CrashLoopBackOff."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """The container's process is running."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    """A run that has ended. If the command could not be started, `started` is the time of the attempt."""

    code: int
    reason: str
    started: datetime
    finished: datetime
    message: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of one container.

    `last` is the previous run (`lastState`); `sidecar` marks an init container with `restartPolicy: Always`.
    """

    name: str
    image: str = ""
    state: Waiting | Running | Terminated = Waiting("PodInitializing")
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    image_id: str = ""
    sidecar: bool = False

    @property
    def outcome(self) -> Terminated | None:
        """How the latest run ended; None while a run is in progress or before the first one ended."""
        match self.state:
            case Terminated():
                return self.state
            case Waiting():
                return self.last
            case _:
                return None

    @property
    def initialized(self) -> bool:
        """For an init container: whether the next container may start."""
        if self.sidecar:
            return self.started
        return isinstance(self.state, Terminated) and self.state.code == 0


@dataclass(frozen=True, slots=True)
class PodState:
    """The state of one pod.

    `final` means that no process is running or will be started. `failure` is the reason and message if the node ended
    the pod (shutdown, deadline, node loss). `sandbox` says whether the sandbox exists.
    """

    inits: Sequence[ContainerState] = ()
    containers: Sequence[ContainerState] = ()
    sandbox: bool = False
    final: bool = False
    failure: tuple[str, str] | None = None
    disrupted: bool = False
    """Whether the pod gets the condition DisruptionTarget because the node shut down."""
    resetting: bool | None = None
    """Whether all containers are about to restart in place; None: no rule restarts them."""
    started: datetime | None = None
    address: str = ""
    host_address: str = ""


def restarts_all(spec: Json, code: int) -> bool:
    """Whether the first rule of the container that fits this exit code restarts all containers of the pod (kubernetes
    `pkg/api/v1/pod/util.go`, `FindMatchingContainerRestartRule`). The other action, `Restart`, is not implemented."""
    for rule in spec.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return bool(rule.get("action") == "RestartAllContainers")
    return False


def phase(state: PodState, restart_policy: str) -> Phase:
    """The pod phase, computed as by kubelet's getPhase."""
    if state.failure and state.final:
        return "Failed"
    outcomes = [container.outcome for container in state.containers]
    running = sum(isinstance(container.state, Running) for container in state.containers)
    if not any(outcomes) and not running:
        return _phase_before_start(state, restart_policy)
    if len([outcome for outcome in outcomes if outcome]) + running < len(outcomes):
        return "Failed" if state.final else "Pending"
    sidecars = any(init.sidecar and isinstance(init.state, Running) for init in state.inits)
    if running or sidecars or (not state.final and _is_resetting(state)):
        return "Running"
    succeeded = all(outcome is not None and outcome.code == 0 for outcome in outcomes)
    if state.final or restart_policy == "Never":
        return "Succeeded" if succeeded else "Failed"
    return "Succeeded" if succeeded and restart_policy == "OnFailure" else "Running"


def _is_resetting(state: PodState) -> bool:
    """Whether containers are removed, or have not started since."""
    ends = (container.outcome for container in state.containers)
    return bool(state.resetting) or any(end is not None and end.reason == RESETTING for end in ends)


def _phase_before_start(state: PodState, restart_policy: str) -> Phase:
    """The phase while no regular container has started: Failed if an init container failed permanently."""
    ends = [init.outcome for init in state.inits if init.outcome and not init.sidecar]
    failed = not state.resetting and any(end.code != 0 and end.reason != RESETTING for end in ends)
    return "Failed" if state.final or (failed and restart_policy == "Never") else "Pending"


def qos_class(pod: Json) -> str:
    """Guaranteed, Burstable or BestEffort (`pkg/apis/core/v1/helper/qos/qos.go`)."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    resources = [container.get("resources") or {} for container in containers]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    for one in resources:
        limits = one.get("limits") or {}
        requests = {**limits, **(one.get("requests") or {})}
        if any(name not in limits or limits[name] != requests[name] for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def pod_status(pod: Json, state: PodState, now: datetime) -> Json:
    """The status fields that kubelet owns, as a merge patch; conditions of other types are preserved."""
    pod_phase = phase(state, pod["spec"].get("restartPolicy") or "Always")
    status: Json = {
        "phase": pod_phase,
        "conditions": _conditions(pod, state, pod_phase, now),
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
        "imageID": container.image_id,
        "ready": container.ready,
        "started": container.started,
        "restartCount": container.restarts,
        "state": _render(container.state),
        "lastState": _render(container.last) if container.last else {},
    }
    if container.container_id:
        status["containerID"] = container.container_id
    return status


IMAGE_ID = "host://environment-of-the-caller"
"""The `imageID` of a container without image: its process runs in the caller's environment."""


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
_ALL_RESTARTING = "AllContainersRestarting"


def _conditions(pod: Json, state: PodState, pod_phase: Phase, now: datetime) -> list[Json]:
    """The conditions that kubelet owns, followed by existing conditions of other owners.

    A cause is the reason and message for status False; None means True.
    """
    existing = {one["type"]: one for one in (pod.get("status") or {}).get("conditions") or ()}
    initialized = _initialized(state, pod_phase)
    containers = _containers_ready(state, pod_phase)
    ready = containers or _readiness_gates(pod, existing)
    causes = {
        "PodReadyToStartContainers": None if state.sandbox else ("", ""),
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": containers,
        "PodScheduled": None,
    }
    if state.resetting is not None:
        causes[_ALL_RESTARTING] = None if state.resetting else ("", "")
    own = [_condition(type_, cause, existing.get(type_), pod_phase, now) for type_, cause in causes.items()]
    if state.disrupted and "DisruptionTarget" not in existing and state.failure:
        message = state.failure[1]
        own.append(
            _condition("DisruptionTarget", None, None, pod_phase, now) | {"reason": _DISRUPTED, "message": message}
        )
    return own + [one for type_, one in existing.items() if type_ not in causes]


def _condition(
    type_: str, failure: tuple[str, str] | None, existing: Json | None, pod_phase: Phase, now: datetime
) -> Json:
    condition_status = "True" if failure is None else "False"
    changed = existing is None or existing.get("status") != condition_status
    transition_time = timestamp(now) if changed or existing is None else existing.get("lastTransitionTime")
    reason, message = failure or ("", "")
    if type_ == "Initialized" and pod_phase == "Succeeded":
        reason = "PodCompleted"
    condition: Json = {
        "type": type_,
        "status": condition_status,
        "lastProbeTime": None,
        "lastTransitionTime": transition_time,
    }
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _initialized(state: PodState, pod_phase: Phase) -> tuple[str, str] | None:
    missing = [init.name for init in state.inits if not init.initialized]
    any_started = any(container.outcome or isinstance(container.state, Running) for container in state.containers)
    if not missing or pod_phase == "Succeeded" or any_started:
        return None
    return "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(missing)}]"


def _containers_ready(state: PodState, pod_phase: Phase) -> tuple[str, str] | None:
    if pod_phase == "Succeeded":
        return "PodCompleted", ""
    if pod_phase == "Failed":
        return "PodFailed", ""
    unready = _names(container for container in state.containers if not container.ready)
    unready += _names(init for init in state.inits if init.sidecar and not init.ready)
    if not unready:
        return None
    return "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"


def _readiness_gates(pod: Json, existing: dict[str, Json]) -> tuple[str, str] | None:
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    unmet = [gate for gate in gates if existing.get(gate, {}).get("status") != "True"]
    if not unmet:
        return None
    return "ReadinessGatesNotReady", "; ".join(
        f'corresponding condition of pod readiness gate "{g}" does not exist.' for g in unmet
    )


def _names(containers: Iterable[ContainerState]) -> list[str]:
    return [container.name for container in containers]
