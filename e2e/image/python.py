"""The layers with Python packages: wheels are unpacked into an environment in /opt/trainop and compiled.

pip and the compiler run under the image's own interpreter, which is called through the image's dynamic loader. The
machine's version of Python and its C library have no influence.
"""

from __future__ import annotations

import configparser
import os
import subprocess
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

from e2e.image.debian import PYTHON, ImageError

HOME = Path("opt/trainop")
SITE = HOME / "lib" / PYTHON / "site-packages"
EXTRAS = "fast"
SOURCES = (".c", ".h", ".pxd", ".pxi", ".pyi", ".pyx")
"""Files of wheels that only compilers and type checkers read."""
OWN = "trainop/"
"""The operator's package, which reads its public names from its own stubs (`trainop/runtime/exports.py`)."""


class Interpreter:
    """The Python of an unpacked base layer."""

    def __init__(self, base: Path) -> None:
        loader = next(base.glob("lib/*/ld-linux-*.so.*"))
        triplet = loader.parent.name
        libraries = f"{base / 'lib' / triplet}:{base / 'usr/lib' / triplet}"
        self._command: list[str | Path] = [loader, "--library-path", libraries, base / "usr/bin" / PYTHON, "-s"]
        self._variables = {**os.environ, "PYTHONHOME": str(base / "usr"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *arguments: str | Path, packages: str = "") -> None:
        """Runs Python; `packages` is a directory for imports. Raises `ImageError` with its output on failure."""
        variables = {**self._variables, "PYTHONPATH": packages}
        done = subprocess.run([*self._command, *arguments], env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImageError(f"python {arguments[1]}: {done.stdout}{done.stderr}")

    def compile(self, tree: Path, folder: Path) -> None:
        """Compiles the modules in `folder` of a tree. The root file system is read-only, so nothing is compiled later.

        Compiled files are bound to no file time; Python does not look at the source when it imports them.
        """
        modes = ("-f", "-q", "--invalidation-mode=unchecked-hash")
        self.run("-m", "compileall", *modes, "-s", tree, "-p", "/", tree / folder)


def download(interpreter: Interpreter, wheel: Path, constraints: Path, folder: Path) -> list[Path]:
    """Downloads the dependencies of a wheel as wheels, in the versions that the constraints pin."""
    requirement = f"{wheel}[{EXTRAS}]"
    options = ("--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--constraint", constraints)
    pip = sysconfig.get_path("purelib")  # of the environment with the release tools
    interpreter.run("-m", "pip", "download", *options, "--dest", folder, requirement, packages=pip)
    return sorted(path for path in folder.glob("*.whl") if path.name != wheel.name)


def unpack(wheels: Sequence[Path], tree: Path) -> None:
    """Unpacks wheels, without the sources that only compilers read."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            if any(".data/" in name for name in names):
                raise ImageError(f"{wheel.name} has files for other directories, which is not supported")
            archive.extractall(tree / SITE, [name for name in names if _is_needed(name)])


def _is_needed(name: str) -> bool:
    return name.startswith(OWN) or not name.endswith(SOURCES)


def add_environment(tree: Path) -> None:
    """Makes /opt/trainop a virtual environment of the interpreter."""
    (tree / HOME / "bin").mkdir(parents=True)
    (tree / HOME / "bin/python").symlink_to(f"/usr/bin/{PYTHON}")
    (tree / HOME / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")


def add_programs(tree: Path) -> list[str]:
    """Adds the console scripts of the unpacked wheel to /opt/trainop/bin, with links in `/`; returns the links."""
    scripts = configparser.ConfigParser()
    scripts.read(next((tree / SITE).glob("*.dist-info/entry_points.txt")), encoding="utf-8")
    (tree / HOME / "bin").mkdir(parents=True, exist_ok=True)
    for name, target in scripts["console_scripts"].items():
        module, _, function = target.partition(":")
        script = tree / HOME / "bin" / name
        call = f"import sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        script.write_text(f"#!/{HOME}/bin/python\n{call}")
        script.chmod(0o755)
        (tree / name).symlink_to(f"/{HOME}/bin/{name}")
    return [f"/{name}" for name in scripts["console_scripts"]]
