"""Several jobs at once, and a recorder that shows that none of their pods was created twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http import HTTPStatus

from tests.server.world import CORE, Json, World, replicas

OK = HTTPStatus.OK
LAST = "last-of-the-recording"
"""The pod that a recorder creates to see where its recording may end."""


def names(jobs: int, workers: int) -> set[str]:
    return {f"j{job}-worker-{worker}" for job in range(jobs) for worker in range(workers)}


def create_jobs(world: World, jobs: int, workers: int) -> None:
    for number in range(jobs):
        world.create_job(f"j{number}", {"Worker": replicas(workers)})


def uids(pods: dict[str, Json]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def version(world: World) -> int:
    """The current resourceVersion of the server."""
    return int(world.ask("GET", f"{CORE}/pods")["metadata"]["resourceVersion"])


class PodRecorder:
    """Records the pods that are created in a namespace, deleted ones included, by a watch that runs all the time: the
    server forgets the history of pods after about 75 s."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: Counter[str] = Counter()
        self._fault = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record, args=(version(world),), daemon=True)
        self._thread.start()

    def made(self) -> Counter[str]:
        """The number of pods created under each name since the recorder was made. Ends the recording."""
        body = {"metadata": {"name": LAST}, "spec": replicas(1)["template"]["spec"]}
        self._world.ask("POST", f"{CORE}/pods", body)
        self._world.wait(lambda: self._fault or LAST in self._names, "the recorder of pods")
        self.end()
        assert not self._fault, self._fault
        return Counter({name: count for name, count in self._names.items() if count and name != LAST})

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _record(self, since: int) -> None:
        while not self._ended.is_set() and not self._fault:
            query = f"watch=1&timeoutSeconds=2&resourceVersion={since}"
            answer = self._world.try_to("GET", f"{CORE}/pods?{query}")
            if answer.status != OK:  # the server is stopped or restarts
                self._ended.wait(0.2)
                continue
            # a single line is a JSON document, which the client has already decoded
            lines = [answer.body] if isinstance(answer.body, dict) else str(answer.body).splitlines()
            for event in (json.loads(line) if isinstance(line, str) else line for line in lines):
                if event["type"] == "ERROR":
                    self._fault = str(event)
                    return
                since = int(event["object"]["metadata"]["resourceVersion"])
                self._names[event["object"]["metadata"]["name"]] += event["type"] == "ADDED"
