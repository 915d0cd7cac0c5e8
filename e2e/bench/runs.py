"""Runs what was asked for, ours and the peers alternately, and keeps every result.

Results are JSON lines: first the machine, then one for each run. A file is a session: what is compared stands in one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from e2e.bench.floor import measure_floor
from e2e.bench.operators import OPERATORS, ROOT, peer_versions
from e2e.bench.requests import count_requests
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.stage import BenchError, open_stage
from e2e.bench.targets import FLOOR
from e2e.cluster.places import VERSION, ClusterError
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json

MOST_FOREIGN = 0.04
"""Share of the machine that others may use before a run counts as disturbed."""

COUNT = "count-"
"""Before the name of a scenario: its requests are counted, by the audit log, which costs the API server time."""

LONGEST = 420.0
"""Seconds of one run; what takes longer has failed."""

FAULTS = (ApiError, BenchError, ClusterError, ExceptionGroup, LookupError, OSError, TimeoutError, aiohttp.ClientError)
"""One run that comes to nothing must not end a session of many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One scenario, perhaps with `COUNT` before it; the operators take turns."""

    operators: tuple[str, ...]
    scenario: str
    repetitions: int = 3
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Those other than the usual."""


async def run(plan: Plan, out: Path) -> None:
    """All runs of a plan, each added to `out` as soon as it is done. A run that fails is told and left out."""
    for repetition, operator in itertools.product(range(plan.repetitions), plan.operators):
        began = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST):
                record = await run_one(plan, operator)
        except FAULTS as error:
            print(f"{plan.scenario} {operator} #{repetition} failed: {error!r}", flush=True)
            continue
        wall = time.monotonic() - began
        keep(record | {"wall": round(wall, 1)}, out)
        brief = {name: round(value, 2) for name, value in record["result"].items() if isinstance(value, int | float)}
        print(
            f"{plan.scenario} {operator} #{repetition} [{wall:.0f} s, others {record['foreign']:.0%}] {brief}",
            flush=True,
        )


def keep(record: Json, out: Path) -> None:
    """Adds a line to a session, which the machine begins."""
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = not out.exists()
    with out.open("ab") as lines:
        for each in [machine(), record] if fresh else [record]:
            lines.write(msgspec.json.encode(each) + b"\n")


def read(path: Path) -> list[Json]:
    """What `keep` has written."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def run_one(plan: Plan, name: str) -> Json:
    scenario, audit = plan.scenario.removeprefix(COUNT), plan.scenario.startswith(COUNT)
    perform, usual = SCENARIOS[scenario]
    sizes = {**usual, **plan.sizes}
    if name == FLOOR:
        result = await measure_floor(sizes["jobs"], sizes["workers"])
    else:
        operator = OPERATORS[name]
        sizes |= operator.sizes.get(scenario, {})
        async with open_stage(operator, audit=audit) as stage:
            result = await perform(stage, sizes)
            if audit:
                result["requests"] = count_requests(stage.arena.audit_log, stage.marks, sizes["jobs"])
            result["counts"] = await stage.metrics()
    return {
        "scenario": plan.scenario,
        "operator": name,
        "sizes": sizes,
        "foreign": foreign(result),
        "result": result,
    }


def foreign(result: Mapping[str, Any]) -> float:
    """The share of the machine that processes outside the benchmark used, in the worst phase."""
    phases = [phase for name, phase in result.items() if name.startswith("cpu")]
    shares = [phase["other"] / phase["t"] / (os.cpu_count() or 1) for phase in phases if phase["t"]]
    return float(round(max([*shares, 0.0]), 3))


def machine() -> Json:
    """What a reader has to know beside the figures."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, Linux {platform.release()}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {
            "trainop": _commit(),
            "Python": platform.python_version(),
            **{name: version(name) for name in ("aiohttp", "msgspec", "uvloop")},
            "kube-apiserver": VERSION,
            **peer_versions(),
        },
    }


def _commit() -> str:
    """Of the checkout; with `+` if it has changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
