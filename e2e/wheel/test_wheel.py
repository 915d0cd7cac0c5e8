"""The wheel: its contents, its commands without any extra, and the README's tour with the extra `local`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from e2e.cluster.places import binary
from tests.run import test_tour
from trainop import __version__
from trainop.programs.schemes import crds

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
NAME = f"trainop-{__version__}"
WHEEL, SOURCES = DIST / f"{NAME}-py3-none-any.whl", DIST / f"{NAME}.tar.gz"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

UV = shutil.which("uv")  # an environment that uv made has no pip

cluster = test_tour.cluster
test_every_command_beside_the_cluster_works = test_tour.test_every_command_beside_the_cluster_works
test_the_manifests_are_applied_as_the_tour_says = test_tour.test_the_manifests_are_applied_as_the_tour_says


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def new_environment(folder: Path, *requirements: str) -> dict[str, str]:
    """Installs into a new virtual environment; returns the environment variables of a shell with it active."""
    venv.create(folder, symlinks=True)
    python = ("--python", folder / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", *python, "install", "--no-compile")
    install = (UV, "pip", "install", *python) if UV else pip
    run(*install, "--quiet", "--only-binary=:all:", "--constraint", ROOT / "constraints.txt", *requirements)
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    path = os.pathsep.join((str(folder / "bin"), str(binary("kubectl").parent), os.environ["PATH"]))
    return {**inherited, "PATH": path, "HOME": str(folder)}


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the wheel and its declared dependencies, without extras."""
    return new_environment(tmp_path_factory.mktemp("bare") / "env", str(WHEEL))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the extra `local`, and with numpy, which the programs of the examples import."""
    return new_environment(tmp_path_factory.mktemp("local") / "env", f"{WHEEL}[local]", "numpy")


def test_the_wheel_has_all_files_of_the_package_and_nothing_else() -> None:
    with zipfile.ZipFile(WHEEL) as archive:
        names = set(archive.namelist())
    tracked = set(run("git", "ls-files", "trainop").splitlines())
    assert {name for name in names if ".dist-info/" not in name} == tracked
    assert {"trainop/py.typed", f"{NAME}.dist-info/licenses/LICENSE"} <= names


def test_the_sources_build_to_the_same_bytes_elsewhere(tmp_path: Path) -> None:
    """From the unpacked source archive, in another directory and with another umask."""
    run("tar", "-xf", SOURCES, "-C", tmp_path)
    build: list[str | Path] = [ROOT / "build/release/bin/python", "-m", "build", "--no-isolation"]
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run("sh", "-c", 'umask 077 && exec "$@"', "sh", *build, cwd=tmp_path / NAME, env=env)
    for original in (WHEEL, SOURCES):
        assert (tmp_path / NAME / "dist" / original.name).read_bytes() == original.read_bytes(), original.name


def test_the_environment_has_the_wheel_and_no_extra(bare: dict[str, str], tmp_path: Path) -> None:
    imported = run("python", "-c", "import trainop; print(trainop.__file__)", env=bare, cwd=tmp_path)
    assert imported.startswith(bare["HOME"])
    found = run("python", "-c", "import importlib.util as u; print(u.find_spec('rich'))", env=bare, cwd=tmp_path)
    assert found == "None\n"


def test_the_commands_work_without_extras(bare: dict[str, str], tmp_path: Path) -> None:
    assert run("trainop", "--version", env=bare, cwd=tmp_path) == f"trainop, version {__version__}\n"
    for command in (("trainop", "operator", "--help"), ("manager", "--help")):
        done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "-enable-scheme" in done.stdout + done.stderr
    for script in PROJECT["scripts"]:
        assert (Path(bare["HOME"]) / "bin" / script).is_file()


def test_the_manifests_are_printed(bare: dict[str, str], tmp_path: Path) -> None:
    printed = run("trainop", "manifests", "--print", "--image=here:1", env=bare, cwd=tmp_path)
    documents = list(yaml.safe_load_all(printed))
    kinds = [document["kind"] for document in documents]
    assert kinds.count("CustomResourceDefinition") == len(crds())
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "here:1"


def test_the_job_of_the_tour_succeeds(environment: dict[str, str]) -> None:
    line = test_tour.tour()[0][1]
    assert line.startswith("trainop run ")
    run(*line.split(), env=environment)
