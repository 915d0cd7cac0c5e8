"""The runtime as a library: public names, their documentation and types, import costs, and the example operator."""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import trainop.runtime
from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer
from trainop.runtime import CONFIG_MAPS, Client, Json, NotFoundError, Resource, lowlevel
from trainop.runtime.objects.resource import CUSTOM_RESOURCE_DEFINITIONS
from trainop.testing import TestCluster

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "runtime"
GREETINGS = Resource("example.com", "v1", "greetings", "Greeting")


def test_all_public_names_can_be_imported():
    source = ast.parse(Path(trainop.runtime.__file__ or "").read_text(encoding="utf-8"))
    imported = {
        (alias.name, node.module)
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainop.")
        for alias in node.names
    }
    modules = {(name, f"trainop.runtime.{module}") for name, module in trainop.runtime._MODULES.items()}
    assert imported == modules
    assert {name for name, _ in modules} == set(trainop.runtime.__all__)
    for name, module in modules:
        assert getattr(trainop.runtime, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = trainop.runtime.Nothing


def test_exactly_the_public_names_are_documented():
    text = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8")
    assert [name for name in trainop.runtime.__all__ if not re.search(rf"\b{name}\b", text)] == []
    used, made = set[str](), {"BUCKETS", "GREETINGS", "JOBS", "TestCluster"}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(compile(code, "docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)):
            if isinstance(node, ast.ClassDef):
                made.add(node.name)
            elif isinstance(node, ast.Name) and node.id[0].isupper():
                (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
    assert {"Cache", "Manager", "WebhookServer"} <= used
    assert used - made <= set(trainop.runtime.__all__)


def test_low_level_names_are_public_and_no_example_needs_them():
    low, public = lowlevel.__all__, trainop.runtime.__all__
    assert len(low) == len(set(low))
    assert set(low) < set(public)
    assert all(getattr(lowlevel, name) is getattr(trainop.runtime, name) for name in low)
    for example in EXAMPLE.glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(example.read_text())) if isinstance(node, ast.Name)}
        assert sorted(names & set(low)) == [], example.name


def _named_types(public: object) -> Iterator[type]:
    """The runtime classes in the signatures of a public name."""
    scope = vars(sys.modules[getattr(public, "__module__", "builtins")])
    members = [public]
    if inspect.isclass(public):
        shown = [member for name, member in vars(public).items() if name == "__init__" or not name.startswith("_")]
        members += [getattr(member, "__func__", getattr(member, "fget", member)) for member in shown]
    for member in members:
        for annotation in getattr(member, "__annotations__", {}).values():
            names = [node for node in ast.walk(ast.parse(str(annotation))) if isinstance(node, ast.Name)]
            found = [scope.get(name.id) for name in names]
            yield from (each for each in found if inspect.isclass(each) and "trainop" in each.__module__)


def test_every_type_of_a_public_signature_is_public():
    public = [getattr(trainop.runtime, name) for name in trainop.runtime.__all__]
    ours = [each for each in public if getattr(each, "__module__", "").startswith("trainop.")]
    named = {found.__name__ for each in ours for found in _named_types(each)}
    assert {"HasMetadata", "AuthHeaders", "Runnable", "Metrics"} <= named, "the search finds the classes in signatures"
    assert sorted(named - set(trainop.runtime.__all__)) == []


def test_every_error_that_the_page_names_is_public():
    text = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`(\w+Error)`", text) if not hasattr(builtins, name)}
    ours = {name for name in named if name not in ("TemporaryError", "PermanentError")}  # names of kopf
    assert {"UnhealthyError", "NotLeaderError", "DecodeError"} <= ours
    assert sorted(ours - set(trainop.runtime.__all__)) == []


def test_the_package_is_typed():
    """PEP 561: the package contains `py.typed`, and the wheel contains every file of the package."""
    assert (Path(trainop.runtime.__file__ or "").parent.parent / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["trainop"]}, "the build excludes no file of the package"
    assert "examples/runtime" in project["tool"]["mypy"]["files"], "the example is type-checked like the project"


MISUSE = """\
from trainop.runtime import PODS, Client, Key, Result


async def misuse(client: Client) -> Result:
    pod: str = await client.get(PODS, "name", "namespace")
    await client.get(PODS, "name", "namespace", timeout="soon")
    return Key("namespace", "name")
"""


def test_the_types_reach_the_project_of_a_user(tmp_path: Path):
    """`mypy --strict` outside this checkout: the example has no error, and each misuse has one."""
    (tmp_path / "greetings.py").write_text((EXAMPLE / "greetings.py").read_text(encoding="utf-8"))
    (tmp_path / "misuse.py").write_text(MISUSE)
    cache = (
        ROOT / ".mypy_cache" / "user"
    )  # the cache is kept, because the first run takes ten seconds and later ones half a second
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", "greetings.py", "misuse.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    errors = re.findall(r"^(.+?:\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    expected = [("misuse.py:5", "assignment"), ("misuse.py:6", "call-arg"), ("misuse.py:7", "return-value")]
    assert errors == expected, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import trainop.runtime", ["aiohttp", "msgspec", "prometheus_client", "cryptography"]),
        ("from trainop.runtime import Client, Cache, Controller", ["aiohttp", "cryptography", "kubernetes_asyncio"]),
        ("from trainop.runtime import Manager, WebhookServer, CertificateRotation", ["cryptography"]),
        ("from trainop.runtime import HttpTransport, load_config", ["cryptography", "kubernetes_asyncio", "yaml"]),
    ],
)
def test_imports_load_only_what_is_used(statement: str, absent: list[str]):
    program = f"import sys; {statement}; print(sorted(set({absent!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("greetings", EXAMPLE / "greetings.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document(name: str) -> Json:
    loaded: Json = yaml.safe_load((EXAMPLE / name).read_text())
    return loaded


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110  # the cluster is asked, as a user would
            await asyncio.sleep(0.02)


class World:
    """Waits for the texts that the example operator writes."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def text(self) -> str | None:
        try:
            found = await self.client.get(CONFIG_MAPS, "world", "default")
        except NotFoundError:
            return None
        return str(found["data"]["text"])

    async def wait_text(self, text: str | None) -> None:
        async def seen() -> bool:
            return await self.text() == text

        await until(seen)

    async def wait_status_text(self, text: str) -> None:
        async def seen() -> bool:
            greeting = await self.client.get(GREETINGS, "world", "default")
            return (greeting.get("status") or {}).get("text") == text

        await until(seen)


async def test_the_example_does_what_it_says():
    async with TestCluster(EXAMPLE / "crd.yaml") as cluster:
        cluster.start(load_example().operator)
        world = World(cluster.client)
        await cluster.create(EXAMPLE / "greeting.yaml")
        await world.wait_text("Hello, world!")
        await world.wait_status_text("Hello, world!")
        await cluster.client.patch(GREETINGS, "world", "default", {"spec": {"who": "you"}})
        await world.wait_text("Hello, you!")
        await world.wait_status_text("Hello, you!")
        await cluster.client.delete(CONFIG_MAPS, "world", "default")
        await world.wait_text("Hello, you!")
        await cluster.client.delete(GREETINGS, "world", "default")
        await world.wait_text(None)


async def test_the_example_runs_with_any_kubeconfig(tmp_path: Path):
    api = ApiServer()
    await api.serve(token="secret")
    client = Client(api.transport())
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, document("crd.yaml"))
    await client.create(GREETINGS, document("greeting.yaml"))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(api.kubeconfig("secret")))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        EXAMPLE / "greetings.py",
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        await World(client).wait_text("Hello, world!")
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0, said.decode()
        assert b"Traceback" not in said
        assert b"Unclosed" not in said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await api.close()
