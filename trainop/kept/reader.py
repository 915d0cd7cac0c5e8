"""Answers the API requests of commands from the folder of a run, as its API server did while it ran. Read-only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainop.kept.folder import ATTEMPT, Run
from trainop.kept.logfile import read_text
from trainop.kept.recorder import read_objects
from trainop.local.api.serving.router import BufferedStream, error_response
from trainop.local.api.serving.server import ApiServer
from trainop.local.api.status_errors import StatusError
from trainop.programs.schemes import crds
from trainop.runtime import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json
from trainop.runtime.lowlevel import Request, Response, Stream, Transport

_LOG = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/log")
_FILE = re.compile(r"(.+)\.([0-9]{1,9})\.log")


def open_kept(run: Run) -> Transport:
    """Reads the objects of a run. Raises `OSError`."""
    api = ApiServer()
    for definition in crds():
        api.restore(str(CUSTOM_RESOURCE_DEFINITIONS), definition)
    last: dict[tuple[str, str, str], tuple[bool, Json]] = {}
    for table, deleted, value in read_objects(run.objects).values():
        metadata = value["metadata"]
        key = table, metadata.get("namespace", ""), metadata["name"]
        before = last.get(key)
        # A pod that was deleted at the end, and not replaced, is shown: its log and state are what the run left.
        if before is None or before[0] or not deleted:
            last[key] = deleted, value
    for (table, _, _), (deleted, value) in last.items():
        if not deleted or table == PODS.plural:
            api.restore(table, value)
    return _KeptTransport(run, api.transport())


class _KeptTransport:
    """Objects come from the API server in this process, logs from files."""

    def __init__(self, run: Run, objects: Transport) -> None:
        self._run = run
        self._objects = objects

    async def send(self, request: Request) -> Response:
        if request.method != "GET":
            name = self._run.name
            error = StatusError(405, "MethodNotAllowed", f"run {name} has ended ({self._run.state}), and is only read")
            return error_response(error)
        return await self._objects.send(request)

    async def open(self, request: Request) -> Stream:
        found = _LOG.fullmatch(request.path)
        if request.method != "GET" or found is None:
            return await self._objects.open(request)
        try:
            path = self._find_log(found[1], found[2], request.query)
        except StatusError as error:
            answer = error_response(error)
            return BufferedStream(answer.status, answer.headers, answer.body)
        query = request.query
        since = query.get("sinceSeconds")
        return _LogStream(
            read_text(
                path,
                tail=int(query["tailLines"]) if "tailLines" in query else None,
                since=datetime.now(UTC) - timedelta(seconds=int(since)) if since else None,
                timestamps=query.get("timestamps") == "true",
            )
        )

    def _find_log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Path:
        """The last attempt, that before it, or the named one. Raises `StatusError`."""
        folder = self._run.logs / namespace / pod
        container = query.get("container", "")
        kept: dict[int, Path] = {}
        for path in folder.glob("*.log") if namespace not in {".", ".."} and pod not in {".", ".."} else ():
            if (found := _FILE.fullmatch(path.name)) and (not container or found[1] == container):
                kept[int(found[2])] = path
        attempts = sorted(kept)
        if ATTEMPT in query:
            wanted = int(query[ATTEMPT])
        else:
            last = attempts[-1:] if query.get("previous") != "true" else attempts[-2:-1]
            wanted = last[0] if last else 0
        if wanted in kept:
            return kept[wanted]
        which = ", ".join(map(str, attempts)) or "none"
        text = f"no such log of {pod} is kept; attempts with a log: {which}"
        raise StatusError(404, "NotFound", text)

    async def close(self) -> None:
        await self._objects.close()


class _LogStream:
    status = 200
    headers: Mapping[str, str] = {"content-type": "text/plain"}

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source

    def chunks(self) -> AsyncIterator[bytes]:
        return self._source

    async def close(self) -> None:
        """The file is closed with the iterator."""
