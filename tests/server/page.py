"""The page behind a proxy as a process, its users on a real API server, and how they read it."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports
from tests.patience import PATIENCE
from tests.server.world import CORE, Json, World, replicas

NUMBERS = itertools.count(1)
RBAC = "/apis/rbac.authorization.k8s.io/v1"
COMPONENTS = Path(__file__).parents[2] / "manifests" / "components"
TOKENS = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}


def role_of(component: str, kind: str) -> Json:
    documents = yaml.safe_load_all((COMPONENTS / component / f"{component}.yaml").read_text())
    return next(each for each in documents if each["kind"] == kind)


class Team:
    """A namespace with a job, and a user who has the Role of the component `page-namespaced` there."""

    def __init__(self, plane: ControlPlane) -> None:
        self.world = World(plane.api, f"page{next(NUMBERS)}")
        self.world.create_job("train", {"Master": replicas(1)})
        self.name = self.world.namespace
        self.job = f"{self.name}/PyTorchJob/train"
        self.token, self.subject = self.account("user")

    def account(self, name: str) -> tuple[str, Json]:
        """The token of a new user without any right, and the subject for a binding."""
        self.world.ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": name}})
        answer = self.world.ask("POST", f"{CORE}/serviceaccounts/{name}/token", TOKENS)
        return answer["status"]["token"], {"kind": "ServiceAccount", "name": name, "namespace": self.name}

    def grant(self) -> None:
        self.allow(self.subject, role_of("page-namespaced", "Role")["rules"])

    def allow(self, subject: Json, rules: Sequence[Json], name: str = "page") -> None:
        """Gives rights in the namespace, by a Role and a RoleBinding of this name."""
        self.world.ask("POST", f"{RBAC}/namespaces/{{namespace}}/roles", {"metadata": {"name": name}, "rules": rules})
        self._bind(f"{RBAC}/namespaces/{{namespace}}/rolebindings", "Role", name, subject)

    def grant_again(self) -> None:
        """After `withdraw`."""
        self._bind(f"{RBAC}/namespaces/{{namespace}}/rolebindings", "Role", "page", self.subject)

    def withdraw(self, name: str = "page") -> None:
        self.world.ask("DELETE", f"{RBAC}/namespaces/{{namespace}}/rolebindings/{name}")

    def grant_everywhere(self) -> None:
        role = role_of("page", "ClusterRole")
        role["metadata"]["name"] += f"-{self.name}"
        self.world.ask("POST", f"{RBAC}/clusterroles", role)
        self._bind(f"{RBAC}/clusterrolebindings", "ClusterRole", role["metadata"]["name"], self.subject)

    def _bind(self, path: str, kind: str, role: str, subject: Json) -> None:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        self.world.ask("POST", path, {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]})


class Page:
    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session, self._base = session, base

    def ask(self, path: str, token: str, method: str = "GET", last: str = "", **query: str) -> Any:
        headers = {"X-Trainop": "page", "Authorization": f"Bearer {token}", **({"Last-Event-ID": last} if last else {})}
        return self._session.request(method, f"{self._base}/{path}", params=query, headers=headers)

    async def read(self, path: str, token: str, method: str = "GET", **query: str) -> tuple[int, Any]:
        async with self.ask(path, token, method, **query) as answer:
            return answer.status, await answer.json()

    async def first(self, name: str, token: str, last: str = "", **query: str) -> tuple[Any, str]:
        """The first event of a name in a new stream, and its id."""
        async with self.ask("events", token, last=last, **query) as stream:
            assert stream.status == 200, await stream.text()
            return await next_event(stream, name)


async def next_event(stream: aiohttp.ClientResponse, wanted: str) -> tuple[Any, str]:
    async with asyncio.timeout(PATIENCE):
        while True:
            text = (await stream.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in text.strip().split("\n") if ": " in line)
            if fields.get("event") == wanted:
                return json.loads(fields["data"]), fields.get("id", "")


@contextmanager
def served(kubeconfig: Path, folder: Path) -> Iterator[str]:
    """The URL of the page, which is served by a process of its own."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "trainop", "ui", "--behind-proxy", f"--listen=127.0.0.1:{port}"]
    log = folder / "page.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, f"--kubeconfig={kubeconfig}"], stdout=output, stderr=output, cwd=folder)
    try:
        end = time.monotonic() + PATIENCE
        while "listening" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert "eyJ" not in log.read_text(), "a token in the log"


@asynccontextmanager
async def opened(base: str) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession() as session:
        yield Page(session, base)


async def until_allowed(page: Page, team: Team, namespace: str) -> Any:
    """The list of jobs, once the API server knows the rights."""
    async with asyncio.timeout(PATIENCE):
        while (jobs := (await page.first("jobs", team.token, namespace=namespace))[0]).get("notes") != []:  # noqa: ASYNC110  # the server is another process
            await asyncio.sleep(0.2)
    return jobs


async def lines_until(stream: aiohttp.ClientResponse, wanted: str) -> tuple[list[str], str]:
    """The lines of a stream up to one that has this text, and the id of the last event."""
    found: list[str] = []
    while not any(wanted in each for each in found):
        value, last = await next_event(stream, "log")
        found += [text for _, _, text in value["lines"]]
    return found, last
