"""The page behind a proxy, in front of an API server of the test, which knows who has which token and writes down which
token each request had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from tests.patience import PATIENCE
from tests.ui.test_server import events
from trainop.commands.target import job_types
from trainop.runtime import EVENTS, PODS
from trainop.runtime.lowlevel import Address, ClusterConfig
from trainop.ui.proxy import ProxyGate
from trainop.ui.server import PageServer

ALICE, BOB = "alice.token-1", "bob.token-2"
JOB = "job=team/PyTorchJob/train"
MARK = {"X-Trainop": "page"}
LISTED = [PODS, EVENTS, *(each.resource for each in job_types())]
KINDS = {each.plural: {"apiVersion": each.api_version, "kind": f"{each.kind}List"} for each in LISTED}


class Api:
    """Knows the users, their jobs and the lines of one log each. `slow` users get no answer."""

    def __init__(self) -> None:
        self.users = {ALICE: "alice", BOB: "bob"}
        self.slow: set[str] = set()
        self.seen: list[tuple[str, str | None, dict[str, str]]] = []
        self.logs: dict[str, asyncio.Queue[bytes]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        self.seen.append((request.path, given, dict(request.headers)))
        user = self.users.get((given or "").removeprefix("Bearer "))
        if user is None:
            body = {"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized"}
            return web.json_response(body, status=401)
        if user in self.slow:
            await asyncio.sleep(PATIENCE)
        last = request.path.rpartition("/")[2]
        if last == "log":
            return await self.log(request, user)
        answers = {
            "selfsubjectreviews": {"status": {"userInfo": {"username": user}}},
            "train": self.job(user),
            "pytorchjobs": {"items": [self.job(user)]},
            "pods": {"items": [self.pod()]},
        }
        return web.json_response(
            {**KINDS.get(last, {}), "metadata": {"resourceVersion": "1"}, "items": [], **answers.get(last, {})}
        )

    async def log(self, request: web.Request, user: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        lines = self.logs.setdefault(user, asyncio.Queue())
        while "follow" in request.query:
            await response.write(await lines.get())
        return response

    def say(self, user: str, second: int, text: str) -> None:
        line = f"2026-11-27T10:00:{second:02}.000000000Z {text}\n".encode()
        self.logs.setdefault(user, asyncio.Queue()).put_nowait(line)

    def job(self, user: str) -> Any:
        metadata = {"name": "train", "namespace": "team", "uid": "u", "annotations": {"secret": f"of {user}"}}
        return {"metadata": metadata, "spec": {}, "status": {"conditions": [{"type": f"Of-{user}", "status": "True"}]}}

    def pod(self) -> Any:
        labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"}
        state = {"name": "pytorch", "state": {"running": {"startedAt": "2026-11-27T10:00:00Z"}}, "restartCount": 0}
        return {
            "metadata": {"name": "train-worker-0", "namespace": "team", "uid": "p", "labels": labels},
            "spec": {"containers": [{"name": "pytorch"}]},
            "status": {"phase": "Running", "containerStatuses": [state]},
        }


class Page:
    """The page, as a proxy sees it."""

    def __init__(self, api: Api, gate: ProxyGate, session: aiohttp.ClientSession, base: str) -> None:
        self.api, self.gate, self.session, self.base = api, gate, session, base

    def get(self, path: str, token: str | None, headers: dict[str, str] | None = None) -> Any:
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.session.get(f"{self.base}/{path}", headers={**MARK, **given, **(headers or {})})

    async def logged(self, token: str, last: str = "", count: int = 1) -> tuple[list[str], str]:
        """The first lines of the log that a new stream has, and the id of the last event."""
        lines: list[str] = []
        async with self.get(f"events?{JOB}", token, {"Last-Event-ID": last} if last else {}) as stream:
            while len(lines) < count:
                ((name, data, identity),) = await events(stream, 1)
                if name == "log":
                    lines += [line[2] for line in data["lines"]]
                    last = identity
        return lines, last


@asynccontextmanager
async def serving(namespace: str | None = None) -> AsyncIterator[Page]:
    api = Api()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True, max_field_size=2**16)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    gate = ProxyGate(ClusterConfig(f"http://127.0.0.1:{port}"), namespace)
    try:
        async with PageServer(gate, Address("127.0.0.1", 0)).serve() as own, aiohttp.ClientSession() as session:
            yield Page(api, gate, session, f"http://127.0.0.1:{own}")
    finally:
        await runner.cleanup()
