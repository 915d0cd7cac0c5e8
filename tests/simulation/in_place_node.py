"""Kubelets that restart containers in place by the rules of their pods, and an API server that keeps the rules, drops
them as that of Kubernetes 1.34 does, or refuses them as that of 1.35.

Statuses are those of kubelet 1.37: the exit is shown first, then all containers are removed and `restartCount` grows,
and then they start. Without rules a container restarts by the policy of its pod, with a back-off.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec

from tests.simulation.facts import owner_of, phase, terminating
from tests.simulation.node import Nodes
from trainop.local.api.storage.versioned_store import Stored
from trainop.local.node.pods.status import RESETTING, restarts_all
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.objects.metadata import Json

CRASH = "crash"
ACTS = {CRASH}
KEPT, DROPPED, REFUSED = "kept", "dropped", "refused"
BROKEN_PEER = 134
"""How a rank ends that has lost another."""
_FIELDS = ("restartPolicy", "restartPolicyRules")


class Crash(NamedTuple):
    """One rank exits, and the others follow."""

    code: int
    hangs: bool = False
    """One of the others does not fail."""
    again: bool = False
    """One of the others fails twice."""


class InPlaceNodes(Nodes):
    """Pods run until a rank of their job fails."""

    # The API server ---------------------------------------------------------------------------------------------------

    def read_rules(self, request: Request) -> Request | Response:
        """The request as the API server reads it, or its refusal."""
        serves = self._world.script.restart_rules
        if serves == KEPT or request.method != "POST" or not request.path.endswith("/pods"):
            return request
        pod = msgspec.json.decode(request.body, type=dict)
        given = [each for each in pod["spec"]["containers"] if each.get("restartPolicyRules")]
        if not given:
            return request
        if serves == REFUSED:
            return _refuse(pod["metadata"]["name"])
        for container in given:
            for name in _FIELDS:
                container.pop(name, None)
        return msgspec.structs.replace(request, body=msgspec.json.encode(pod))

    # What befalls ranks -----------------------------------------------------------------------------------------------

    def crash(self, crash: Crash, rng: random.Random) -> bool:
        """Returns False if no rank runs."""
        ranks = [stored for stored in self.at_work() if _runs(stored.value)]
        if not ranks:
            return False
        first = rng.choice(ranks)
        owner = (owner_of(first.value) or {}).get("uid")
        others = [each for each in ranks if each is not first and (owner_of(each.value) or {}).get("uid") == owner]
        self._fail(first, crash.code)
        rng.shuffle(others)
        for number, other in enumerate(others):
            if number == 0 and crash.hangs:
                continue
            delay = rng.choice((rng.uniform(0.01, 0.3), rng.uniform(0.3, 12)))
            self._later(delay, self._fail, other.key, other.uid, BROKEN_PEER)
            if number == len(others) - 1 and crash.again:
                self._later(delay + rng.uniform(1, 8), self._fail, other.key, other.uid, BROKEN_PEER)
        return True

    def _fail(self, stored: Stored, code: int) -> None:
        """The container exits: the kubelet restarts all of the pod, or this one, or the pod has failed."""
        pod = stored.value
        if terminating(pod) or phase(pod) != "Running" or not _runs(pod):
            return
        container = pod["spec"]["containers"][0]
        policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy")
        in_place = restarts_all(container, code)
        if not in_place and policy == "Never":
            self.end(stored, "Failed", code=code)
            return
        self._world.note("node", f"a container of pod {stored.key[1]} exits with {code}")
        ended = self._container(pod, code=code)
        ended["state"]["terminated"]["startedAt"] = ended["state"]["terminated"]["finishedAt"]
        changes: Json = {"containerStatuses": [ended]}
        if in_place:
            changes["conditions"] = _restarting(pod, "True")
        self.put(stored, changes)
        act = self._remove_containers if in_place else self._back_off
        self._later(self._rng.uniform(0.01, 1.0), act, stored.key, stored.uid)

    def _remove_containers(self, stored: Stored) -> None:
        pod = stored.value
        if terminating(pod) or phase(pod) != "Running":
            return
        end = {"exitCode": 137, "reason": RESETTING, "startedAt": None, "finishedAt": None}
        removed = self._waiting(pod, RESETTING, restarts=self._restarts(pod) + 1) | {"lastState": {"terminated": end}}
        first = "Pending" if pod["spec"].get("initContainers") else "Running"
        self.put(stored, {"phase": first, "containerStatuses": [removed]})
        self._later(self._rng.uniform(0.05, 5.0), self._start_again, stored.key, stored.uid)

    def _back_off(self, stored: Stored) -> None:
        pod = stored.value
        if terminating(pod) or phase(pod) != "Running":
            return
        waits = self._waiting(pod, "CrashLoopBackOff", restarts=self._restarts(pod))
        self.put(stored, {"containerStatuses": [waits | {"lastState": pod["status"]["containerStatuses"][0]["state"]}]})
        self._later(self._rng.uniform(0.05, 10.0), self._start_again, stored.key, stored.uid)

    def _start_again(self, stored: Stored) -> None:
        pod = stored.value
        if terminating(pod) or phase(pod) not in {"Pending", "Running"}:
            return
        (before,) = pod["status"]["containerStatuses"]
        in_place = before["state"]["waiting"]["reason"] == RESETTING
        started = self._container(pod, restarts=self._restarts(pod) + (not in_place), running=True)
        changes = {"phase": "Running", "containerStatuses": [started | {"lastState": before["lastState"]}]}
        self.put(stored, changes | ({"conditions": _restarting(pod, "False")} if in_place else {}))

    def _waiting(self, pod: Json, reason: str, *, restarts: int) -> Json:
        return self._container(pod, restarts=restarts) | {"state": {"waiting": {"reason": reason}}, "ready": False}


def strike(nodes: Nodes, _act: str, rng: random.Random, crash: Any) -> bool:
    """Let a rank fail; returns False if there is none yet."""
    return not isinstance(nodes, InPlaceNodes) or nodes.crash(crash, rng)


def _runs(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or ()
    return any("running" in each["state"] for each in statuses)


def _restarting(pod: Json, status: str) -> list[Json]:
    """The conditions of the pod, with that of its restart."""
    mine = {"type": "AllContainersRestarting", "status": status, "reason": "RestartAllContainersStarted"}
    return [each for each in pod["status"].get("conditions") or () if each["type"] != mine["type"]] + [mine]


def _refuse(name: str) -> Response:
    field = "spec.containers[0].restartPolicyRules[0].action"
    text = f'Pod "{name}" is invalid: {field}: Unsupported value: "RestartAllContainers": supported values: "Restart"'
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}
    body = msgspec.json.encode({**status, "metadata": {}, "message": text})
    return Response(422, {"content-type": "application/json"}, body)
