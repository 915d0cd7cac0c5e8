"""What an isolated run sees: the choice of folders and variables, and the network of its pods."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.local.node.conftest import serve
from tests.local.node.world import World
from trainop.local.node.isolation import Isolation
from trainop.local.node.network.host_network import NoHostNetwork
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.memory import MemoryLimits

CONNECT = """
import socket
for address in ("192.0.2.80", "10.96.5.5", "10.244.0.1"):
    try:
        peer = socket.create_connection((address, 443), timeout=60)
        peer.sendall(b"abc")
        peer.shutdown(socket.SHUT_WR)
        print("answer", peer.recv(100), flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"""


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    path = tmp_path_factory.mktemp("isolation")
    isolation = Isolation.find(Path.cwd(), variables={"HOME": str(path)})
    async for each in serve(World(path / "node", "namespaces", isolation=isolation)):
        yield each


@pytest.mark.asyncio(loop_scope="session")
async def test_pods_have_no_route_out(world: World):
    """Even to the address that `test_network.py` reaches from a pod that is not isolated."""
    name = await world.start(sys.executable, "-c", CONNECT)
    assert (await world.finish(name))["status"]["phase"] == "Succeeded"
    lines = (await world.log(name)).splitlines()
    assert lines[0] == "OSError 101", "network is unreachable"
    assert all(line == "answer b''" or not line.startswith("answer") for line in lines), "connected, and closed at once"
    assert len(lines) == 3


@pytest.mark.asyncio(loop_scope="session")
async def test_memory_limits_still_hold(world: World):
    if MemoryLimits.find().parent is None:
        pytest.skip("no control group with the memory controller is delegated to this user")
    limit = {"resources": {"limits": {"memory": "64Mi"}}}
    name = await world.start("cat", "/proc/self/cgroup", main=limit)
    assert (await world.finish(name))["status"]["phase"] == "Succeeded"
    assert "/trainop-" in await world.log(name)


async def test_there_is_nothing_outside():
    assert await NoHostNetwork().resolve("localhost") is None
    with pytest.raises(ConnectionRefusedError, match="outside of the cluster"):
        await NoHostNetwork().connect("127.0.0.1", 80)


def test_variables_are_passed_on_by_name():
    given = {
        "PATH": "/usr/bin",
        "PYTHONPATH": "/lib",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C",
        "HOME": "/home/u",
        "TMPDIR": "/scratch",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "NVIDIA_API_KEY": "x",
        "TORCH_HUB_TOKEN": "x",
        "SSH_AUTH_SOCK": "x",
        "https_proxy": "http://user:password@proxy",
        "DBUS_SESSION_BUS_ADDRESS": "x",
        "KUBECONFIG": "x",
    }
    kept = Isolation("/work", "/home/u", (), (), ()).environment(given)
    assert kept == {**{name: given[name] for name in list(given)[:5]}, "TMPDIR": "/tmp"}


@pytest.mark.parametrize("name", ["state", "deep/state"])
def test_folders_in_which_this_process_writes_are_refused_in_that_of_the_run(tmp_path: Path, name: str):
    """The run could put links into them, which would be followed outside."""
    with pytest.raises(OSError, match=r"cannot be the folder of the run, as \S+state is in it"):
        Isolation.find(tmp_path, [tmp_path / name], {"HOME": str(tmp_path.parent / "home")})


def mounts_of(isolation: Isolation, scratch: Path) -> dict[str, Mount]:
    return {mount.target: mount for mount in isolation.mounts(scratch)}


def test_what_python_imports_from_a_hidden_folder_is_shown_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home, work = tmp_path / "home", tmp_path / "home" / "project"
    for folder in (work / "src", home / "lib", home / "other"):
        folder.mkdir(parents=True)
    (home / "link").symlink_to(home / "lib")
    paths = [home / "lib", home / "link", work / "src", home, Path("/"), home / "missing"]
    monkeypatch.setattr(sys, "path", list(map(str, paths)))
    isolation = Isolation.find(work, variables={"HOME": str(home)})
    mounts = mounts_of(isolation, tmp_path / "scratch")
    for name in ("lib", "link"):
        mount = mounts[str(home / name)]
        assert (mount.source, mount.read_only) == (str(home / "lib"), True)
    assert (mounts[str(work)].source, mounts[str(work)].read_only) == (str(work), False)
    assert mounts[str(home)].source == str(tmp_path / "scratch" / "home")
    assert not {"/", str(home / "other"), str(work / "src"), str(home / "missing")} & mounts.keys()


def test_what_the_user_executes_later_is_kept_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a whole, so that no folder above it can be replaced; and no link, which another container could have made."""
    work = tmp_path / "project"
    (work / "tools" / ".venv").mkdir(parents=True)
    (work / ".git").symlink_to("/root")
    monkeypatch.setattr(sys, "prefix", str(work / "tools" / ".venv"))
    isolation = Isolation.find(work, variables={"HOME": str(tmp_path / "home")})
    assert isolation.kept == (str(work / "tools"),)
    (work / ".git").unlink()
    (work / ".git").mkdir()
    assert Isolation.find(work, variables={"HOME": str(tmp_path / "home")}).kept[1] == str(work / ".git")


@pytest.mark.asyncio(loop_scope="session")
async def test_a_claim_is_a_folder_of_the_cluster(world: World):
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "../../../etc"}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    name = await world.start("true", main=mounts, volumes=volumes)
    (found, *_) = await world.events(name, "FailedMount")
    assert "is outside the volume" in found["message"]
    await world.delete(name, 0)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_probe_looks_up_no_name(world: World):
    probe = {"startupProbe": {"periodSeconds": 1, "tcpSocket": {"host": "localhost", "port": 1}}}
    name = await world.start("sleep", "600", main=probe)
    await world.running(name)
    (found, *_) = await world.events(name, "Unhealthy")
    assert "a run with --isolated looks up no names, such as 'localhost'" in found["message"]
    await world.delete(name, 0)
