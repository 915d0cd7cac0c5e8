"""Memory limits: which control groups are used, what is written there, and containers that exceed their limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.local.node.conftest import serve
from tests.local.node.world import World, container_status, terminated
from tests.needs import lack
from trainop.local.node.sandbox.memory import MemoryLimits, join
from trainop.runtime import EVENTS

MEGABYTE = 1024 * 1024


def make(root: Path, **files: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in {"cgroup_procs": "", **files}.items():
        (root / name.replace("_", ".", 1)).write_text(text)
    return root


def own(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "own"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def delegated(tmp_path: Path) -> tuple[Path, MemoryLimits]:
    """The control groups of a user's session of systemd: that of the program is below one with the controller."""
    root = tmp_path / "cgroup"
    slice_ = make(root / "user.slice/app.slice", cgroup_subtree_control="cpu memory pids\n")
    make(slice_ / "trainop.scope", cgroup_subtree_control="\n")
    return slice_, MemoryLimits.find(root, own(tmp_path, "0::/user.slice/app.slice/trainop.scope"))


@pytest.fixture
def _as_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories get the files of a control group when they are made, and lose them when they are removed."""
    make_directory, remove = Path.mkdir, Path.rmdir

    def mkdir(path: Path, *args: object, **options: object) -> None:
        make_directory(path, *args, **options)  # type: ignore[arg-type]  # passed on
        if path.name.startswith("trainop-"):
            (path / "cgroup.procs").touch()
            (path / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
            (path / "memory.oom_control").write_text("oom_kill 0\n")

    def rmdir(path: Path) -> None:
        for file in path.iterdir():
            file.unlink()
        remove(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)


@pytest.mark.usefixtures("_as_a_kernel")
def test_version_2(tmp_path: Path):
    parent, limits = delegated(tmp_path)
    assert (limits.parent, limits.version, limits.reason) == (parent, 2, "")
    group = limits.open(64 * MEGABYTE)
    path = Path(group.path)
    assert path.parent == parent
    names = ("memory.max", "memory.swap.max", "memory.oom.group")
    assert [(path / name).read_text().strip() for name in names] == [str(64 * MEGABYTE), "0", "1"]
    join(group.path)
    assert (path / "cgroup.procs").read_text() == "0"
    (path / "memory.events").write_text("low 0\noom 1\noom_kill 3\n")
    other = limits.open(64 * MEGABYTE)
    assert other.path != group.path
    assert [group.close(), group.close(), other.close()] == [True, False, False]
    assert not list(parent.glob("trainop-*"))


@pytest.mark.usefixtures("_as_a_kernel")
def test_version_1(tmp_path: Path):
    parent = make(tmp_path / "cgroup/memory/a")
    limits = MemoryLimits.find(tmp_path / "cgroup", own(tmp_path, "4:memory:/a", "1:cpu:/", "0::/"))
    assert (limits.parent, limits.version) == (parent, 1)
    group = limits.open(MEGABYTE)
    assert (Path(group.path) / "memory.limit_in_bytes").read_text().strip() == str(MEGABYTE)
    (Path(group.path) / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert group.close()


@pytest.mark.usefixtures("_as_a_kernel")
def test_no_limit_makes_no_group(tmp_path: Path):
    parent, limits = delegated(tmp_path)
    assert limits.open(0).path == ""
    assert not list(parent.glob("trainop-*"))
    assert limits.unenforced(MEGABYTE) == ""


@pytest.mark.usefixtures("_as_a_kernel")
def test_groups_of_programs_that_have_ended_are_removed(tmp_path: Path):
    parent, _ = delegated(tmp_path)
    (parent / "trainop-4194399-1").mkdir()  # above the largest PID
    (parent / f"trainop-{os.getpid()}-1").mkdir()
    (parent / "trainop-mine-1").mkdir()
    delegated(tmp_path)
    assert {path.name for path in parent.glob("trainop-*-*")} == {f"trainop-{os.getpid()}-1", "trainop-mine-1"}


@pytest.mark.parametrize("controllers", ["", "cpu pids"])
def test_nothing_is_delegated(tmp_path: Path, controllers: str):
    root = make(tmp_path / "cgroup/session", cgroup_subtree_control=controllers).parent
    limits = MemoryLimits.find(root, own(tmp_path, "0::/session"))
    why = "Memory limits are not enforced on this machine: no control group with the memory controller is delegated"
    assert limits.unenforced(0) == ""
    assert limits.unenforced(MEGABYTE).startswith(why)
    assert limits.unenforced(MEGABYTE) == ""  # said once
    assert limits.open(MEGABYTE).path == ""


def test_a_system_without_control_groups(tmp_path: Path):
    limits = MemoryLimits.find(tmp_path, tmp_path / "missing")
    assert limits.unenforced(1) == "Memory limits are not enforced on this machine: this system has no control groups"


# With the kernel of this machine --------------------------------------------------------------------------------------

GREEDY = "import sys; print('begun', flush=True); x = b'x' * 300_000_000; print(len(x))"
LIMITED = {"resources": {"limits": {"memory": "100Mi"}}}


@pytest.fixture
def enforcing(world: World) -> World:
    found = MemoryLimits.find()
    if found.parent is None:
        lack(found.reason)
    return world


@pytest.mark.asyncio(loop_scope="session")
async def test_a_container_above_its_limit_is_killed(enforcing: World):
    world = enforcing
    name = await world.start("python3", "-c", GREEDY, main=LIMITED)
    pod = await world.finish(name)
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (137, "OOMKilled")
    assert await world.log(name) == "begun\n"
    fits = await world.start("python3", "-c", "print(len(b'x' * 1000))", main=LIMITED)
    assert terminated(await world.finish(fits))["reason"] == "Completed"
    without = await world.start("python3", "-c", GREEDY)
    assert terminated(await world.finish(without))["reason"] == "Completed"
    parent = MemoryLimits.find().parent
    assert parent is not None
    assert not list(parent.glob(f"trainop-{os.getpid()}-*"))


@pytest.mark.asyncio(loop_scope="session")
async def test_the_limit_counts_for_each_run_and_for_what_a_container_starts(enforcing: World):
    script = f'python3 -c "{GREEDY}" & wait $! ; exit 4'
    name = await enforcing.start("sh", "-c", script, main=LIMITED, restartPolicy="OnFailure")
    pod = await enforcing.until(name, lambda each: container_status(each).get("restartCount", 0) >= 1)
    assert container_status(pod)["lastState"]["terminated"]["reason"] == "OOMKilled"
    await enforcing.delete(name, grace=0)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_limit_without_effect_is_reported_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(MemoryLimits, "find", lambda: MemoryLimits(None, reason="why"))
    async for world in serve(World(tmp_path_factory.mktemp("unlimited"), "addresses")):
        for name in ("first", "second"):
            await world.start("true", name=name, main=LIMITED)
            await world.finish(name)
        (event,) = await world.events("first", "MemoryLimitNotEnforced")
        assert (event["type"], event["message"]) == ("Warning", "Memory limits are not enforced on this machine: why")
        everything = (await world.client.list(EVENTS, "team")).items
        assert [one["involvedObject"]["name"] for one in everything if one["reason"] == event["reason"]] == ["first"]
