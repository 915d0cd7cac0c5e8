"""`kubectl exec`, `cp` and `attach` on a local cluster: the commands a user types, with their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.needs import KUBECTLS, need_program
from tests.patience import PATIENCE
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.runtime.objects.metadata import PODS

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(ClusterOptions(directory=tmp_path / "cluster")) as found:
        container = {"name": "main", "image": "none", "command": ["sleep", "3600"]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        await found.client.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
        yield found


class Shell:
    def __init__(self, cluster: LocalCluster, kubectl: str, folder: Path) -> None:
        self._cluster = cluster
        self._environment = {
            "HOME": str(folder),
            "PATH": f"{Path(kubectl).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig),
        }

    async def __call__(self, command: str, sent: bytes = b"") -> tuple[int, bytes, str]:
        """The exit code, stdout and stderr of a line."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_shell(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment
        )
        async with asyncio.timeout(PATIENCE):
            out, errors = await process.communicate(sent)
        return process.returncode or 0, out, errors.decode()


async def test_describe_shows_the_events_of_a_pod(cluster: LocalCluster, tmp_path: Path):
    shell, out = Shell(cluster, need_program(KUBECTLS[0]), tmp_path), b""
    async with asyncio.timeout(PATIENCE):
        while b"Started container main" not in out:
            code, out, errors = await shell("kubectl describe pod p")
            assert code == 0, errors
    events = out.partition(b"\nEvents:\n")[2].decode()
    assert "Successfully assigned default/p to local" in events
    assert 'Image "none" is not used' in events


@pytest.mark.parametrize("kubectl", KUBECTLS)
async def test_kubectl(kubectl: str, cluster: LocalCluster, tmp_path: Path):
    shell = Shell(cluster, need_program(kubectl), tmp_path)
    code, _, errors = await shell("kubectl wait --for=condition=Ready pod/p --timeout=60s")
    assert code == 0, errors

    assert await shell("kubectl exec p -- sh -c 'echo out; echo err >&2; exit 3'") == (
        3,
        b"out\n",
        "err\ncommand terminated with exit code 3\n",
    )
    data = os.urandom(3_000_000)
    assert await shell("kubectl exec -i p -- cat", data) == (0, data, "")
    code, _, errors = await shell("kubectl exec p -- no-such-command")
    assert (code, '"no-such-command": executable file not found' in errors) == (1, True)
    code, _, errors = await shell("kubectl exec none -- true")
    assert (code, errors) == (1, 'Error from server (NotFound): pods "none" not found\n')
    code, _, errors = await shell("KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false kubectl exec p -- true")
    assert (code, "over WebSockets only" in errors) == (1, True)

    (tmp_path / "sent").write_bytes(data)
    sent, kept, received = (shlex.quote(str(tmp_path / name)) for name in ("sent", "kept", "received"))
    code, _, errors = await shell(f"kubectl cp {sent} p:{kept} && kubectl cp p:{kept} {received}")
    assert code == 0, errors
    assert (tmp_path / "received").read_bytes() == data

    # `script` gives kubectl a terminal, without which it asks for none
    tty = "kubectl exec -it p -- sh -c 'test -t 0 && test -t 1 && echo terminal; exit 5'"
    code, out, errors = await shell(f"script -qec {shlex.quote(tty)} /dev/null")
    assert (code, b"terminal" in out) == (5, True), (out, errors)


async def test_a_session_ends_with_its_pod(cluster: LocalCluster, tmp_path: Path):
    shell = Shell(cluster, need_program("kubectl"), tmp_path)
    await shell("kubectl wait --for=condition=Ready pod/p --timeout=60s")
    running = asyncio.create_task(shell("kubectl exec p -- sh -c 'echo up > up; sleep 3600'"))
    await shell("kubectl exec p -- sh -c 'until [ -e up ]; do sleep 0.05; done; rm up'")
    await shell("kubectl delete pod p --grace-period=0 --force")
    code, _, errors = await running
    assert (code, json.dumps(errors)) == (137, json.dumps("command terminated with exit code 137\n"))


@pytest.mark.parametrize("kubectl", KUBECTLS)
async def test_kubectl_debug_works_by_a_copy_and_says_what_to_do_instead_of_the_rest(
    kubectl: str, cluster: LocalCluster, tmp_path: Path
):
    shell = Shell(cluster, need_program(kubectl), tmp_path)
    code, _, errors = await shell("kubectl debug p --image=none -- true")
    assert code == 1
    assert "adds no containers to a running pod" in errors
    assert '"kubectl exec -it p -- sh" has the programs, files, environment and network' in errors
    reason = "because its containers are processes of this machine and images are not used"
    assert reason in errors
    page = (ROOT / "docs/local-pods.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `kubectl debug`"))
    assert reason in row

    code, _, errors = await shell("kubectl debug p --copy-to=q --container=debugger --image=none -- sh -c 'echo hello'")
    assert code == 0, errors
    await _wait_log(shell, "kubectl logs q -c debugger", b"hello")
    code, _, errors = await shell("kubectl debug node/local --image=none -- sh -c 'echo from the node'")
    assert code == 0, errors
    await _wait_log(shell, "kubectl logs -l app.kubernetes.io/managed-by=kubectl-debug", b"from the node")


async def _wait_log(shell: Shell, command: str, line: bytes) -> None:
    """Asks until the log has the line; each command takes a moment itself."""
    async with asyncio.timeout(PATIENCE):
        while line not in (await shell(command))[1]:
            pass
