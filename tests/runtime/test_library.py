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
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS
from trainop.testing import TestCluster

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "runtime"
GREETINGS = Resource("example.com", "v1", "greetings", "Greeting")


PAGE = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8")
NAMES: dict[str, str] = vars(trainop.runtime)["_MODULES"]
LOW: dict[str, str] = vars(lowlevel)["_MODULES"]
PUBLIC = NAMES | LOW


@pytest.mark.parametrize("package", ["trainop.runtime", "trainop.runtime.lowlevel"])
def test_all_public_names_can_be_imported(package: str):
    module = importlib.import_module(package)
    modules: dict[str, str] = vars(module)["_MODULES"]
    assert len(modules) > 50
    assert vars(module)["__all__"] == sorted(modules)
    for name, home in modules.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = getattr(module, "Nothing")  # noqa: B009  # type checkers see that it is missing


def test_each_public_name_stands_in_one_list():
    stubs = [ROOT / "trainop" / "runtime" / name for name in ("__init__.pyi", "lowlevel.pyi")]
    statements = [node for stub in stubs for node in ast.parse(stub.read_text(encoding="utf-8")).body]
    listed = [alias.asname for node in statements if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(listed) == len(statements), "a list has nothing but names, one in each line"
    assert sorted(listed, key=str) == sorted(PUBLIC), "each name is exported once, as what it is"


def _imported(*folders: str) -> dict[str, set[tuple[str, str]]]:
    """File -> what it imports of the runtime, as module and name; also what is imported only for type checkers."""
    found = {}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for path in (path for path in files if ROOT / "trainop" / "runtime" not in path.parents):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {(node.module or "", a.name) for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names}
        names |= {(alias.name, "") for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        if used := {(module, name) for module, name in names if f"{module}.".startswith("trainop.runtime.")}:
            found[path.relative_to(ROOT).as_posix()] = used
    return found


def test_the_rest_of_the_product_imports_public_names_only():
    used = _imported("trainop", "examples")
    public = {"trainop.runtime": NAMES, "trainop.runtime.lowlevel": LOW}
    private = {
        f"{path}: {module} {name}"
        for path, all_ in used.items()
        for module, name in all_
        if name not in public.get(module, ())
    }
    assert len(used) > 200
    assert private == set()


def test_what_is_pure_imports_the_words_for_objects_and_nothing_that_runs():
    words = ("objects.", "clock", "errors", "texts")
    used = _imported("trainop/engine", "trainop/kinds", "trainop/explain")
    homes = {PUBLIC[name] for names in used.values() for _, name in names}
    assert {"trainop.runtime.texts", "trainop.runtime.objects.metadata"} <= homes
    assert sorted(home for home in homes if not home.removeprefix("trainop.runtime.").startswith(words)) == []


def test_every_program_is_built_with_the_library():
    """What `Operator` connects is connected nowhere else. The node agent and the commands are no programs."""
    parts = {"Cache", "Client", "HttpTransport", "LeaderElector", "Manager", "Recorder"}
    folders = ("controllers", "diserver", "programs")
    nodes = [
        (path.name, node)
        for folder in folders
        for path in (ROOT / "trainop" / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    called = [(file, node.func.id) for file, node in nodes if isinstance(node.func, ast.Name)]
    assert [file for file, name in called if name == "Operator"] == ["server.py", "operator.py"]
    assert [(file, name) for file, name in called if name in parts] == []


def test_exactly_the_public_names_are_documented():
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", PAGE)] == []
    used, made = set[str](), {"BUCKETS", "GREETINGS", "JOBS", "TestCluster"}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for node in ast.walk(compile(code, "docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)):
            if isinstance(node, ast.ClassDef):
                made.add(node.name)
            elif isinstance(node, ast.Name) and node.id[0].isupper():
                (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
    assert {"Cache", "Controller", "RotationOptions"} <= used
    assert used - made <= PUBLIC.keys()


def test_no_example_needs_low_level_names():
    used = _imported("examples")
    assert "examples/runtime/greetings.py" in used
    assert {module for names in used.values() for module, _ in names} == {"trainop.runtime"}


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
    public = [getattr(importlib.import_module(home), name) for name, home in PUBLIC.items()]
    ours = [each for each in public if getattr(each, "__module__", "").startswith("trainop.")]
    named = {found.__name__ for each in ours for found in _named_types(each)}
    assert {"HasMetadata", "AuthHeaders", "Runnable", "Metrics"} <= named, "the search finds the classes in signatures"
    assert sorted(named - PUBLIC.keys()) == []


def test_each_public_name_has_its_reason():
    """It is used, described where it is used, or explained; a low-level name may be only the type of an argument."""
    sections, list_, low = re.split("## Other public names|### Low-level names", PAGE)[:3]
    used = {name for names in _imported("trainop", "examples").values() for _, name in names}
    described = {name for name in PUBLIC if re.search(rf"\b{name}\b", sections)}
    explained = {name for name in PUBLIC if re.search(rf"`{name}`: \w", list_ + low)}
    reasons = used | described | explained
    assert sorted(NAMES.keys() - reasons) == []
    needed, found = set[str](), reasons | NAMES.keys()
    while found - needed:
        needed |= found
        objects = [getattr(importlib.import_module(PUBLIC[name]), name) for name in needed & PUBLIC.keys()]
        ours = [each for each in objects if getattr(each, "__module__", "").startswith("trainop.")]
        found = {each.__name__ for public in ours for each in _named_types(public)}
    assert sorted(LOW.keys() - needed) == []


def test_every_error_that_the_page_names_is_public():
    named = {name for name in re.findall(r"`(\w+Error)`", PAGE) if not hasattr(builtins, name)}
    ours = {name for name in named if name not in ("TemporaryError", "PermanentError")}  # names of kopf
    assert {"UnhealthyError", "NotLeaderError", "DecodeError"} <= ours
    assert sorted(ours - PUBLIC.keys()) == []


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
        ("import trainop.runtime.lowlevel", ["aiohttp", "msgspec", "prometheus_client", "cryptography"]),
        ("from trainop.runtime import Client, Cache, Controller", ["aiohttp", "cryptography", "kubernetes_asyncio"]),
        ("from trainop.runtime import Operator, serve_webhooks", ["cryptography", "kubernetes_asyncio"]),
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
