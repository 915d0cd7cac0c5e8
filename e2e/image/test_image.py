"""The image: its contents, its SBOM, and the operator in it on a real kube-apiserver. Needs root: `make test-image`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import default_data
from e2e.image.debian import RECORDS
from e2e.image.places import ROOT, USER, archive_path, sbom_path, version
from e2e.image.python import SITE
from e2e.image.unpack import Image, unpack
from tests.patience import PATIENCE
from tests.server.pod import write_service_account
from tests.server.process import Operator
from tests.server.test_installation import apply
from tests.server.world import World, replicas

NAMESPACE = "kubeflow"
PROGRAMS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
"""All commands of the wheel."""
READ_SCRIPT = re.compile(rb"#!\s*(\S+)")


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("image")
    root.chmod(0o755)
    for parent in root.parents[:2]:  # pytest makes them private, and the user of the image has to enter
        parent.chmod(0o755)
    return unpack(archive_path(), root)


@pytest.fixture(scope="session")
def sbom() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(sbom_path().read_text(encoding="utf-8"))
    return read


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    """A kube-apiserver on which `trainop manifests --print` of the image has been applied."""
    plane = ControlPlane(default_data(f"image-{os.getpid()}"), die_with_parent=True)
    plane.up()
    yield plane
    plane.down()


def files(image: Image) -> dict[str, Path]:
    return {path.relative_to(image.root).as_posix(): path for path in image.root.rglob("*") if not path.is_dir()}


def run(image: Image, *command: str) -> str:
    done = subprocess.run([*image.inside(), *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# contents


def test_it_runs_the_manager_as_an_ordinary_user(image: Image) -> None:
    config = image.config["config"]
    assert (config["User"], config["Entrypoint"]) == (f"{USER}:{USER}", ["/manager"])
    assert run(image, "/trainop", "--version") == f"trainop, version {version()}\n"


def test_there_is_no_shell_and_no_program_but_python(image: Image) -> None:
    programs = {
        name
        for name, path in files(image).items()
        if not path.is_symlink() and path.stat().st_mode & 0o111 and not name.startswith("usr/lib/python3.11/")
    }
    libraries = {name for name in programs if name.startswith("lib/") or ".so" in name}
    assert programs - libraries == {"usr/bin/python3.11", *(f"opt/trainop/bin/{name}" for name in PROGRAMS)}


def test_every_script_names_an_interpreter_of_the_image(image: Image) -> None:
    for name in (f"opt/trainop/bin/{program}" for program in PROGRAMS):
        found = READ_SCRIPT.match((image.root / name).read_bytes())
        assert found
        link = image.root / found[1].decode().removeprefix("/")
        assert (image.root / str(link.readlink()).removeprefix("/")).is_file()


def test_there_are_no_tests_and_tools(image: Image) -> None:
    packages = {path.name for path in (image.root / SITE).iterdir()}
    assert not packages & {"tests", "e2e", "examples", "pip", "setuptools", "pytest", "rich", "pyroute2"}
    assert {"trainop", "uvloop", "aiohttp"} <= packages
    assert not list(image.root.rglob("ensurepip"))


def test_nothing_is_privileged_or_writable(image: Image) -> None:
    paths = [path for path in image.root.rglob("*") if not path.is_symlink()]
    writable = [path for path in paths if path.stat().st_mode & 0o022]
    assert writable == [image.root / "tmp"]
    assert not [path for path in paths if path.stat().st_mode & 0o6000]
    assert {path.stat().st_uid for path in paths} == {0}


def test_every_module_is_compiled(image: Image) -> None:
    sources = [path for path in image.root.rglob("*.py") if "bad" not in path.name]
    missing = [p for p in sources if not (p.parent / "__pycache__" / f"{p.stem}.cpython-311.pyc").exists()]
    assert missing == []


def test_every_extension_module_finds_its_libraries(image: Image) -> None:
    program = """
import importlib, pathlib, sys
count = 0
for base in filter(None, sys.path):
    for path in pathlib.Path(base).rglob("*.so"):
        if "lib-dynload" in base or "lib-dynload" not in str(path):
            importlib.import_module(".".join(path.relative_to(base).with_name(path.name.partition(".")[0]).parts))
            count += 1
print(count)
"""
    modules = [name for name in files(image) if name.endswith(".so") and "/python3.11/" in name]
    assert int(run(image, "/opt/trainop/bin/python", "-c", program)) == len(modules) > 30


def test_the_root_is_read_only_in_these_tests(image: Image) -> None:
    program = (
        "import errno, os\ntry: open('/tmp/x', 'w')\nexcept OSError as e: print(errno.errorcode[e.errno], os.getuid())"
    )
    assert run(image, "/opt/trainop/bin/python", "-c", program).split() == ["EROFS", str(USER)]


def test_it_is_built_to_the_same_layers_again(image: Image, tmp_path: Path) -> None:
    epoch = image.config["created"]
    seconds = subprocess.run(["date", "-d", epoch, "+%s"], capture_output=True, text=True, check=True).stdout.strip()
    command: list[str | Path] = [ROOT / "build/release/bin/python", "-m", "e2e.image", "--output", tmp_path]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": seconds}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert unpack(archive_path(tmp_path), tmp_path / "root").diff_ids == image.diff_ids
    assert sbom_path(tmp_path).read_bytes() == sbom_path().read_bytes()


# software bill of materials


def test_the_sbom_is_cyclonedx_of_this_image(sbom: dict[str, Any]) -> None:
    assert (sbom["bomFormat"], sbom["specVersion"], sbom["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", sbom["serialNumber"])
    component = sbom["metadata"]["component"]
    assert (component["type"], component["name"], component["version"]) == ("container", "trainop", version())
    assert component["purl"].startswith("pkg:oci/trainop@sha256:")


def test_the_sbom_lists_every_package_and_distribution(image: Image, sbom: dict[str, Any]) -> None:
    listed = {(c["purl"].partition("/")[0], c["name"], c["version"]) for c in sbom["components"]}
    records = [
        dict(re.findall(r"^(\w+): (.*)$", p.read_text(), re.MULTILINE)) for p in (image.root / RECORDS).iterdir()
    ]
    debian = {("pkg:deb", record["Package"], record["Version"]) for record in records}
    found = importlib.metadata.distributions(path=[str(image.root / SITE)])
    python = {("pkg:pypi", re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(), one.version) for one in found}
    assert {"libc6", "libssl3", "python3.11-minimal"} <= {name for _, name, _ in debian}
    assert {"aiohttp", "cryptography", "trainop", "uvloop"} <= {name for _, name, _ in python}
    assert listed == debian | python


def test_every_file_belongs_to_a_listed_package(image: Image) -> None:
    """Independent of the records: each package of the two prefixes has its documentation or metadata in the image."""
    documented = {path.parent.name for path in image.root.glob("usr/share/doc/*/copyright")}
    assert documented == {path.name for path in (image.root / RECORDS).iterdir()}
    owned = {
        str(file).partition("/")[0]
        for one in importlib.metadata.distributions(path=[str(image.root / SITE)])
        for file in one.files or ()
    }
    present = {path.name for path in (image.root / SITE).iterdir()} - {"__pycache__"}
    assert present <= owned


def test_the_sbom_names_licences_and_dependencies(sbom: dict[str, Any]) -> None:
    unlicensed = [c["name"] for c in sbom["components"] if c["purl"].startswith("pkg:pypi") and not c.get("licenses")]
    assert unlicensed == []
    (tree,) = [entry for entry in sbom["dependencies"] if entry["ref"] == sbom["metadata"]["component"]["bom-ref"]]
    assert set(tree["dependsOn"]) == {component["bom-ref"] for component in sbom["components"]}


# operation


def test_the_operator_runs_a_job_from_the_image(
    image: Image, control_plane: ControlPlane, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With the rights and the service account of the printed manifests, on a read-only root, without capabilities."""
    for document in yaml.safe_load_all(run(image, "/trainop", "manifests", "--print")):
        if document["kind"] != "ValidatingWebhookConfiguration":  # nothing here routes to the address of the Service
            apply(control_plane.api, document)
    account = tmp_path / "account"
    write_service_account(control_plane.api, NAMESPACE, account, control_plane.data / "pki" / "ca.crt")
    variables = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(control_plane.plan.port),
        "MY_POD_NAMESPACE": NAMESPACE,
        "MY_POD_NAME": "training-operator-0",
    }
    inside = image.inside(variables, account)
    operator = Operator(tmp_path / "log", "--leader-elect", inside=inside, program=["/manager"])
    began = time.monotonic()
    operator.start()
    started = time.monotonic() - began
    record_property("benchmark", f"ready after {started:.2f} s, of which {cpu_seconds(operator):.2f} s are CPU time")
    try:
        check_privileges(operator, image)
        world = World(control_plane.api, "jobs")
        world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
        world.wait_pods("j-master-0", "j-worker-0", "j-worker-1")
        world.run_pod("j-master-0", "j-worker-0", "j-worker-1")
        world.wait_condition("Running")
        world.end_pod("j-master-0")
        world.wait_condition("Succeeded")
        record_property("benchmark", f"resident memory {operator.resident_mib():.0f} MiB")
        assert operator.end() == 0, operator.text()
    finally:
        if operator.running and operator.process:
            operator.process.kill()
            operator.process.wait()


def check_privileges(operator: Operator, image: Image) -> None:
    assert operator.process
    place = Path("/proc", str(operator.process.pid))
    assert wait_until(lambda: f"Uid:\t{USER}\t{USER}" in (place / "status").read_text(), PATIENCE)
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    assert {*status["Gid"].split(), *status["Groups"].split()} == {str(USER)}
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert (place / "root").readlink() == image.root
    mounts = [line.split() for line in (place / "mountinfo").read_text().splitlines()]
    options = [fields[5].split(",") for fields in mounts if fields[4] == "/"]
    assert options
    assert "ro" in options[-1]


def cpu_seconds(operator: Operator) -> float:
    """The processor time that the operator has used."""
    assert operator.process
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
