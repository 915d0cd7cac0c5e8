"""A podman with a storage of its own, images made here, and a node whose containers it runs."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.local.node.conftest import serve
from tests.local.node.world import World
from tests.local.podman.images import BUSYBOX, make_archive
from tests.local.podman.registry import Registry
from trainop.local.node.agent import PodmanOptions
from trainop.local.node.podman.program import Podman
from trainop.local.node.sandbox.sandbox import SandboxError

IMAGE = "localhost/trainop-test:1"
IMAGE_WITH_PYTHON = "localhost/trainop-python:1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a real podman runs is asked for: other versions of it, or other settings of a machine, were not tried."""
    for item in items:
        if {"engine", "work"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)


@dataclass(frozen=True)
class Engine:
    """podman as the tests use it; its settings are in the environment of this process."""

    environment: dict[str, str]
    registry: Registry

    def call(self, *arguments: str) -> str:
        done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        """The names of all containers, also of those that have ended."""
        return self.call("ps", "--all", "--format", "{{.Names}}").split()


def _settings(folder: Path, registry: Registry, *, cautious: bool) -> dict[str, str]:
    """Files with settings for podman; `cautious` for a machine that forbids what podman does by default."""
    files = {
        "CONTAINERS_STORAGE_CONF": "storage.conf",
        "CONTAINERS_REGISTRIES_CONF": "registries.conf",
        "CONTAINERS_CONF": "containers.conf",
    }
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    (folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
    limits = ""
    if cautious:
        hard = [resource.getrlimit(number)[1] for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
        most = [min(limit, 20000) if limit > 0 else 20000 for limit in hard]
        limits = f'[containers]\ndefault_ulimits = ["nofile={most[0]}:{most[0]}", "nproc={most[1]}:{most[1]}"]\n'
    runtime = 'runtime = "runc"\n' if cautious and shutil.which("runc") else ""
    (folder / "containers.conf").write_text(f'{limits}[engine]\nevents_logger = "none"\n{runtime}')
    return {name: str(folder / file) for name, file in files.items()}


def _why_not() -> str:
    """Why podman cannot run containers here; empty if it can."""
    try:
        asyncio.run(Podman.find())
    except SandboxError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Skips, with the reason, where podman or a program for the images is absent: they come from Debian's archive,
    which not every machine reaches."""
    for program in ("podman", BUSYBOX, "dash", "getent"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install podman crun busybox-static")
    folder = tmp_path_factory.mktemp("podman")
    with Registry(folder / "registry") as registry, pytest.MonkeyPatch.context() as patch:
        for cautious in (False, True):
            environment = _settings(folder, registry, cautious=cautious)
            for name, value in environment.items():
                patch.setenv(name, value)
            if not (problem := _why_not()):
                break
        else:
            pytest.skip(problem)
        made = Engine(environment, registry)
        _make_images(made, folder)
        yield made
        subprocess.run(["podman", "rm", "--all", "--force", "--time", "0"], check=False, capture_output=True)
        subprocess.run(["podman", "rmi", "--all", "--force"], check=False, capture_output=True)


def _make_images(engine: Engine, folder: Path) -> None:
    settings = ["ENV PATH=/usr/local/bin:/bin", "ENV GREETING=hello", "WORKDIR /tmp"]
    settings += ['ENTRYPOINT ["echo","entry"]', 'CMD ["by","default"]']
    changes = [f"--change={each}" for each in settings]
    for name, python in ((IMAGE, False), (IMAGE_WITH_PYTHON, True)):
        archive = folder / "image.tar"
        make_archive(archive, python=python)
        engine.call("import", *changes, str(archive), name)
        archive.unlink()
    engine.call("save", "--quiet", "--format=oci-dir", f"--output={folder / 'registry'}", IMAGE)


class Pods(World):
    """A node whose containers podman runs."""

    def container(self, *command: str, **more: Any) -> dict[str, Any]:
        given = {"command": list(command)} if command else {}
        return {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", **given, **more}

    async def launch(self, *command: str, **more: Any) -> str:
        """A pod with one container; `more` are fields of the container."""
        spec = more.pop("spec", {})
        return await self.create({"containers": [self.container(*command, **more)], **spec})


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["namespaces", "addresses"])
async def pods(engine: Engine, request: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pods]:
    """A node in each of the two modes of the network."""
    if request.param == "namespaces" and os.geteuid() != 0:
        pytest.skip("an ordinary user's podman cannot join the network of a pod")
    folder = tmp_path_factory.mktemp(request.param)
    async for world in serve(Pods(folder / "node", request.param, podman=PodmanOptions())):
        yield world  # type: ignore[misc]  # the one that is served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pods]:
    """A node for what does not depend on the network."""
    mode: Any = "namespaces" if os.geteuid() == 0 else "addresses"
    async for world in serve(Pods(tmp_path_factory.mktemp("node") / "node", mode, podman=PodmanOptions())):
        yield world  # type: ignore[misc]  # the one that is served


def inspect(engine: Engine, name: str) -> dict[str, Any]:
    (found,) = json.loads(engine.call("inspect", name))
    return dict(found)
