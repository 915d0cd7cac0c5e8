"""The flags of the replaced operators and their defaults, by release."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.places import binary
from e2e.parity import RECORDED
from e2e.peers import PEERS
from trainop.programs.di_operator import DI_FLAGS
from trainop.programs.di_server import DI_SERVER_FLAGS
from trainop.programs.di_webhook import DI_WEBHOOK_FLAGS
from trainop.programs.flags import Flag
from trainop.programs.mpi_operator import MPI_FLAGS
from trainop.programs.settings import FLAGS

FOLDER = RECORDED / "flags"
OURS: dict[str, Sequence[Flag]] = {
    "training-operator": FLAGS,
    "mpi-operator": MPI_FLAGS,
    "di-operator": DI_FLAGS,
    "di-server": DI_SERVER_FLAGS,
    "di-webhook": DI_WEBHOOK_FLAGS,
}
"""The flags that replace those of a program."""
_FLAG = re.compile(r"^  -(\S+)(?: (\w+))?\s*$")
_DEFAULT = re.compile(r"\(default (.*)\)$")

Defaults = dict[str, str | None]
"""Flag -> default in Go's form: empty if it is zero, None if the program prints none, as with most types of its own."""


def read_help(text: str) -> Defaults:
    """The flags in the output of `--help` of Go's `flag` package. A zero default is not printed, and neither are most
    defaults of flags of the type `value`."""
    found: Defaults = {}
    name = ""
    for line in text.splitlines():
        if match := _FLAG.match(line):
            name = match[1]
            found[name] = None if match[2] == "value" else ""
        elif name and (match := _DEFAULT.search(line)):
            found[name] = match[1]
    return found


def releases() -> dict[str, tuple[str, Defaults]]:
    """Program and version -> the program and its flags, as recorded."""
    return {
        path.stem: (path.stem.rpartition("-v")[0], json.loads(path.read_text()))
        for path in sorted(FOLDER.glob("*.json"))
    }


def ask(program: Path) -> Defaults:
    """The flags that a program has."""
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, timeout=60)
    return read_help(done.stdout + done.stderr)


def file_of(peer: str) -> Path:
    """The recording of a peer's release."""
    program = peer.removesuffix("-1.7")
    return FOLDER / f"{program}-{PEERS[peer].version}.json"


def record(peer: str) -> None:
    """Writes the recording of a peer, which must have been built."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file_of(peer).write_text(json.dumps(ask(binary(peer)), indent=1, sort_keys=True) + "\n")


def printed(default: Any) -> str:
    """A default of ours in Go's form."""
    if default in (None, "", (), False, 0):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return json.dumps(default)


def differences(program: str, theirs: Defaults) -> dict[str, str]:
    """Flag -> what is different: "missing", or our default in Go's form."""
    ours = {flag.name: printed(flag.default) for flag in OURS[program]}
    return {
        name: ours.get(name, "missing")
        for name, default in theirs.items()
        if name not in ours or (default is not None and ours[name] != default)
    }
