"""`kubectl top` on a local cluster: what processes use, as a user asks for it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.needs import KUBECTLS, need_program
from tests.patience import PATIENCE
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.runtime.objects.metadata import PODS

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="metrics are read from /proc")

BUSY = "while :; do :; done"
LARGE = "x=$(head -c 64000000 /dev/zero | tr '\\0' x); sleep 3600"


@pytest.fixture(params=["addresses", "namespaces"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalCluster]:
    options = ClusterOptions(directory=tmp_path / "cluster", network=request.param)
    try:
        started = await LocalCluster(options).__aenter__()
    except OSError as error:
        pytest.skip(f"no network namespaces on this machine: {error}")
    try:
        for name, script in (("busy", BUSY), ("idle", "sleep 3600"), ("large", LARGE)):
            container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
            containers = [container, {"name": "side", "image": "none", "command": ["sleep", "3600"]}]
            spec = {"containers": containers, "terminationGracePeriodSeconds": 0}
            metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
            await started.client.create(PODS, {"metadata": metadata, "spec": spec})
        yield started
    finally:
        await started.__aexit__(None, None, None)


class Shell:
    def __init__(self, cluster: LocalCluster, kubectl: str, folder: Path) -> None:
        self._kubectl = kubectl
        self._environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig)}

    async def __call__(self, command: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            self._kubectl, *command.split(), stdout=pipe, stderr=pipe, env=self._environment
        )
        async with asyncio.timeout(PATIENCE):
            out, errors = await process.communicate()
        return process.returncode or 0, out.decode(), errors.decode()


def table(text: str) -> dict[str, tuple[int, int]]:
    """The last name of each line -> millicores and MiB."""
    found = re.findall(r"^(?:\S+ +)??(\S+) +(\d+)m +(?:\d+% +)?(\d+)Mi", text, re.MULTILINE)
    return {name: (int(cores), int(memory)) for name, cores, memory in found}


@pytest.mark.parametrize("kubectl", KUBECTLS)
async def test_top(kubectl: str, cluster: LocalCluster, tmp_path: Path):
    shell = Shell(cluster, need_program(kubectl), tmp_path)
    code, _, errors = await shell("wait --for=condition=Ready pod --all --timeout=60s")
    assert code == 0, errors
    async with asyncio.timeout(PATIENCE):
        while True:  # until the large pod is large, and the busy one gets a processor
            code, shown, errors = await shell("top pods")
            assert code == 0, errors
            used = table(shown)
            if used["large"][1] >= 60 and used["busy"][0] >= 50 and used["idle"][0] < used["busy"][0] / 2:
                break
    assert used.keys() == {"busy", "idle", "large"}
    assert used["idle"][1] < 60, "the runtime's own processes do not count"

    code, shown, _ = await shell("top pods -l app=large --containers")
    assert code == 0
    assert table(shown).keys() == {"main", "side"}
    code, shown, _ = await shell("top pod busy")
    assert (code, [*table(shown)]) == (0, ["busy"])
    assert (await shell("top pod none"))[0] == 1
    code, shown, errors = await shell("top nodes")
    assert code == 0, errors
    assert re.search(r"^local +\d+m +\d+% +\d+Mi +\d+%", shown, re.MULTILINE), shown
    code, shown, _ = await shell("get pods -o name")  # the name of the core group, as before
    assert sorted(shown.split()) == ["pod/busy", "pod/idle", "pod/large"]
