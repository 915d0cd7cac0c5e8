"""The commands that work after `pip install trainop` alone, and the error that names a missing extra.

A hook on `sys.meta_path` hides every module that the base dependencies of `pyproject.toml` do not bring.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.patience import PATIENCE
from trainop import extras
from trainop.cli import LAZY
from trainop.local.api.serving.server import ApiServer
from trainop.runtime import PODS, Client, Resource
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
DRIVER = """
import sys

hidden = frozenset(sys.argv.pop(1).split())

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv[0] = "trainop"
from trainop.cli import main
main()
"""


def closure(requirements: list[str]) -> set[str]:
    """The distributions that these requirements install in this environment, according to their metadata."""
    found: set[str] = set()
    queue = [Requirement(text) for text in requirements]
    while queue:
        wanted = queue.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        queue += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    return found


def hidden_from(requirements: list[str]) -> str:
    """The top-level modules of all other distributions of this environment."""
    allowed = closure(requirements) | {"trainop"}
    return " ".join(
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners}
    )


def command(*args: str) -> list[str]:
    return [sys.executable, "-c", DRIVER, hidden_from(PROJECT["dependencies"]), *args]


def environment(**added: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"} | added


def bare(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `trainop` to its end without any extra."""
    return subprocess.run(
        command(*args), capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False
    )


def test_the_hook_hides_what_extras_and_groups_bring() -> None:
    hidden = set(hidden_from(PROJECT["dependencies"]).split())
    assert {"kubernetes_asyncio", "rich", "pytest"} <= hidden
    assert not hidden & {"aiohttp", "click", "cryptography", "msgspec", "multidict", "trainop", "yaml"}


def test_the_modules_of_an_extra_are_those_that_its_packages_bring() -> None:
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["optional-dependencies"][extras.LOCAL]}
    owners = importlib.metadata.packages_distributions()
    named = {canonicalize_name(owner) for module in extras.MODULES[extras.LOCAL] for owner in owners[module]}
    assert named == (declared if sys.platform == "linux" else declared - {"pyroute2"})


@pytest.mark.parametrize("name", ["run", "check", "cluster"])
def test_a_command_without_its_extra_names_it_in_one_line(name: str) -> None:
    done = bare(name, "x.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    missing = "rich and pyroute2" if sys.platform == "linux" else "rich"
    assert done.stderr == f"trainop: trainop {name} needs {missing}: pip install 'trainop[local]'\n"


def test_the_commands_are_listed_without_their_extras() -> None:
    done = bare("--help")
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in (*LAZY, "operator"))


def test_an_auth_provider_without_its_extra_names_it_in_one_line(tmp_path: Path) -> None:
    user = {"auth-provider": {"name": "oidc", "config": {}}}
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    done = bare("operator", f"--kubeconfig={config}")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "context 'here' needs kubernetes-asyncio: install the extra legacy-auth" in done.stderr


async def test_the_operator_runs_without_any_extra(tmp_path: Path) -> None:
    """It is installed from its own manifests, reads a template of an init container, and serves metrics over TLS."""
    api = ApiServer()
    await api.serve(token="secret")
    client = Client(api.transport())
    printed = bare("manifests", "--print", "--image", "here")
    assert printed.returncode == 0, printed.stderr
    for document in yaml.safe_load_all(printed.stdout):
        if document and document["kind"] == "CustomResourceDefinition":
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, document)
    (tmp_path / "kubeconfig").write_text(json.dumps(api.kubeconfig("secret")))
    (tmp_path / "log").touch()
    ports = ("--health-probe-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0", "--metrics-secure")
    with (tmp_path / "log").open("wb") as log:
        operator = await asyncio.create_subprocess_exec(
            *command("operator", f"--kubeconfig={tmp_path}/kubeconfig", *ports),
            env=environment(),
            stdout=log,
            stderr=log,
        )
    try:
        template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
        roles = {role: {"replicas": 1, "template": template} for role in ("Master", "Worker")}
        job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"pytorchReplicaSpecs": roles}}
        await client.create(PYTORCHJOBS, {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", **job})
        pods = await pods_of(client, operator, 2)
        assert {name: bool(spec.get("initContainers")) for name, spec in pods.items()} == {
            "j-master-0": False,
            "j-worker-0": True,
        }
        operator.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(operator.wait(), PATIENCE) == 0, (tmp_path / "log").read_text()
    finally:
        if operator.returncode is None:
            operator.kill()
            await operator.wait()
        await api.close()


async def pods_of(client: Client, operator: asyncio.subprocess.Process, count: int) -> dict[str, dict[str, Any]]:
    """The specs of all pods by name, once `count` of them exist."""
    async with asyncio.timeout(PATIENCE):
        while operator.returncode is None:
            items = (await client.list(PODS, "default")).items
            if len(items) >= count:
                return {item["metadata"]["name"]: item["spec"] for item in items}
            await asyncio.sleep(0.05)
    pytest.fail("the operator has ended")


@pytest.mark.parametrize("program", ["operator", "mpi_operator", "di_operator", "di_server", "di_webhook"])
def test_a_program_does_not_load_what_only_the_embedded_cluster_needs(program: str):
    """Where the extra is installed, too: structlog would load rich, which takes 3 MiB."""
    code = f"import sys, trainop.cli, trainop.programs.{program}; print('rich' in sys.modules); import rich.console"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


BUILT_AND_FAILING = """
import sys
import trainop.cli  # first, as in the program
import structlog
from trainop.logs import LogSettings, configure_logs
from trainop.programs.operator import build
from trainop.programs.settings import Settings
for encoder in ("console", "json"):
    configure_logs(LogSettings(encoder=encoder))
    build(Settings(), object())
    try:
        raise ValueError("of a reconcile")
    except ValueError:
        structlog.get_logger().exception("reconcile failed")
print("rich" in sys.modules)
"""


def test_an_operator_that_logs_a_traceback_does_not_load_rich():
    """With the extra installed, structlog's own console would print it with rich."""
    assert importlib.util.find_spec("rich") is not None
    command = [sys.executable, "-c", BUILT_AND_FAILING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    assert (done.stdout + done.stderr).count("of a reconcile") >= 2
