"""The jobs of examples/survive as tests run them: they go on for ever, and save only when they are told to end."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
ENDLESS = 1_000_000
"""Steps, and steps between two regular checkpoints."""


@dataclass(frozen=True)
class Example:
    """One file of examples/survive, with a job and a claim of the same name."""

    name: str
    plural: str
    group_version: str = "kubeflow.org/v1"
    lines: int = 1
    """How many ranks say from which step they go on."""
    last: str = "worker-0"
    """The pod of the last rank."""
    rank: int = 1
    """The last one."""
    late: int = 0
    """How many steps a program that is told to end may make after its checkpoint."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Parts of the file that are replaced."""
    marker: int = field(default_factory=lambda: random.randrange(ENDLESS, 2 * ENDLESS))
    """The steps between two checkpoints, by which the processes of this run are found."""

    @property
    def path(self) -> str:
        return f"examples/survive/{self.name}.yaml"

    @property
    def specs(self) -> str:
        """The field with the templates of the pods."""
        return "mpiReplicaSpecs" if self.plural == "mpijobs" else "pytorchReplicaSpecs"

    def objects(self, seconds: float, grace: str) -> list[Json]:
        """The manifests, with so many seconds per step and this grace period, and without stalls."""
        text = (ROOT / self.path).read_text(encoding="utf-8")
        endless = f"--steps={ENDLESS}", f"--every={self.marker}", f"--seconds={seconds}"
        given = {"checkpoint-grace: 1m": f"checkpoint-grace: {grace}", "stalled-after: 10m": "infra-restart-limit: '9'"}
        for old, new in {**given, "    trainop.kubeflow.org/on-stall: restart\n": "", **self.replace}.items():
            if old not in text:
                raise ValueError(f"{old!r} is not in {self.path}")
            text = text.replace(old, new)
        # as words of a shell, or as further entries of a list
        for old, between in (("--steps=200 --seconds=0.05", " "), ("--steps=200, --seconds=0.05", ", ")):
            text = text.replace(old, between.join(endless))
        if str(self.marker) not in text:
            raise ValueError(f"{self.path} has no steps to replace")
        objects: list[Json] = json.loads(json.dumps(list(yaml.safe_load_all(text))))  # nothing is shared by anchors
        return objects

    def ranks(self) -> dict[int, int]:
        """Rank -> process on this machine."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if f"--every={self.marker}".encode() not in words or b"python" not in words[0]:
                    continue
                variables = dict(
                    each.split(b"=", 1) for each in (folder / "environ").read_bytes().split(b"\0") if b"=" in each
                )
                rank = variables.get(b"OMPI_COMM_WORLD_RANK") or variables.get(b"RANK")
                if rank is not None:
                    found[int(rank)] = int(folder.name)
        return found


def loop(**replace: str) -> Example:
    """The plain loop; `backend` chooses one."""
    chosen = {"[--checkpoint=": f"[--backend={replace['backend']}, --checkpoint="} if replace else {}
    return Example("loop", "pytorchjobs", lines=2, replace=chosen)


def trainer() -> Example:
    return Example("trainer", "pytorchjobs")


def jit() -> Example:
    """A single rank, which saves by `enable_jit_checkpoint`. The step that it is in when it saves is lost."""
    worker = "    Worker:\n      replicas: 1\n      restartPolicy: OnFailure\n      template: *pod\n"
    replace = {worker: "", "[--checkpoint=": "[--jit, --checkpoint="}
    return Example("trainer", "pytorchjobs", last="master-0", rank=0, late=1, replace=replace)


def mpi() -> Example:
    return Example("mpi", "mpijobs", "kubeflow.org/v2beta1", last="worker-1")


EXAMPLES: Mapping[str, Callable[[], Example]] = {
    "loop": lambda: loop(backend="torch"),
    "trainer": trainer,
    "jit": jit,
    "mpi": mpi,
}
"""All of them, with the real frameworks."""
