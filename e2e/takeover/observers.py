"""What happens on the API server: every version of the watched objects, and every write by user; and a kubelet."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.api import Api
from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE
from tests.server.world import MERGE, Json, container

WAITING = "sim.trainop/waiting"
"""Annotation of a pod that stays Pending."""
STUCK = "sim.trainop/stuck"
"""Finalizer of a pod that stays terminating. A pod in phase Failed has no grace period."""
NODE = "played"

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Request", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch."""

    type: str
    object: Json

    @property
    def name(self) -> str:
        metadata = self.object["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"


class Recorder:
    """Every event of a resource in all namespaces since the start, from one watch in a thread."""

    def __init__(self, api: Api, path: str, selector: str = "") -> None:
        self.api, self.path = api, f"{path}?labelSelector={selector}"
        self.changes: list[Change] = []
        self.alive: dict[str, str] = {}
        """UID -> resourceVersion of the objects that exist."""
        self.handlers: list[Callable[[Change], None]] = []
        listed = api("GET", self.path).body
        self._version = listed["metadata"]["resourceVersion"]
        assert not listed["items"], f"{path} is not empty at the start"
        self._connection = http.client.HTTPSConnection(api.host, api.port, context=api.context, timeout=900)
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing:
                with contextlib.suppress(OSError, http.client.HTTPException):  # the watch is reopened
                    self._watch()
        finally:
            self._connection.close()

    def close(self) -> None:
        """Ends the watch."""
        self._closing = True
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)

    def _watch(self) -> None:
        self._connection.close()
        self._connection.request("GET", f"{self.path}&watch=1&timeoutSeconds=3600&resourceVersion={self._version}")
        response = self._connection.getresponse()
        while line := response.readline():
            event = json.loads(line)
            if event.get("type") not in {"ADDED", "MODIFIED", "DELETED"}:  # a new CRD: the server has lost the history
                self._relist()
                return
            self._add(Change(event["type"], event["object"]))

    def _relist(self) -> None:
        """Continues from a list. Objects that were created and deleted in between are missed."""
        listed = self.api("GET", self.path)
        if listed.status != 200:
            time.sleep(0.2)
            return
        found = {item["metadata"]["uid"]: item for item in listed.body["items"]}
        for uid in self.alive.keys() - found.keys():
            del self.alive[uid]
        for uid, item in found.items():
            if self.alive.get(uid) != item["metadata"]["resourceVersion"]:
                self._add(Change("MODIFIED" if uid in self.alive else "ADDED", item))
        self._version = listed.body["metadata"]["resourceVersion"]

    def _add(self, change: Change) -> None:
        metadata = change.object["metadata"]
        self._version = metadata["resourceVersion"]
        self.changes.append(change)
        if change.type == "DELETED":
            self.alive.pop(metadata["uid"], None)
        else:
            self.alive[metadata["uid"]] = metadata["resourceVersion"]
        for handler in self.handlers:
            handler(change)

    def sync(self) -> dict[str, Json]:
        """Waits until all events up to now are recorded; returns the current objects by namespace/name."""

        def synced() -> bool:
            items.clear()
            items.extend(self.api("GET", self.path).body["items"])
            return self.alive == {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}

        items: list[Json] = []
        assert wait_until(synced, PATIENCE), f"the watch of {self.path} does not catch up"
        return {Change("", item).name: item for item in items}

    def created(self) -> Counter[str]:
        """How often an object of each name was created."""
        return Counter(change.name for change in self.changes if change.type == "ADDED")

    def histories(self) -> dict[str, list[Json]]:
        """All versions of each object, by UID."""
        found: dict[str, list[Json]] = defaultdict(list)
        for change in self.changes:
            found[change.object["metadata"]["uid"]].append(change.object)
        return found


class Kubelet:
    """Plays the kubelet of all pods: starts them unless they have to wait, and removes terminating ones."""

    def __init__(self, api: Api, pods: Recorder) -> None:
        self.api = api
        self._todo: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        pods.handlers.append(lambda change: self._todo.put(change.object) if change.type != "DELETED" else None)
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self) -> None:
        while (pod := self._todo.get()) is not None:
            metadata = pod["metadata"]
            annotations = metadata.get("annotations", {})
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            precondition = {"uid": metadata["uid"]}
            if "deletionTimestamp" in metadata:
                if STUCK not in metadata.get("finalizers", ()):
                    self.api("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": precondition})
            elif pod["status"]["phase"] == "Pending" and WAITING not in annotations:
                running = container({"running": {"startedAt": "2024-01-01T00:00:00Z"}})
                running["name"] = pod["spec"]["containers"][0]["name"]
                ready = {"type": "Ready", "status": "True"}
                status = {"phase": "Running", "containerStatuses": [running], "conditions": [ready]}
                self.api("PATCH", f"{path}/status", {"metadata": precondition, "status": status}, MERGE)


@dataclass(frozen=True, slots=True)
class Write:
    """One write in the audit log."""

    user: str
    verb: str
    resource: str
    """With the subresource, such as `pytorchjobs/status`."""
    name: str
    """namespace/name; the name is empty for a create."""
    code: int
    body: Json

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name} -> {self.code}"


class AuditLog:
    """The writes of each user."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def writes(self, user: str, since: int = 0, *, events: bool = False) -> list[Write]:
        """The writes of a user from an offset on, without leases and, unless asked for, without events."""
        left_out = {"leases"} if events else {"leases", "events"}
        return [write for write in self._read(since) if write.user == user and write.resource not in left_out]

    def end(self) -> int:
        return self.path.stat().st_size

    def _read(self, since: int) -> Iterator[Write]:
        with self.path.open("rb") as file:
            file.seek(since)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                entry = json.loads(line)
                target = entry.get("objectRef", {})
                body = entry.get("requestObject") or {}
                name = target.get("name") or body.get("metadata", {}).get("name", "")
                yield Write(
                    entry.get("impersonatedUser", {}).get("username", ""),
                    entry["verb"],
                    "/".join(filter(None, (target.get("resource"), target.get("subresource")))),
                    f"{target.get('namespace', '')}/{name}",
                    entry.get("responseStatus", {}).get("code", 0),
                    body,
                )

    def wait_quiet(self, user: str, seconds: float = 3.0, *, ignored: str = "no object") -> None:
        """Waits until the user has written nothing for so long, but objects whose namespace/name contains `ignored`."""
        last, since = -1, time.monotonic()

        def quiet() -> bool:
            nonlocal last, since
            count = sum(ignored not in write.name for write in self.writes(user))
            if count != last:
                last, since = count, time.monotonic()
            return time.monotonic() - since >= seconds

        assert wait_until(quiet, PATIENCE, every=0.3), f"{user} does not stop writing: {self.writes(user)[-5:]}"
