"""An API server whose pods print, and that sends each log in records of a chosen size, for `e2e.bench.page`.

A kubelet flushes each line, so that it arrives in a chunk and a TLS record of its own. The embedded API server sends
together what came within a moment; this one does not, so that the page can be measured with either, on a busy machine
too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainop.local.api.serving.server import ApiServer
from trainop.programs.schemes import crds
from trainop.runtime import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json

JOB = "many"
_VARIABLES = 16
"""Of a container, about as many as the operator adds."""


class Printing:
    """The log source. All replicas begin when the last log is opened."""

    def __init__(self, replicas: int, rate: float, lines: int, together: int) -> None:
        """`rate`: lines per second of a replica, which prints `lines`; `together`: lines in one record."""
        self._left, self._rate, self._lines, self._together = replicas, rate, lines, together
        self._begun = asyncio.Event()

    async def __call__(self, namespace: str, pod: str, container: str, **_options: Any) -> AsyncIterator[bytes]:
        self._left -= 1
        if self._left <= 0:
            self._begun.set()
        await self._begun.wait()
        loop, step = asyncio.get_running_loop(), self._together / self._rate
        due = loop.time() + step * (hash(pod) % 997) / 997  # not all at the same moment
        for first in range(0, self._lines, self._together):
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += step
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            numbers = range(first, min(first + self._together, self._lines))
            yield "".join(f"{now} line {n} loss 0.123456 of this step\n" for n in numbers).encode()
        await asyncio.Event().wait()


def _meta(name: str, **more: object) -> Json:
    created = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"name": name, "namespace": "default", "creationTimestamp": created, **more}


def _job(replicas: int) -> Json:
    replica = {"replicas": replicas, "template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}}
    condition = {"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "message": "all run"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _meta(JOB),
        "spec": {"pytorchReplicaSpecs": {"Worker": replica}},
        "status": {"conditions": [condition], "replicaStatuses": {"Worker": {"active": replicas}}},
    }


def _pod(number: int) -> Json:
    labels = {
        "training.kubeflow.org/job-name": JOB,
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": str(number),
    }
    variables = [{"name": f"VARIABLE_{n}", "value": f"many-worker-0:{n}"} for n in range(_VARIABLES)]
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = {"running": {"startedAt": started}}
    status = {"name": "pytorch", "ready": True, "started": True, "restartCount": 0, "image": "x", "state": state}
    types = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _meta(f"{JOB}-worker-{number}", labels=labels),
        "spec": {"nodeName": "node", "containers": [{"name": "pytorch", "image": "x", "env": variables}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": each, "status": "True", "lastTransitionTime": started} for each in types],
            "containerStatuses": [status],
        },
    }


async def serve(folder: Path, replicas: int, rate: float, lines: int, together: int) -> None:
    """Serves until cancelled; the kubeconfig is written into `folder` once it does."""
    api = ApiServer(log_source=Printing(replicas, rate, lines, together))
    for definition in crds():
        api.restore(str(CUSTOM_RESOURCE_DEFINITIONS), definition)
    api.restore("pytorchjobs.kubeflow.org", _job(replicas))
    for number in range(replicas):
        api.restore(PODS.plural, _pod(number))
    await api.serve(token="bench")  # of nothing
    made = folder / "kubeconfig.new"
    made.write_text(json.dumps(api.kubeconfig("bench")))
    made.rename(folder / "kubeconfig")
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, where, *numbers = sys.argv
    asyncio.run(serve(Path(where), *map(int, numbers)))
