"""What happens to the pods of a namespace over time, recorded by a watch."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlencode

from e2e.cluster.api import Api
from e2e.schedulers.manifests import Json


class Sighting(NamedTuple):
    """One version of a pod."""

    name: str
    uid: str
    node: str
    """The node that the pod is bound to, or an empty string."""
    holds: bool
    """Whether the pod holds resources of the node: it is bound, and neither ended nor deleted."""


class Recorder:
    """Records every version of every pod of a namespace while the context is entered."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.sightings: list[Sighting] = []
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        version = api("GET", self._path).body["metadata"]["resourceVersion"]
        query = urlencode({"watch": 1, "resourceVersion": version, "timeoutSeconds": 1800})
        self._connection = http.client.HTTPSConnection(api.host, api.port, context=api.context)
        self._connection.request("GET", f"{self._path}?{query}")
        self._answer = self._connection.getresponse()
        self._error: str | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join(10)
        self._connection.close()

    def held(self) -> Iterator[Counter[str]]:
        """After each change: the number of pods of each job that hold resources. Pods are named JOB-ROLE-INDEX."""
        self._check()
        holding: dict[str, str] = {}
        for seen in list(self.sightings):
            if seen.holds:
                holding[seen.uid] = seen.name.split("-")[0]
            else:
                holding.pop(seen.uid, None)
            yield Counter(holding.values())

    def peak(self, job: str) -> int:
        """The highest number of pods of a job that held resources at once."""
        return max((counts[job] for counts in self.held()), default=0)

    def check_never_in_part(self, members: Mapping[str, int]) -> None:
        """No gang ever gave back resources before it held those of all its `members`, and none was placed while another
        held those of all, or was being placed.

        Members are bound one after another, so a gang that is being placed holds fewer for a moment. They end one after
        another, too: the next gang may have its place before the last of them has ended.
        """
        before = dict.fromkeys(members, 0)
        complete = dict.fromkeys(members, False)
        for counts in self.held():
            held = {gang: counts[gang] for gang in members}
            ending = {gang for gang, count in held.items() if complete[gang] and count < members[gang]}
            assert sum(count > 0 for gang, count in held.items() if gang not in ending) <= 1, held
            for gang, count in held.items():
                assert complete[gang] or count >= before[gang], (gang, before, held)
                complete[gang] = count >= members[gang] or (complete[gang] and count > 0)
            before = held

    def made(self) -> Counter[str]:
        """How many pods there were of each name."""
        self._check()
        return Counter(name for name, _ in {(seen.name, seen.uid) for seen in self.sightings})

    def _check(self) -> None:
        if self._error:
            raise AssertionError(self._error)

    def _read(self) -> None:
        try:
            for line in self._answer:
                self._see(json.loads(line))
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._error = None if self._leaving.is_set() else f"the watch has ended: {error}"
        else:
            self._error = None if self._leaving.is_set() else "the watch has ended"

    def _see(self, event: Json) -> None:
        pod = event["object"]
        if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
            raise ValueError(event)
        node = pod["spec"].get("nodeName", "")
        ended = event["type"] == "DELETED" or pod["status"].get("phase") in {"Succeeded", "Failed"}
        self.sightings.append(Sighting(pod["metadata"]["name"], pod["metadata"]["uid"], node, bool(node) and not ended))
