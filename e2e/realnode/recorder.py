"""Watches the pods of a namespace while a test runs, so that the report also shows those that are gone."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from typing import Any

from e2e.cluster.node.node import Node
from e2e.cluster.places import ClusterError

Json = dict[str, Any]


class Recorder:
    """One `kubectl get pods --watch`; it is started again if the API server goes away."""

    def __init__(self, node: Node, namespace: str) -> None:
        self._node = node
        self._namespace = namespace
        self._phases: dict[str, list[Json]] = {}
        self._names: dict[str, str] = {}
        self._restarts: dict[str, int] = {}
        self._stopped = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if process := self._process:
            process.kill()
        self._thread.join(10)

    def timelines(self) -> list[Json]:
        """Per pod: its name, its phases with their times (seconds since the epoch), and its restarts."""
        return [
            {"name": self._names[uid], "phases": list(phases), "restarts": self._restarts[uid]}
            for uid, phases in self._phases.copy().items()
        ]

    def _run(self) -> None:
        # nsenter starts kubectl as a child, which must not outlive it
        watch = ("setpriv", "--pdeathsig=KILL", "kubectl", "get", "pods", "--watch", "--output-watch-events")
        command = [*watch, f"--namespace={self._namespace}"]
        while not self._stopped.is_set():
            try:
                inside = self._node.inside()
            except ClusterError:
                return
            with subprocess.Popen(
                [*inside, *command, "--output=json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as self._process:
                self._read(self._process)
            self._stopped.wait(1)

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Reads one event per line, until the watch ends."""
        assert process.stdout
        for line in process.stdout:
            if line.endswith("}\n"):
                self._add(json.loads(line))

    def _add(self, event: Json) -> None:
        pod = event["object"]
        if pod.get("kind") != "Pod":
            return
        uid = pod["metadata"]["uid"]
        self._names[uid] = pod["metadata"]["name"]
        statuses = pod["status"].get("containerStatuses") or ()
        self._restarts[uid] = sum(status["restartCount"] for status in statuses)
        phases = self._phases.setdefault(uid, [])
        phase = "Deleted" if event["type"] == "DELETED" else state_of(pod)
        if not phases or phases[-1]["phase"] != phase:
            phases.append({"phase": phase, "time": time.time()})


def state_of(pod: Json) -> str:
    """The phase of a pod, or what is more exact: Terminating, or why a container waits."""
    phase = str(pod["status"].get("phase", "Pending"))
    if pod["metadata"].get("deletionTimestamp") and phase in {"Pending", "Running"}:
        return "Terminating"
    if phase == "Running":
        for status in pod["status"].get("containerStatuses") or ():
            if waiting := status["state"].get("waiting"):
                return str(waiting.get("reason") or "Waiting")
            if "terminated" in status["state"]:
                return "Restarting"
    return phase
