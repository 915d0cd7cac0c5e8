"""Measurements that are programs of their own, with another API server or another client than the scenarios."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from e2e.bench.operators import ROOT
from e2e.bench.targets import DI_SERVER, OURS, SCALE
from e2e.cluster.daemons import DIE_WITH_PARENT
from e2e.cluster.places import ClusterError
from trainop.runtime.objects.metadata import Json

TAIL = 2000


@dataclass(frozen=True, slots=True)
class Measurement:
    """`python -m MODULE --pods N --record FILE` writes the figures to FILE."""

    module: str
    operator: str
    """What is measured."""
    sizes: dict[str, int]


PROGRAMS = {
    DI_SERVER: Measurement("e2e.bench.diserver", DI_SERVER, {"pods": 10_000}),
    SCALE: Measurement("e2e.bench.scale", OURS, {"pods": 100_000}),
}
"""By scenario."""


async def measure_with(program: Measurement, pods: int) -> Json:
    """Runs the program and returns its figures. Raises `ClusterError` with the end of its output if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, "-m", program.module, f"--pods={pods}", f"--record={record}"]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=DIE_WITH_PARENT,
        )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if not record.exists():
            raise ClusterError(f"{' '.join(command[1:])}: {output.decode(errors='replace')[-TAIL:]}")
        found: Json = msgspec.json.decode(record.read_bytes())
        return found
