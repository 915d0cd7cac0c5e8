"""What happens to the pods of a namespace over time, recorded by a watch."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlencode

from e2e.cluster.api import Api
from e2e.cluster.daemons import wait_until
from e2e.schedulers.manifests import Json
from tests.patience import PATIENCE


class Sighting(NamedTuple):
    """One version of a pod."""

    name: str
    uid: str
    node: str
    """The node that the pod is bound to, or an empty string."""
    holds: bool
    """Whether the pod holds resources of the node: it is bound, and neither ended nor deleted."""


def versions_of(listed: Json) -> dict[str, str]:
    """UID -> resourceVersion."""
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in listed["items"]}


class Recorder:
    """Records every version of every pod of a namespace while the context is entered."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.sightings: list[Sighting] = []
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        listed = api("GET", self._path).body
        self._version: str = listed["metadata"]["resourceVersion"]
        self._alive = versions_of(listed)
        """UID -> resourceVersion of the pods that exist."""
        self._connection = http.client.HTTPSConnection(api.host, api.port, context=api.context)
        self._error: str | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._connection.close()

    def held(self) -> Iterator[Counter[str]]:
        """After each change: the number of pods of each job that hold resources. Pods are named JOB-ROLE-INDEX."""
        self._catch_up()
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
        self._catch_up()
        return Counter(name for name, _ in {(seen.name, seen.uid) for seen in self.sightings})

    def _catch_up(self) -> None:
        """Waits until the watch has shown all that has happened so far."""

        def up_to_date() -> bool:
            return self._error is not None or self._alive == versions_of(self._api("GET", self._path).body)

        assert wait_until(up_to_date, PATIENCE), "the watch does not catch up"
        assert self._error is None, self._error

    def _run(self) -> None:
        """Servers end watches whose clients are slow, and kube-apiserver at any time: each goes on where the last one
        was."""
        while not self._leaving.is_set() and self._error is None:
            try:
                self._watch()
            except (OSError, http.client.HTTPException):
                self._leaving.wait(0.2)
            except ValueError as error:
                self._error = f"the watch has failed: {error}"

    def _watch(self) -> None:
        query = urlencode({"watch": 1, "resourceVersion": self._version, "timeoutSeconds": 1800})
        self._connection.close()
        self._connection.request("GET", f"{self._path}?{query}")
        for line in self._connection.getresponse():
            self._see(json.loads(line))

    def _see(self, event: Json) -> None:
        pod = event["object"]
        if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
            raise ValueError(event)
        metadata = pod["metadata"]
        node = pod["spec"].get("nodeName", "")
        ended = event["type"] == "DELETED" or pod["status"].get("phase") in {"Succeeded", "Failed"}
        self.sightings.append(Sighting(metadata["name"], metadata["uid"], node, bool(node) and not ended))
        self._version = metadata["resourceVersion"]
        if event["type"] == "DELETED":
            self._alive.pop(metadata["uid"], None)
        else:
            self._alive[metadata["uid"]] = metadata["resourceVersion"]
