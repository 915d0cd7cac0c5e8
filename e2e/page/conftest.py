"""Fixtures: a provider, a control plane that trusts it, the page, and oauth2-proxy in front of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.cluster.certificates import Authority
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports
from e2e.page.provider import Provider, User, serve
from e2e.page.site import api_server_flags, oauth2_proxy
from tests.conftest import start_control_plane
from tests.server.page import Team, role_of, served

ALICE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice@example.com"}
BOBS = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "team-b"}
RULES = role_of("page", "ClusterRole")["rules"]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA of provider and proxy; the cluster has another one."""
    return Authority(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="session")
def shared_provider(authority: Authority) -> Iterator[Provider]:
    """In a thread, because kube-apiserver may ask for its keys at any time."""
    (port,) = free_ports(1)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = serve(port, authority)
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def provider(shared_provider: Provider) -> Provider:
    shared_provider.users = {
        "alice": User("alice@example.com"),
        "bob": User("bob@example.com", ["team-b"]),
        "carol": User("carol@example.com"),
    }
    return shared_provider


@pytest.fixture(scope="session")
def plane(shared_provider: Provider, authority: Authority) -> Iterator[ControlPlane]:
    """With the documented flags."""
    yield from start_control_plane("page", ClusterOptions(flags=api_server_flags(shared_provider, authority)))


@pytest.fixture
def page_url(plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The page as a process, whose kubeconfig has all rights, which it must not use."""
    with served(plane.kubeconfig, tmp_path) as url:
        yield url


@pytest.fixture
def start_proxy(
    tmp_path: Path, provider: Provider, authority: Authority, page_url: str
) -> Iterator[Callable[..., str]]:
    """Starts oauth2-proxy with the documented flags and then those that are given; returns its URL."""
    with ExitStack() as started:
        yield lambda *more: started.enter_context(oauth2_proxy(tmp_path, provider, authority, page_url, *more))


@pytest.fixture
def site(start_proxy: Callable[..., str]) -> str:
    """The address that people know."""
    return start_proxy()


@pytest.fixture
def teams(plane: ControlPlane) -> tuple[Team, Team]:
    """Alice may see the first, and who is in bob's group the second."""
    found = Team(plane), Team(plane)
    for team, subject in zip(found, (ALICE, BOBS), strict=True):
        team.allow(subject, RULES)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what the proxy and the page have said with a test that fails."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "call" and report.failed and folder is not None:
        report.sections += [(each.name, each.read_text()[-20_000:]) for each in sorted(folder.glob("*.log"))]
    return report
