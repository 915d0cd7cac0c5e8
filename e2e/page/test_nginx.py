"""An nginx in front of oauth2-proxy, as at the border of many clusters: streams, and the large cookies of the proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster.certificates import Authority
from e2e.cluster.daemons import DIE_WITH_PARENT, free_ports, wait_until
from e2e.page.provider import Provider, User
from e2e.page.site import documented, listens, people, visitor
from tests.patience import PATIENCE
from tests.server.kubelet import add_pod, kubelet_of
from tests.server.page import Team, lines_until

CONFIGURATION = """
daemon off;
user root;
pid {folder}/pid;
error_log {folder}/nginx.log;
events {{}}
http {{
  access_log off;
  {paths}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    {more}
    location / {{
      proxy_pass {upstream};
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""
PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def nginx(folder: Path, port: int, upstream: str, authority: Authority, more: str = "") -> Iterator[str]:
    """The URL of an nginx with its defaults and `more`; skips the test where there is no nginx."""
    program = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if program is None:
        pytest.skip("no nginx: apt-get install nginx-light")
    folder.mkdir()
    certificate, key = authority.issue("nginx", "nginx", hosts=["127.0.0.1"])
    paths = " ".join(f"{each}_temp_path {folder}/{each};" for each in PATHS)
    text = CONFIGURATION.format(
        folder=folder, paths=paths, port=port, certificate=certificate, key=key, more=more, upstream=upstream
    )
    (folder / "nginx.conf").write_text(text)
    command = [program, *("-p", str(folder)), *("-c", f"{folder}/nginx.conf"), *("-e", f"{folder}/nginx.log")]
    process = subprocess.Popen(command, preexec_fn=DIE_WITH_PARENT)  # noqa: PLW1509  # see there
    try:
        assert wait_until(lambda: listens(port) or process.poll() is not None, PATIENCE)
        assert process.poll() is None, (folder / "nginx.log").read_text()
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def test_lines_get_through_an_nginx_as_it_is(
    start_proxy: Callable[..., str], authority: Authority, teams: tuple[Team, Team], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    upstream = start_proxy(f"--redirect-url=https://127.0.0.1:{port}/oauth2/callback")
    with nginx(tmp_path / "nginx", port, upstream, authority) as site:
        async with people(site, authority, "alice") as (alice,), kubelet_of(teams[0].world, tmp_path) as kubelet:
            await alice.until_listed(teams[0].name, "alice@example.com")
            pod = add_pod(teams[0].world, "train")
            async with alice.ask("events", job=teams[0].job, namespace=teams[0].name) as stream:
                for number in range(3):
                    await kubelet.say(pod, f"line {number}")
                    assert (await lines_until(stream, f"line {number}"))[0] == [f"line {number}"]


async def test_large_tokens_get_through_an_nginx_with_the_documented_lines(
    start_proxy: Callable[..., str], authority: Authority, provider: Provider, teams: tuple[Team, Team], tmp_path: Path
) -> None:
    provider.users["alice"] = User("alice@example.com", filler=12_000)
    (port,) = free_ports(1)
    upstream = start_proxy(f"--redirect-url=https://127.0.0.1:{port}/oauth2/callback")
    with nginx(tmp_path / "defaults", port, upstream, authority) as site:
        async with visitor(site, authority) as alice:
            async with alice.session.get(site) as form:
                assert "<title>log in</title>" in await form.text()
            async with alice.session.post(form.url, data={"user": "alice"}) as answer:
                assert answer.status == 502
    with nginx(tmp_path / "documented", port, upstream, authority, "\n".join(documented("nginx"))) as site:
        async with people(site, authority, "alice") as (alice,):
            await alice.until_listed(teams[0].name, "alice@example.com")
            status, found = await alice.read("yaml", "", job=teams[0].job)
            assert (status, teams[0].name in found["text"]) == (200, True)
