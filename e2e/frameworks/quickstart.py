"""Runs the commands of `docs/quickstart.md` word for word, with the package as pip installs it and real PyTorch.

python -m e2e.frameworks.quickstart        the first run installs several GB
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
PATIENCE = 600
"""Seconds for one command, but for the installation."""


def commands() -> list[str]:
    """The commands of the page."""
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(block).splitlines()


def sample() -> list[str]:
    """The lines that the page shows of the training."""
    (block,) = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(block).splitlines()


def without_digest(text: str) -> str:
    return re.sub(r"weights \w+", "", text)


def copy_sources(folder: Path) -> None:
    """What a checkout has: pip leaves files beside what it builds."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


class Reader:
    """Somebody who types the commands, in a shell with a virtual environment active."""

    def __init__(self, folder: Path) -> None:
        cache = os.environ.get("TRAINOP_FRAMEWORKS") or Path.home() / ".cache" / "trainop-frameworks"
        programs = Path(cache) / "quickstart"
        if not programs.exists():
            venv.create(programs, with_pip=True)
        self.folder = folder / "trainop"
        copy_sources(self.folder)
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "KUBECONFIG"}
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in hidden},
            "PATH": f"{programs / 'bin'}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        print(f"$ {command}", flush=True)
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def type(self, command: str, patience: float = PATIENCE) -> str:
        """The output of a command that succeeds."""
        process = self.start(command)
        said, _ = process.communicate(timeout=patience)
        if process.returncode:
            raise AssertionError(f"exit code {process.returncode}: {said}")
        return said


def read_address(lines: IO[str]) -> str:
    """The address of the page among the first lines."""
    seen = ""
    for line in lines:
        seen += line
        if (found := re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", line)) is not None:
            return found[0]
    raise AssertionError(f"no address of a page: {seen}")


def look_at(address: str) -> None:
    """Returns once the page shows the job. It asks as the page's script does: with the token in a header."""
    site, _, token = address.partition("#token=")
    with urllib.request.urlopen(site, timeout=PATIENCE) as answer:
        assert b"<html" in answer.read()
    request = urllib.request.Request(f"{site}events", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert any(line.startswith(b"data: ") and b'"ddp"' in line for line in answer), "the page has no job"


def read_to_end(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="quickstart-") as folder:
        reader = Reader(Path(folder))
        install, train, logs, page, make = commands()
        reader.type(install, 3600)
        process = reader.start(train)
        assert process.stdout is not None
        look_at(read_address(process.stdout))
        said = read_to_end(process)
        assert [line for line in sample() if without_digest(line) not in without_digest(said)] == [], said
        assert "rank 3 of 4" in reader.type(logs)
        process = reader.start(page)
        assert process.stdout is not None
        look_at(read_address(process.stdout))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        reader.type(make)
        reader.type("trainop check job.yaml")
    print("quickstart: all five commands work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
