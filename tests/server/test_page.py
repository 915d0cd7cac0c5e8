"""The page behind a proxy on a real API server: three users with the shipped roles, and a process whose kubeconfig has
all rights, which it must not use."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports
from tests.patience import PATIENCE
from tests.server.conftest import NUMBERS
from tests.server.world import CORE, Json, World, replicas

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
        self.world.ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "user"}})
        self.token: str = self.world.ask("POST", f"{CORE}/serviceaccounts/user/token", TOKENS)["status"]["token"]
        self.subject = {"kind": "ServiceAccount", "name": "user", "namespace": self.name}

    def grant(self) -> None:
        role = role_of("page-namespaced", "Role")
        self.world.ask("POST", f"{RBAC}/namespaces/{{namespace}}/roles", role)
        self._bind(f"{RBAC}/namespaces/{{namespace}}/rolebindings", "Role", role["metadata"]["name"])

    def grant_everywhere(self) -> None:
        role = role_of("page", "ClusterRole")
        role["metadata"]["name"] += f"-{self.name}"
        self.world.ask("POST", f"{RBAC}/clusterroles", role)
        self._bind(f"{RBAC}/clusterrolebindings", "ClusterRole", role["metadata"]["name"])

    def _bind(self, path: str, kind: str, role: str) -> None:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        self.world.ask("POST", path, {"metadata": {"name": role}, "roleRef": reference, "subjects": [self.subject]})


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


@pytest.fixture
def base(control_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The URL of the page, which is served by a process of its own."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "trainop", "ui", "--behind-proxy", f"--listen=127.0.0.1:{port}"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--kubeconfig={control_plane.kubeconfig}"], stdout=output, stderr=output, cwd=tmp_path
        )
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


async def test_each_user_sees_what_their_own_rights_allow(control_plane: ControlPlane, base: str, alone: None):
    ours, theirs = Team(control_plane), Team(control_plane)
    ours.grant()
    theirs.grant()
    async with opened(base) as page:
        for team, other in ((ours, theirs), (theirs, ours)):
            jobs = await until_allowed(page, team, team.name)
            assert [(each["namespace"], each["name"]) for each in jobs["jobs"]] == [(team.name, "train")]
            assert jobs["title"] == f"system:serviceaccount:{team.name}:user, namespace {team.name}"

            for namespace in ("", other.name):  # what is not theirs is refused by the API server, and named
                query = {"namespace": namespace} if namespace else {}
                jobs, _ = await page.first("jobs", team.token, **query)
                assert jobs["jobs"] == []
                assert len(jobs["notes"]) == 8
                assert all("forbidden" in each for each in jobs["notes"]), jobs["notes"]

            status, found = await page.read("yaml", team.token, job=team.job)
            assert (status, f"namespace: {team.name}" in found["text"]) == (200, True)
            status, found = await page.read("why", team.token, job=team.job, namespace=team.name)
            assert status == 200
            for path, method in (("yaml", "GET"), ("why", "GET"), ("stacks", "POST")):
                status, found = await page.read(path, team.token, method, job=other.job)
                assert status == 502
                assert "may not be read" in found["error"]


async def test_the_shipped_cluster_role_has_what_the_page_reads(control_plane: ControlPlane, base: str, alone: None):
    team, other = Team(control_plane), Team(control_plane)
    team.grant_everywhere()
    async with opened(base) as page:
        jobs = await until_allowed(page, team, "")
        assert {team.name, other.name} <= {each["namespace"] for each in jobs["jobs"]}
        status, found = await page.read("why", team.token, job=other.job)
        assert (status, found["unread"]) == (200, [])


async def test_when_an_account_is_gone_its_stream_ends_and_nothing_more_is_shown(
    control_plane: ControlPlane, base: str, alone: None
):
    ours, theirs = Team(control_plane), Team(control_plane)
    for team in (ours, theirs):
        team.grant()
    async with opened(base) as page:
        for team in (ours, theirs):
            await until_allowed(page, team, team.name)
        async with page.ask("events", ours.token, namespace=ours.name) as stream:
            await next_event(stream, "jobs")
            ours.world.ask("DELETE", f"{CORE}/serviceaccounts/user")  # the API server remembers tokens for 10 s
            await next_event(stream, "login")
            assert await stream.content.read() == b""
        status, found = await page.read("yaml", ours.token, job=ours.job)
        assert status == 401
        assert "log in again" in found["error"]
        assert (await page.read("yaml", theirs.token, job=theirs.job))[0] == 200
        assert (await page.read("yaml", "eyJ.not.mine", job=theirs.job))[0] == 401
